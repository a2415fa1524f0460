"""Stop strings: where a text ends, and what must wait since it may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back text that may be the beginning of a stop string.

    Characters count as if they came one at a time: the stop that is complete first wins, of two
    that end together the longer one.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._spared = 0  # how much of the beginning of what is held no stop string may end in

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that can go out now, and whether a stop string ended the sequence."""
        self._held += text
        match = self._first_match()
        if match is not None:
            start, end = match
            released = self._held[: end if self._include_stop else start]
            self._held = ""
            return released, True
        return self._release(), False

    def spare(self, text: str) -> str:
        """Return the text that can go out now; a stop string may begin in ``text``, but not end."""
        self._held += text
        self._spared = len(self._held)
        return self._release()

    def flush(self) -> str:
        """Return the held text, at an ending that is no stop string."""
        released, self._held = self._held, ""
        return released

    def _release(self) -> str:
        keep = self._possible_beginning()
        released = self._held[: len(self._held) - keep]
        self._held = self._held[len(released) :]
        self._spared = max(0, self._spared - len(released))
        return released

    def _first_match(self) -> tuple[int, int] | None:
        found = (
            (self._held.find(stop, max(0, self._spared + 1 - len(stop))), len(stop))
            for stop in self._stops
        )
        spans = [(start + length, start) for start, length in found if start >= 0]
        if not spans:
            return None
        end, start = min(spans)
        return start, end

    def _possible_beginning(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
