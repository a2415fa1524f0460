"""Limits of the system that fail what a process does, for as long as a test wants."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(what: int, soft: int) -> Iterator[None]:
    """Lower one of ``resource``'s limits for this process."""
    before, hard = resource.getrlimit(what)
    resource.setrlimit(what, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (before, hard))
