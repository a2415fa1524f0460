"""Carries requests to the engine's thread and its events back to the event loop.

Events of one step cross with one wake-up of the loop, however many requests they belong to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Protocol

from ortolan_runtime.events import Event, EventSink
from ortolan_runtime.params import GenerationRequest
from ortolan_server.errors import ApiError


class SequenceEngine(Protocol):
    """What of the engine the bridge needs."""

    def submit_all(self, requests: Sequence[GenerationRequest], sink: EventSink) -> list[int]:
        """Queue all sequences or none; return their ids."""

    def cancel(self, sequence_id: int) -> None:
        """End a sequence early; idempotent."""


class Watcher(Protocol):
    """Who is told everything about a request, what comes after its client has left included."""

    def take(self, id: int, event: Event) -> None:
        """Take one event of one sequence."""

    def settle(self) -> None:
        """Take note that every sequence has ended."""


class Subscription:
    """The events of one request's sequences, by position in the request."""

    def __init__(
        self, engine: SequenceEngine, ids: Sequence[int], watcher: Watcher | None = None
    ) -> None:
        self._engine = engine
        self._watcher = watcher
        self._unfinished = set(ids)
        self._positions = {id: position for position, id in enumerate(ids)}
        self._events: list[tuple[int, Event]] = []
        self._news = asyncio.Event()
        self._failure: ApiError | None = None
        self.is_closed = False

    def put(self, id: int, event: Event) -> None:
        """Take an event; called on the loop."""
        if event.ending is not None:
            self._unfinished.discard(id)
        if not self.is_closed:
            self._events.append((self._positions[id], event))
            self._news.set()
        if self._watcher is not None:
            self._watcher.take(id, event)
            if not self._unfinished:
                self._watcher.settle()

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, Event]]:
        """Return the (position, event) pairs since the last call; [] after ``timeout_s``.

        Raises the ApiError of ``fail``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        if self._failure is not None:
            raise self._failure
        events, self._events = self._events, []
        return events

    def fail(self, error: ApiError) -> None:
        """End the request with ``error``; its sequences are cancelled."""
        self._failure = error
        self._news.set()
        self._cancel()

    def close(self) -> None:
        """Take no more events; sequences that have not ended are cancelled."""
        self.is_closed = True
        self._news.set()
        self._cancel()

    def _cancel(self) -> None:
        for id in self._unfinished:
            self._engine.cancel(id)


class EngineBridge:
    """The one sink of all requests; lives on one event loop."""

    def __init__(self, engine: SequenceEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._lock = threading.Lock()
        self._arrived: list[tuple[int, Event]] = []
        self._by_id: dict[int, Subscription] = {}
        self._open: set[Subscription] = set()

    def subscribe(
        self, requests: Sequence[GenerationRequest], watcher: Watcher | None = None
    ) -> Subscription:
        """Submit all sequences of a request; call on the loop. Raises what ``submit_all`` does."""
        ids = self._engine.submit_all(requests, self)
        # Events cannot overtake this: they are handed out by a later callback of this loop.
        subscription = Subscription(self._engine, ids, watcher)
        self._by_id |= dict.fromkeys(ids, subscription)
        self._open.add(subscription)
        return subscription

    def release(self, subscription: Subscription) -> None:
        """Forget a request that is answered or abandoned; what still runs of it is cancelled."""
        subscription.close()
        self._open.discard(subscription)

    def fail_all(self, error: ApiError) -> None:
        """End every request that is not answered yet with ``error``."""
        for subscription in self._open:
            subscription.fail(error)

    def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take the events of a step; called on the engine's thread."""
        with self._lock:
            is_first = not self._arrived
            self._arrived.extend(events)
        if is_first and self._arrived:
            try:
                self._loop.call_soon_threadsafe(self._dispatch)
            except RuntimeError:  # the loop is closed: nobody waits for these events any more
                return

    def _dispatch(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for id, event in arrived:
            subscription = self._by_id.get(id)
            if subscription is None:
                continue
            if event.ending is not None:
                del self._by_id[id]
            subscription.put(id, event)
