"""The models that are served, by name, and how another bundle takes the place of one of them.

A new bundle is loaded beside the running one. From then on new requests are answered by it; those
that had come before end with the model that they began with, which is closed after the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ortolan_runtime.errors import OrtolanError
from ortolan_runtime.stepper import Statistics
from ortolan_server.bridge import EngineBridge, SequenceEngine
from ortolan_server.bundles import check_names
from ortolan_server.errors import ApiError, invalid_value, model_not_found
from ortolan_server.facts import Loaded
from ortolan_server.keys import Key
from ortolan_server.kinds import Facts
from ortolan_server.metrics import GAUGES

logger = logging.getLogger("ortolan.server")

_POLL_S = 0.1
# What an engine has at the moment; everything else in its statistics only grows.
_GAUGES = frozenset(field for field, _, _ in GAUGES)


class ServedEngine(SequenceEngine, Loaded, Protocol):
    """What of the engine the server needs."""

    @property
    def is_alive(self) -> bool:
        """Return whether the step thread runs."""

    @property
    def most_sequences(self) -> int:
        """Return how many sequences there may be at once, those that wait included."""

    def statistics(self) -> Statistics:
        """Return counters and gauges, as of the last step."""

    def close(self) -> None:
        """Cancel what runs and stop the thread; idempotent."""


class NamedEngine(msgspec.Struct, frozen=True):
    """An engine to serve under ``name``; None is the bundle's own name."""

    engine: ServedEngine
    name: str | None = None


@dataclass(slots=True, eq=False)
class Served:
    """One model: its engine, and what requests need of it.

    ``is_named`` tells that the operator chose the name, so that what takes its place keeps it.
    """

    engine: ServedEngine
    bridge: EngineBridge
    facts: Facts
    fingerprint: str
    is_named: bool = False
    in_flight: int = 0
    created_s: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """Return the name that clients use."""
        return self.facts.model


Figures = dict[str, float]
# Opens the bundle at a path, to take an engine's place and its share of the machine.
Load = Callable[[str, ServedEngine], ServedEngine]
Make = Callable[[NamedEngine], Served]


class Models:
    """Every model that is served, by what ``make`` makes of its engine.

    Raises InvalidParameter when two have one name.
    """

    def __init__(self, engines: Sequence[NamedEngine], make: Make, load: Load | None) -> None:
        self._make = make
        self._load = load
        self._current = [make(engine) for engine in engines]
        check_names(self.names())
        self._leaving: list[Served] = []
        self._closing: list[Served] = []
        self._counted: dict[str, Figures] = {}  # by engines that are closed
        self._loading = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def current(self) -> tuple[Served, ...]:
        """Return the models that new requests get, in the order in which they were given."""
        return tuple(self._current)

    @property
    def can_load(self) -> bool:
        """Return whether another bundle may take the place of one that is served."""
        return self._load is not None

    @property
    def are_alive(self) -> bool:
        """Return whether every engine that has requests runs."""
        return all(served.engine.is_alive for served in self._all())

    def names(self, key: Key | None = None) -> list[str]:
        """Return the names of all models, or of those that ``key`` may use."""
        return [served.name for served in self._current if _may_use(key, served.name)]

    def choose(self, name: object, key: Key | None = None) -> Served:
        """Return the model of that name, else the first that ``key`` may use.

        A name that is not served is refused later, when the other fields were found good. Raises
        ApiError when ``key`` may use none.
        """
        usable = [served for served in self._current if _may_use(key, served.name)]
        if not usable:
            assert key is not None, "without a key all are usable"
            wanted = name if isinstance(name, str) else self._current[0].name
            raise model_not_found(wanted, key.limits.models)
        return next((served for served in usable if served.name == name), usable[0])

    def common_facts(self) -> Facts:
        """Return facts that are true of every model: the widest ranges, all names."""
        facts = [served.facts for served in self._current]
        return msgspec.structs.replace(
            facts[0],
            vocab_size=max(one.vocab_size for one in facts),
            context_length=max(one.context_length for one in facts),
            others=tuple(one.model for one in facts[1:]),
        )

    @contextlib.contextmanager
    def answering(self, served: Served) -> Iterator[None]:
        """Keep a model while a request of it is being answered."""
        served.in_flight += 1
        try:
            yield
        finally:
            served.in_flight -= 1

    def statistics(self) -> dict[str, Statistics]:
        """Return what each name has done and holds.

        Counters go on when another bundle takes a name; what an engine that is being replaced still
        holds is counted too.
        """
        totals = {name: dict(counted) for name, counted in self._counted.items()}
        for served in (*self._closing, *self._all()):
            _add(totals.setdefault(served.name, {}), _figures(served))
        return {name: Statistics(**total) for name, total in totals.items()}  # type: ignore[arg-type]

    def fail_all(self, error: ApiError) -> None:
        """End every request that is not answered yet with ``error``."""
        for served in self._all():
            served.bridge.fail_all(error)

    def close(self) -> None:
        """Close what is served."""
        for task in self._retiring:
            task.cancel()
        for served in self._all():
            served.engine.close()

    async def replace(self, bundle: str, name: str | None = None) -> tuple[str, str]:
        """Load a bundle and serve it in the place of a model; return the new name and the old.

        ``name`` says of which; it may be left out when there is one alone. Raises ApiError; then
        every model stays as it was.
        """
        assert self._load is not None, "the route is there only where bundles can be loaded"
        if self._loading.locked():
            raise ApiError(409, "another bundle is being loaded; try again later", code="conflict")
        async with self._loading:
            old = self._replaceable(name)
            try:
                engine = await asyncio.to_thread(self._load, bundle, old.engine)
                new = self._made(engine, old)
            except OrtolanError as exc:
                raise invalid_value("bundle", str(exc)) from exc
        self._current[self._current.index(old)] = new
        self._leaving.append(old)
        logger.info("serving %s in place of %s", new.name, old.name)
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        return new.name, old.name

    def _replaceable(self, name: str | None) -> Served:
        """Return the model whose place is to be taken. Raises ApiError."""
        names = self.names()
        if name is None and len(names) == 1:
            return self._current[0]
        if name is None:
            raise invalid_value(
                "model", f"`model` must name the model to replace, one of {', '.join(names)}"
            )
        if name not in names:
            raise model_not_found(name, names)
        return self._current[names.index(name)]

    def _made(self, engine: ServedEngine, old: Served) -> Served:
        """Return the new model, whose engine is closed when it cannot be. Raises ApiError."""
        try:
            new = self._make(NamedEngine(engine, old.name if old.is_named else None))
            if new.name in set(self.names()) - {old.name}:
                raise invalid_value("bundle", f"another model is served as {new.name} already")
        except BaseException:
            engine.close()
            raise
        return new

    async def _retire(self, old: Served) -> None:
        """Close a model after its last request."""
        while old.in_flight:
            await asyncio.sleep(_POLL_S)
        # Out of the list first: an engine there that does not run ends the process.
        self._leaving.remove(old)
        self._closing.append(old)
        await asyncio.to_thread(old.engine.close)
        self._closing.remove(old)
        counters = {k: v for k, v in _figures(old).items() if k not in _GAUGES}
        _add(self._counted.setdefault(old.name, {}), counters)
        logger.info("closed the model that was replaced")

    def _all(self) -> list[Served]:
        return [*self._leaving, *self._current]


def _may_use(key: Key | None, name: str) -> bool:
    return key is None or not key.limits.models or name in key.limits.models


def _figures(served: Served) -> Figures:
    return msgspec.structs.asdict(served.engine.statistics())


def _add(total: Figures, more: Figures) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
