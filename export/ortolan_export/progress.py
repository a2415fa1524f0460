"""How far long work is: who is told, and a bar where somebody may be watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int], None]  # told (stage, units done, units in all)


def say_nothing(stage: str, done: int, total: int) -> None:
    """Report to nobody."""


def counting(report: Report, stage: str, total: int) -> Callable[[int], None]:
    """Return a function that is told how many more units are done, and reports how many are."""
    done = 0

    def count(units: int) -> None:
        nonlocal done
        done = min(done + units, total)
        report(stage, done, total)

    return count


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Give a function that moves a bar on stderr, or does nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield say_nothing
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
