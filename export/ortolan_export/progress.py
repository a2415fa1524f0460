"""The progress bar of long work, shown where somebody may be watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ortolan_export.source import Report


@contextmanager
def progress_bar() -> Iterator[Report | None]:
    """Give a function that moves a bar on stderr; None when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(unit="", unit_scale=True, leave=False) as bar:

        def report(stage: str, done: int, total: int) -> None:
            bar.set_description(stage, refresh=False)
            bar.total = total
            bar.n = done
            bar.update(0)
            if done >= total:
                bar.refresh()

        yield report
