"""Events from the engine's thread to the loop and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ortolan_runtime.events import Ending, Event, EventSink
from ortolan_runtime.params import GenerationRequest
from ortolan_server.bridge import EngineBridge
from ortolan_server.errors import ApiError, unavailable

REQUEST = GenerationRequest(prompt=(1,))
END = Event(ending=Ending(reason="length", completion_tokens=1))


class FakeEngine:
    """Numbers sequences and notes what is cancelled."""

    def __init__(self) -> None:
        self.count = 0
        self.cancelled: list[int] = []

    def submit_all(self, requests: Sequence[GenerationRequest], sink: EventSink) -> list[int]:
        """Return new ids."""
        self.count += len(requests)
        return list(range(self.count - len(requests), self.count))

    def cancel(self, sequence_id: int) -> None:
        """Note the id."""
        self.cancelled.append(sequence_id)


def test_events_arrive_by_position_with_one_wake_up_a_step() -> None:
    """Two requests of two sequences, one step of a thread."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        bridge = EngineBridge(FakeEngine(), loop)
        first, second = (bridge.subscribe([REQUEST, REQUEST]) for _ in range(2))
        step = [(3, Event(text="d")), (0, Event(text="a")), (1, Event(text="b"))]
        thread = threading.Thread(target=bridge.deliver, args=(step,))
        thread.start()
        assert [(p, e.text) for p, e in await first.take(5)] == [(0, "a"), (1, "b")]
        assert [(p, e.text) for p, e in await second.take(5)] == [(1, "d")]
        thread.join()

    asyncio.run(run())


def test_nothing_new_in_time_is_an_empty_list() -> None:
    """So that a heartbeat can be sent."""

    async def run() -> None:
        bridge = EngineBridge(FakeEngine(), asyncio.get_running_loop())
        assert await bridge.subscribe([REQUEST]).take(0.01) == []

    asyncio.run(run())


def test_leaving_cancels_only_what_has_not_ended() -> None:
    """And later events of it go nowhere."""

    async def run() -> None:
        engine = FakeEngine()
        bridge = EngineBridge(engine, asyncio.get_running_loop())
        subscription = bridge.subscribe([REQUEST, REQUEST, REQUEST])
        bridge.deliver([(1, END)])
        await subscription.take(5)
        bridge.release(subscription)
        assert sorted(engine.cancelled) == [0, 2]
        bridge.deliver([(0, END), (2, END)])
        await asyncio.sleep(0)
        assert subscription.is_closed

    asyncio.run(run())


def test_a_failure_for_all_reaches_every_open_request() -> None:
    """Those that are answered have left already."""

    async def run() -> None:
        engine = FakeEngine()
        bridge = EngineBridge(engine, asyncio.get_running_loop())
        answered, waiting = bridge.subscribe([REQUEST]), bridge.subscribe([REQUEST])
        bridge.release(answered)
        bridge.fail_all(unavailable("the end"))
        with pytest.raises(ApiError, match="the end"):
            await waiting.take(5)
        assert sorted(engine.cancelled) == [0, 1]

    asyncio.run(run())


def test_events_after_the_loops_end_are_nobodys() -> None:
    """The engine's thread must not fail on them."""
    loop = asyncio.new_event_loop()
    bridge = EngineBridge(FakeEngine(), loop)
    loop.close()
    bridge.deliver([(0, END)])
