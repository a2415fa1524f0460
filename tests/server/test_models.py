"""One model in another's place: what the host sees while the old one is being closed."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from ortolan_server.models import Models, Served


class SlowToClose:
    """An engine whose thread ends at once, and whose closing takes a while."""

    def __init__(self) -> None:
        self.is_alive = True

    def close(self) -> None:
        """End, slowly."""
        self.is_alive = False
        time.sleep(0.2)


def make(engine: Any) -> Served:
    """Return a model that answers nothing."""
    observer = SimpleNamespace(finish_all=lambda: None)
    service: Any = SimpleNamespace(facts=SimpleNamespace(model="m"), observer=observer)
    return Served(engine, service, app=None)  # type: ignore[arg-type]


def test_an_engine_that_is_being_closed_does_not_count_as_dead() -> None:
    """Else the host would end the process, as it does when an engine has died."""

    async def run() -> None:
        first = SlowToClose()
        models = Models(lambda bundle: SlowToClose())  # type: ignore[arg-type]
        models.serve(first, make)  # type: ignore[arg-type]
        await models.replace("other")
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert models.are_alive
            await asyncio.sleep(0.01)
        assert not first.is_alive

    asyncio.run(run())
