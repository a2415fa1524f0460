"""Puts the application together: routes for each dialect, and the layers around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ortolan_server import admin, openapi
from ortolan_server.auth import Authentication, OwnNames
from ortolan_server.bridge import EngineBridge
from ortolan_server.bundles import check_only_name
from ortolan_server.completions import CompletionEndpoint, Service
from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.registry import dialect_finder, served_dialects
from ortolan_server.edge import Errors, RequestIds
from ortolan_server.facts import facts_of, fingerprint_of
from ortolan_server.keys import KeyRing, key_file
from ortolan_server.kinds import Schema
from ortolan_server.logs import log_completion
from ortolan_server.metrics import Measured, Metrics, MetricsRoute
from ortolan_server.models import Load, Models, NamedEngine, Served
from ortolan_server.observation import Observer
from ortolan_server.page import ASSETS, ROOT, Page
from ortolan_server.prompts import limits_of
from ortolan_server.ratelimit import RateLimits
from ortolan_server.routes import (
    HealthRoutes,
    ModelRoutes,
    Route,
    TokenizerRoutes,
    version,
)
from ortolan_server.settings import ServerSettings
from ortolan_server.usage_log import UsageLog

logger = logging.getLogger("ortolan.server")

# What a page of another origin may read of an answer.
_EXPOSED_HEADERS = [
    "x-request-id",
    "x-ortolan-seed",
    "x-ortolan-ignored",
    "retry-after",
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
]


@dataclass(slots=True)
class Lifecycle:
    """Where the server is between its start and its end; the one state that handlers share."""

    is_draining: bool = False
    in_flight: int = 0


class Application:
    """The ASGI application, with what its host needs to end it."""

    def __init__(
        self,
        app: ASGIApp,
        models: Models,
        lifecycle: Lifecycle,
        observer: Observer,
        usage_log: UsageLog | None,
    ) -> None:
        self._app = app
        self._observer = observer
        self._usage_log = usage_log
        self.models = models
        self.lifecycle = lifecycle

    def close(self) -> None:
        """Account for what is not over; nothing will come any more."""
        self._observer.finish_all()
        self.models.close()
        if self._usage_log is not None:
            self._usage_log.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; there is nothing else to speak."""
        if scope["type"] != "http":
            return
        self.lifecycle.in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self.lifecycle.in_flight -= 1


def create_app(
    engines: Sequence[NamedEngine],
    settings: ServerSettings,
    *,
    is_local: bool = True,
    load: Load | None = None,
) -> Application:
    """Return the application; call on the event loop that will run it.

    ``is_local`` tells that only this machine can reach it; ``load`` opens a bundle that shall take
    a model's place. Raises InvalidParameter, KeyFileError and UsageLogError.
    """
    lifecycle = Lifecycle()
    models = Models(_named(engines, settings), _served, load)
    metrics = Metrics(models.statistics, lambda: lifecycle.in_flight)
    keys = KeyRing(key_file(settings.keys_file), settings.api_key)
    dialects = served_dialects(settings.v1_dialect)
    usage_log = _usage_log(settings)
    page = Page() if settings.page else None
    observer = Observer(metrics.token_times)
    service = _service(models, observer, settings, lifecycle)
    routes = [
        *_dialect_routes(dialects, service),
        *_document_routes(dialects, models, settings, keys),
        *_tokenizer_routes(TokenizerRoutes(service)),
        *_process_routes(models, metrics, lifecycle, settings),
        *_page_routes(page),
    ]
    router = Router(routes, redirect_slashes=False)
    limits = RateLimits(router, {dialect.path: dialect.name for dialect in dialects}, observer)
    for listener in (metrics.count, log_completion, limits.charge):
        observer.listen(listener)
    if usage_log is not None:
        observer.listen(usage_log.put)
    names = settings.allowed_hosts if is_local or settings.allowed_hosts else None
    open_paths = frozenset() if page is None else page.paths
    app = _layers(_admitting(limits, keys, names, dialects, open_paths), dialects, settings)
    paths = {route.path for route in routes if isinstance(route, StarletteRoute)}
    app = RequestIds(Measured(app, metrics, paths))
    return Application(app, models, lifecycle, observer, usage_log)


def _named(engines: Sequence[NamedEngine], settings: ServerSettings) -> Sequence[NamedEngine]:
    """Return the engines, the only one under the name that the settings give it."""
    check_only_name(settings.model_name, engines)
    if settings.model_name is None:
        return engines
    return [NamedEngine(engines[0].engine, settings.model_name)]


def _served(named: NamedEngine) -> Served:
    engine = named.engine
    return Served(
        engine=engine,
        bridge=EngineBridge(engine, asyncio.get_running_loop()),
        facts=facts_of(engine, named.name),
        fingerprint=fingerprint_of(engine.bundle.manifest, engine.device, engine.liberties),
        is_named=named.name is not None,
    )


