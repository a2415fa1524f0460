"""One model in another's place: what the host sees while the old one is being closed."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.stepper import Statistics
from ortolan_server.models import Models, NamedEngine, Served


class SlowToClose:
    """An engine whose thread ends at once, and whose closing takes a while."""

    def __init__(self) -> None:
        self.is_alive = True

    def close(self) -> None:
        """End, slowly."""
        self.is_alive = False
        time.sleep(0.2)

    def statistics(self) -> Statistics:
        """Return that five tokens were generated, in two slots."""
        return Statistics(slots=2, generated_tokens=5)


def make(named: NamedEngine) -> Served:
    """Return a model that answers nothing."""
    facts: Any = SimpleNamespace(model=named.name or "m")
    return Served(named.engine, bridge=None, facts=facts, fingerprint="")  # type: ignore[arg-type]


def test_an_engine_that_is_being_closed_does_not_count_as_dead() -> None:
    """Else the host would end the process, as it does when an engine has died."""

    async def run() -> None:
        first = SlowToClose()
        engines: Any = [NamedEngine(first)]  # type: ignore[arg-type]
        models = Models(engines, make, lambda bundle, old: SlowToClose())  # type: ignore[arg-type]
        await models.replace("other")
        generated = [5]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert models.are_alive
            generated.append(models.statistics()["m"].generated_tokens)
            await asyncio.sleep(0.01)
        assert not first.is_alive
        # The new engine has its own five; those of the old one are never taken back.
        assert generated == sorted(generated)
        assert models.statistics()["m"].generated_tokens == 10
        assert models.statistics()["m"].slots == 2

    asyncio.run(run())


def test_two_models_of_one_name_are_refused() -> None:
    """Before anything is served; the way out is in the message."""

    async def run() -> None:
        engines: Any = [NamedEngine(SlowToClose()), NamedEngine(SlowToClose())]  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="NAME=BUNDLE"):
            Models(engines, make, None)

    asyncio.run(run())
