"""Ortolan on a Ray cluster: several engines behind one address, each a replica of Ray Serve.

    serve run ortolan_server.ray:app bundle=/srv/bundle min_replicas=2

Two deployments: ``Door`` takes requests and hands each to an ``EngineReplica``, which holds an
engine and the whole ASGI application. The door exists for the sake of Ray's router: it chooses a
replica by what the call's argument says of the prompt, and a bare ASGI deployment has no argument.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import InvalidParameter
from ortolan_server.app import Application, create_app
from ortolan_server.body import ClientDisconnected, check_length, read_body
from ortolan_server.dialects.registry import dialect_finder, served_dialects
from ortolan_server.errors import ApiError, overloaded, unavailable
from ortolan_server.keys import KeyRing, key_file
from ortolan_server.listening import ListenError
from ortolan_server.models import NamedEngine
from ortolan_server.responses import encode
from ortolan_server.settings import ServerSettings
from ortolan_server.sse import event

logger = logging.getLogger("ortolan.ray")

# Ray's own, by where it lies: its public name, ray.serve.llm, wants vLLM to be installed (2.60).
_PREFIX_ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router"
    ":PrefixCacheAffinityRouter"
)
# What the router compares and keeps of a prompt: bytes of its JSON.
_COMPARED_BYTES = 4096
_KEPT_CHARS = 4_000_000
_HEALTH_PERIOD_S = 2.0
# Settings of ours for what Ray's proxies do.
_PROXYS_OWN = (
    "host",
    "port",
    "unix_socket",
    "tls_certificate",
    "tls_key",
    "max_header_bytes",
    "header_timeout_s",
    "body_timeout_s",
    "idle_timeout_s",
    "stalled_reader_timeout_s",
)


class RayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``serve run`` is told, as words or as a file's ``args``. Raises InvalidParameter.

    ``bundle`` is its folder on every node. ``cpus`` is what Ray sets aside for a replica and its
    number of threads; ``prefix_affinity`` sends prompts that begin alike to one replica while no
    other is idler by half its slots. ``engine`` and ``server`` are fields of EngineOptions and
    ServerSettings, those left out that say how to listen.
    """

    bundle: str
    min_replicas: int = 1
    max_replicas: int = 0
    cpus: int = 1
    prefix_affinity: bool = True
    engine: dict[str, Any] = {}
    server: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name, least in (("min_replicas", 1), ("cpus", 1), ("max_replicas", 0)):
            if getattr(self, name) < least:
                raise InvalidParameter(name, f"must be >= {least}", getattr(self, name))
        if self.max_replicas and self.max_replicas < self.min_replicas:
            raise InvalidParameter("max_replicas", "must be >= min_replicas", self.max_replicas)
        for name in _PROXYS_OWN:
            if name in self.server:
                requirement = "must be left out: Ray's proxies listen, with options of their own"
                raise InvalidParameter(f"server.{name}", requirement, self.server[name])

    def engine_options(self) -> EngineOptions:
        """Return the engine's options; a replica's threads are the CPUs that Ray gives it."""
        return msgspec.convert({"threads": self.cpus, **self.engine}, EngineOptions, strict=False)

    def settings(self) -> ServerSettings:
        """Return the server's settings, without the key that is only in the environment."""
        return msgspec.convert(self.server, ServerSettings, strict=False)


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request on its way to a replica; ``prompt`` is what Ray's router looks at."""

    prompt: str
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Head(msgspec.Struct, frozen=True):
    """The first part of a replica's answer; the others are bytes of the body."""

    status: int
    headers: list[tuple[bytes, bytes]]


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application for ``serve run`` or ``serve deploy``. Raises InvalidParameter."""
    try:
        options = msgspec.convert(dict(arguments), RayOptions, strict=False)
        engine, settings = options.engine_options(), options.settings()
    except msgspec.ValidationError as exc:
        raise InvalidParameter("args", f"must be those of RayOptions ({exc})", None) from exc
    replica = serve.deployment(EngineReplica).options(
        ray_actor_options={"num_cpus": options.cpus},
        max_ongoing_requests=2 * engine.slots,
        max_queued_requests=engine.queue_limit,
        graceful_shutdown_timeout_s=settings.grace_s,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=10.0,
        request_router_config=_router(options, engine),
        **_replicas(options, engine),
    )
    # The door waits for replicas and computes nothing: it may hold every request that there is.
    door = serve.deployment(Door).options(
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=engine.queue_limit + settings.max_connections,
        graceful_shutdown_timeout_s=settings.grace_s,
    )
    built: serve.Application = door.bind(replica.bind(options), settings)
    return built


class EngineReplica:
    """One engine and the application around it, in an actor of its own."""

    def __init__(self, options: RayOptions) -> None:
        settings = _settings_here(options.settings())
        keys = KeyRing(key_file(settings.keys_file), settings.api_key)
        if not (keys.has_keys or settings.no_auth):
            raise ListenError(
                "Ray's proxies can be reached by others, and there are no keys: name a file of "
                "keys with server.keys_file, or say server.no_auth to let everybody in"
            )
        self._settings = settings
        self._engine = Engine.open(options.bundle, options.engine_options())
        self._app: Application | None = None

    def check_health(self) -> None:
        """Raise when the engine has died: Ray then starts another replica."""
        if not self._engine.is_alive:
            raise RuntimeError("the engine's thread has died")

    async def answer(self, request: RoutedRequest) -> AsyncIterator[Head | bytes]:
        """Yield the head of the answer, then its body as it comes."""
        if self._app is None:  # made on the loop that runs it
            self._app = create_app([NamedEngine(self._engine)], self._settings, is_local=False)
        exchange = _Exchange(request)
        running = asyncio.create_task(self._app(exchange.scope(), exchange.receive, exchange.send))
        running.add_done_callback(lambda task: exchange.end())
        try:
            async for part in exchange.parts():
                yield part
        finally:
            exchange.leave()
            await asyncio.shield(running)

    def __del__(self) -> None:
        """Called by Ray when the replica has drained."""
        if self._app is not None:
            self._app.close()
        self._engine.close()


class _Exchange:
    """One request and its answer, between the application and a generator."""

    def __init__(self, request: RoutedRequest) -> None:
        self._request = request
        self._is_read = False
        self._has_left = asyncio.Event()
        self._parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()

    def scope(self) -> dict[str, Any]:
        """Return the ASGI scope."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": "http",
            "path": self._request.path,
            "raw_path": self._request.path.encode(),
            "query_string": self._request.query,
            "root_path": "",
            "headers": self._request.headers,
            "client": None,
            "server": None,
        }

    async def receive(self) -> dict[str, Any]:
        """Return the body, and after it wait until the client leaves."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._parts.put_nowait(Head(message["status"], list(message["headers"])))
        elif message.get("body"):
            self._parts.put_nowait(message["body"])

    def end(self) -> None:
        """Nothing more will be sent."""
        self._parts.put_nowait(None)

    def leave(self) -> None:
        """Nobody reads the answer any more."""
        self._has_left.set()

    async def parts(self) -> AsyncIterator[Head | bytes]:
        """Yield what is sent, what has gathered in one piece: each costs Ray a message."""
        while (part := await self._parts.get()) is not None:
            if isinstance(part, Head):
                yield part
                continue
            gathered = [part]
            while not self._parts.empty():
                following = self._parts.get_nowait()
                if not isinstance(following, bytes):
                    yield b"".join(gathered)
                    return
                gathered.append(following)
            yield b"".join(gathered)


class Door:
    """Takes requests from Ray's proxies and hands them to replicas."""

    def __init__(self, replicas: DeploymentHandle, settings: ServerSettings) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._max_body_bytes = settings.max_body_bytes
        self._dialect_of = dialect_finder(served_dialects(settings.v1_dialect))

    async def __call__(self, request: Request) -> Response:
        """Answer one HTTP request."""
        try:
            return await self._answer(request)
        except ClientDisconnected:
            return Response(status_code=499)  # nobody is there to read it
        except ApiError as exc:
            return self._refusal(request.url.path, exc)

    async def _answer(self, request: Request) -> Response:
        check_length(request.headers, self._max_body_bytes)
        body = await read_body(request.receive, self._max_body_bytes)
        routed = RoutedRequest(
            prompt=compared_text(body),
            method=request.method,
            path=request.url.path,
            query=request.scope["query_string"],
            headers=[(bytes(name), bytes(value)) for name, value in request.scope["headers"]],
            body=body,
        )
        # Ray's prefix router looks at arguments without a name alone; the others go to the idler.
        call = self._replicas.remote
        parts = call(routed) if routed.prompt else call(request=routed)
        try:
            head = await anext(parts)
        except BackPressureError as exc:
            raise overloaded() from exc
        except (RayError, RayServeException, StopAsyncIteration) as exc:
            logger.error("a replica failed before it answered: %s", type(exc).__name__)
            raise unavailable("the replica has failed; try again") from exc
        stream = self._stream(parts, Headers(raw=head.headers), request.url.path)
        response = StreamingResponse(stream, status_code=head.status)
        # The id that the replica was sent comes from Ray's proxy, which adds it to every answer.
        response.raw_headers = [pair for pair in head.headers if pair[0] != b"x-request-id"]
        return response

    async def _stream(self, parts: Any, headers: Headers, path: str) -> AsyncIterator[bytes]:
        """Yield the body; an event stream whose replica dies ends with an error."""
        try:
            async for part in parts:
                yield part
        except (RayError, RayServeException) as exc:
            logger.error("a replica failed while it answered: %s", type(exc).__name__)
            if not headers["content-type"].startswith("text/event-stream"):
                raise
            error = unavailable("the replica has failed; try again")
            yield event(self._dialect_of(path).error(error))
        finally:
            parts.cancel()

    def _refusal(self, path: str, error: ApiError) -> Response:
        dialect = self._dialect_of(path)
        status = dialect.status(error) if path.rstrip("/") == dialect.path else error.status
        return Response(
            encode(dialect.error(error)),
            status_code=status,
            headers=dict(error.headers),
            media_type="application/json",
        )


