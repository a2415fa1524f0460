"""What the command line says to whoever typed it, on stderr; stdout is for what was asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def say(line: str) -> None:
    """Tell one line of what goes on; a disk that is full, or a reader that left, is no failure."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"ortolan: {line}\n")
        sys.stderr.flush()


def fail(message: str) -> int:
    """Tell in one line what has failed, and return the exit code for it."""
    say("error: " + " ".join(message.splitlines()))
    return EXIT_FAILED


def fill_closed_streams() -> None:
    """Give each standard stream that was closed a place to go, as `<&-` and `>&-` close them.

    Python has None for it, and the next file that is opened would get its number, in which
    libraries then write their warnings.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


Show = Callable[[int, int, str], None]

_BAR_COLUMNS = 30
_BETWEEN_S = 0.1


@contextlib.contextmanager
def progress_line() -> Iterator[Show]:
    """Give a function of (done, total, note) that draws a bar where somebody may be watching."""
    if not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    shown_at = 0.0

    def show(done: int, total: int, note: str) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at < _BETWEEN_S and done < total:
            return
        shown_at = now
        filled = "#" * (_BAR_COLUMNS * done // max(total, 1))
        sys.stderr.write(f"\r[{filled:<{_BAR_COLUMNS}}] {done}/{total}, {note}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")


@contextlib.contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Let ``signals`` do what Ctrl-C does; one that nohup has switched off stays so."""
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
