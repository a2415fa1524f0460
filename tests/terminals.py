"""A terminal, and what a command writes to it."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path


def in_a_terminal(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command with a terminal for stderr; return its code, its stdout, and what was seen.

    The terminal is read while the command runs: a full one (4 KB) stops whoever writes to it.
    """
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        seen = b""
        with contextlib.suppress(OSError):  # EIO: the last writer has left
            while block := os.read(leader, 1 << 12):
                seen += block
        os.close(leader)
        printed, _ = process.communicate(timeout=60)
    return process.returncode, printed.decode(), seen.decode()