def _service(
    models: Models, observer: Observer, settings: ServerSettings, lifecycle: Lifecycle
) -> Service:
    return Service(
        models=models,
        observer=observer,
        limits=limits_of(settings),
        max_body_bytes=settings.max_body_bytes,
        heartbeat_s=settings.heartbeat_s,
        is_strict=settings.strict,
        is_draining=lambda: lifecycle.is_draining,
    )


def _usage_log(settings: ServerSettings) -> UsageLog | None:
    if settings.usage_log is None:
        return None
    return UsageLog(
        Path(settings.usage_log),
        max_bytes=settings.usage_log_bytes,
        kept=settings.usage_log_files,
    )


def _dialect_routes(dialects: Iterable[Dialect], service: Service) -> list[BaseRoute]:
    models = ModelRoutes(service.models)
    routes: list[BaseRoute] = []
    for dialect in dialects:
        base = dialect.base_path
        routes += _both(dialect.path, CompletionEndpoint(dialect, service), "POST")
        routes += _both(f"{base}/models", Route(models.list), "GET")
        routes += _both(f"{base}/models/{{model:path}}", Route(models.retrieve), "GET")
    return routes


def _document_routes(
    dialects: tuple[Dialect, ...], models: Models, settings: ServerSettings, keys: KeyRing
) -> list[BaseRoute]:
    """Return ``/openapi.json`` for everything and ``/openapi/{dialect}.json`` for each dialect."""

    def route(title: str, described: Iterable[Dialect], more: dict[str, Schema]) -> Route:
        # Made when asked for: models and keys change while the server runs.
        async def answer(scope: Scope, receive: Receive) -> dict[str, Any]:
            return openapi.document(
                described,
                models.common_facts(),
                title=title,
                is_strict=settings.strict,
                has_key=keys.has_keys,
                more=more,
            )

        return Route(answer)

    more = openapi.admin_paths(models.common_facts()) if models.can_load else {}
    routes = _both("/openapi.json", route("Ortolan", dialects, more), "GET")
    for dialect in dialects:
        title = f"Ortolan, {dialect.title} dialect"
        routes += _both(f"/openapi/{dialect.name}.json", route(title, [dialect], {}), "GET")
    return routes


def _tokenizer_routes(tokenizer: TokenizerRoutes) -> list[BaseRoute]:
    return [
        *_both("/tokenize", Route(tokenizer.tokenize), "POST"),
        *_both("/detokenize", Route(tokenizer.detokenize), "POST"),
        *_both("/tokenizer_info", Route(tokenizer.info), "GET"),
    ]


def _process_routes(
    models: Models, metrics: Metrics, lifecycle: Lifecycle, settings: ServerSettings
) -> list[BaseRoute]:
    """Return the routes that tell of the process, or change what it serves."""
    health = HealthRoutes(lambda: models.are_alive, lambda: lifecycle.is_draining)
    routes = [
        *_both("/health", Route(health.health), "GET"),
        *_both("/ready", Route(health.ready), "GET"),
        *_both("/version", Route(version), "GET"),
        *_both("/metrics", MetricsRoute(metrics), "GET"),
    ]
    if models.can_load:
        replace = admin.ReplaceModel(models, settings.max_body_bytes)
        routes += _both(admin.PATH, Route(replace.answer), "POST")
    return routes


def _page_routes(page: Page | None) -> list[BaseRoute]:
    if page is None:
        return []
    # One route for all files: each path of a route is a series in the metrics.
    paths = (ROOT, ASSETS + "{name}")
    return [StarletteRoute(path, page, methods=["GET"]) for path in paths]


def _both(path: str, endpoint: ASGIApp, method: str) -> list[BaseRoute]:
    """Return the route with and without a slash at its end: no client is redirected."""
    paths = [path] if path.endswith("}") else [path, f"{path}/"]
    return [StarletteRoute(path, endpoint, methods=[method]) for path in paths]


def _admitting(
    app: ASGIApp,
    keys: KeyRing,
    names: tuple[str, ...] | None,
    dialects: tuple[Dialect, ...],
    open_paths: frozenset[str],
) -> ASGIApp:
    """Return ``app`` for those with a key alone, or for those who know one of ``names``.

    ``open_paths`` want no key.
    """
    api_only = (f"{d.base_path}/" for d in dialects if d.name == "second")
    app = Authentication(app, keys, api_only, open_paths)
    return app if names is None else OwnNames(app, keys, names)


def _layers(app: ASGIApp, dialects: tuple[Dialect, ...], settings: ServerSettings) -> ASGIApp:
    """Return ``app`` within the layers that answer for failures and to browsers."""
    app = Errors(_Raising(app), dialect_finder(dialects))
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # who listed a public origin means this machine's network
            expose_headers=_EXPOSED_HEADERS,
        )
    return app


class _Raising:
    """Makes the router raise what it would answer in plain text: it does so inside an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._app(scope, receive, send)
