"""The model that is served, and how another takes its place while requests run.

A new bundle is loaded beside the running one. From then on new requests are answered by it; those
that had come before end with the model that they began with, which is closed after the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from ortolan_runtime.bundle import Bundle
from ortolan_runtime.errors import OrtolanError
from ortolan_runtime.stepper import Statistics
from ortolan_runtime.text import Tokenizer
from ortolan_server.bridge import SequenceEngine
from ortolan_server.completions import Service, read_json
from ortolan_server.errors import ApiError, invalid_value

logger = logging.getLogger("ortolan.server")

_POLL_S = 0.1


class ServedEngine(SequenceEngine, Protocol):
    """What of the engine the server needs."""

    bundle: Bundle
    tokenizer: Tokenizer
    context_length: int
    liberties: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        """Return whether the step thread runs."""

    def statistics(self) -> Statistics:
        """Return counters and gauges, as of the last step."""

    def close(self) -> None:
        """Cancel what runs and stop the thread; idempotent."""


Load = Callable[[str], ServedEngine]


@dataclass(slots=True, eq=False)
class Served:
    """One model with the application that answers for it."""

    engine: ServedEngine
    service: Service
    app: ASGIApp
    in_flight: int = 0


class Models:
    """The application of the model that is served now; ``serve`` before the first request."""

    def __init__(self, load: Load | None) -> None:
        self._load = load
        self._make: Callable[[ServedEngine], Served]
        self._all: list[Served] = []
        self._loading = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    def serve(self, engine: ServedEngine, make: Callable[[ServedEngine], Served]) -> None:
        """Serve the first model; ``make`` makes the application of any. Raises InvalidParameter."""
        self._make = make
        self._all.append(make(engine))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the model of this moment, to its end."""
        served = self.current
        served.in_flight += 1
        try:
            await served.app(scope, receive, send)
        finally:
            served.in_flight -= 1

    @property
    def current(self) -> Served:
        """Return the model that new requests get."""
        return self._all[-1]

    @property
    def name(self) -> str:
        """Return its name."""
        return self.current.service.facts.model

    @property
    def can_load(self) -> bool:
        """Return whether another bundle may take the model's place."""
        return self._load is not None

    @property
    def are_alive(self) -> bool:
        """Return whether every engine that has requests runs."""
        return all(served.engine.is_alive for served in self._all)

    def statistics(self) -> Statistics:
        """Return those of the model that new requests get; its counters begin at 0."""
        return self.current.engine.statistics()

    def fail_all(self, error: ApiError) -> None:
        """End every request that is not answered yet with ``error``."""
        for served in self._all:
            served.service.bridge.fail_all(error)

    def close(self) -> None:
        """Account for every request, and close what was loaded here."""
        for task in self._retiring:
            task.cancel()
        for served in self._all:
            served.service.observer.finish_all()
            served.engine.close()

    async def replace(self, bundle: str) -> None:
        """Load a bundle and serve it. Raises ApiError; then the model stays as it was."""
        if self._load is None:
            raise ApiError(404, "this server loads no other bundles", code="not_found")
        if self._loading.locked():
            raise ApiError(409, "another bundle is being loaded; try again later", code="conflict")
        async with self._loading:
            try:
                engine = await asyncio.to_thread(self._load, bundle)
                served = self._make(engine)
            except OrtolanError as exc:
                raise invalid_value("bundle", str(exc)) from exc
        old = self.current
        self._all.append(served)
        logger.info("serving %s in place of %s", self.name, old.service.facts.model)
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, old: Served) -> None:
        """Close a model after its last request."""
        while old.in_flight:
            await asyncio.sleep(_POLL_S)
        # Out of the list first: an engine there that does not run ends the process.
        self._all.remove(old)
        await asyncio.to_thread(old.engine.close)
        old.service.observer.finish_all()
        logger.info("closed the model that was replaced")


class ReplaceModel:
    """``POST /admin/models`` with ``{"bundle": PATH}``: the bundle takes the model's place."""

    def __init__(self, models: Models, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the name of the new model when it is served. Raises ApiError."""
        body = await read_json(scope, receive, self._max_body_bytes)
        bundle = body.get("bundle") if isinstance(body, dict) else None
        if not isinstance(bundle, str) or not bundle:
            raise invalid_value("bundle", "`bundle` must be the path of a bundle on the server")
        replaced = self._models.name
        await self._models.replace(bundle)
        return {"id": self._models.name, "object": "model", "replaced": replaced}