def compared_text(body: bytes) -> str:
    """Return the beginning of a body's prompt or messages as it is written; "" where is none."""
    try:
        found = _prompt_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""  # the replica says what is wrong with it
    raw = bytes(found.prompt) or bytes(found.messages)
    return raw[:_COMPARED_BYTES].decode("utf-8", "ignore")


class _Prompt(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()


_prompt_decoder = msgspec.json.Decoder(_Prompt)


def _router(options: RayOptions, engine: EngineOptions) -> RequestRouterConfig:
    """Return which replica gets a request: one that saw its beginning, or the idler of two."""
    if not options.prefix_affinity:
        return RequestRouterConfig()
    return RequestRouterConfig(
        request_router_class=_PREFIX_ROUTER,
        request_router_kwargs={
            "imbalanced_threshold": max(1, engine.slots // 2),
            "do_eviction": True,
            "eviction_threshold_chars": _KEPT_CHARS,
            "eviction_target_chars": _KEPT_CHARS * 9 // 10,
        },
    )


def _replicas(options: RayOptions, engine: EngineOptions) -> dict[str, Any]:
    """Return how many replicas there are: as many as asked for, or by what waits and runs."""
    if options.max_replicas <= options.min_replicas:
        return {"num_replicas": options.min_replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            # Beyond its slots sequences wait: then another replica pays.
            target_ongoing_requests=engine.slots,
            upscale_delay_s=10.0,
            downscale_delay_s=300.0,
        )
    }


def _settings_here(settings: ServerSettings) -> ServerSettings:
    """Return the settings of this replica: its own usage log, and the environment's key."""
    changes: dict[str, Any] = {"api_key": os.environ.get("ORTOLAN_API_KEY") or settings.api_key}
    if settings.usage_log is not None:
        log = Path(settings.usage_log)
        replica = serve.get_replica_context().replica_id.unique_id
        changes["usage_log"] = str(log.with_name(f"{log.stem}-{replica}{log.suffix}"))
    return msgspec.structs.replace(settings, **changes)
