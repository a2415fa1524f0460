"""A sink for threads: events wait in a queue for whoever iterates over them."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from ortolan_runtime.events import Event


class CollectingSink:
    """Keeps the events of any number of sequences, in order."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()

    def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take (sequence id, event) pairs."""
        for pair in events:
            self.events.put(pair)
