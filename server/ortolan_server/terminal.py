"""What the command line says to whoever typed it, on stderr; stdout is for what was asked for."""

from __future__ import annotations

import sys

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def say(line: str) -> None:
    """Tell one line of what goes on."""
    sys.stderr.write(f"ortolan: {line}\n")


def fail(message: str) -> int:
    """Tell in one line what has failed, and return the exit code for it."""
    line = " ".join(message.splitlines())
    sys.stderr.write(f"ortolan: error: {line}\n")
    return EXIT_FAILED
