"""Runs other programs within a time limit and ends them by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Command = Sequence[str | Path]

_END_S = 5.0


class ProgramFailed(Exception):
    """A program that was asked for a figure, or for a file, did not give it."""


def run(command: Command, *, timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Run ``command`` to its end and return what it printed. Raises ProgramFailed."""
    with started(command, environment=environment, output=subprocess.PIPE) as process:
        try:
            output, log = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise ProgramFailed(f"{_name(command)} took more than {timeout_s:g} s") from exc
    if process.returncode != 0:
        last = (log.strip().splitlines() or ["no message"])[-1]
        raise ProgramFailed(f"{_name(command)} {ending(process.returncode)}: {last}")
    return output


def ending(code: int) -> str:
    """Return how a process with this return code ended, in words."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


@contextlib.contextmanager
def started(
    command: Command,
    *,
    environment: Mapping[str, str] | None = None,
    output: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """Give a running program; afterwards it and its children are ended. Raises ProgramFailed."""
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that its children can be ended with it
        )
    except OSError as exc:
        raise ProgramFailed(f"{command[0]} cannot be started: {exc.strerror}") from exc
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _name(command: Command) -> str:
    return " ".join(str(word) for word in command[:4])
