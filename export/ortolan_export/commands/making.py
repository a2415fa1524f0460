"""What the commands that make bundles share: interruption, progress and the last line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ortolan_export.progress import progress_bar
from ortolan_export.source import Report
from ortolan_runtime.bundle import Manifest


def make(out: Path, export: Callable[[Report | None], Manifest]) -> int:
    """Run ``export`` with a progress bar and say what it wrote to ``out``; return the exit code."""
    try:
        with _interrupted_by(signal.SIGTERM, signal.SIGHUP), progress_bar() as report:
            manifest = export(report)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written") from None
    sys.stdout.write(f"{_summary(out, manifest)}\n")
    return 0


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Let ``signals`` do what Ctrl-C does, so that nothing half-written stays behind."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(out: Path, manifest: Manifest) -> str:
    size = sum(record.size for record in manifest.files) / 1e6
    return (
        f"{out}: {manifest.name}, {manifest.architecture}, {manifest.precision} "
        f"for {manifest.target}, "
        f"context {manifest.context_length}, {size:.0f} MB"
    )
