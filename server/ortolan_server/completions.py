"""The life of a completion request: read, checked, submitted, answered whole or as a stream."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.types import Receive, Scope, Send

from ortolan_runtime.errors import OrtolanError
from ortolan_runtime.events import Event
from ortolan_runtime.params import GenerationRequest
from ortolan_server import sse
from ortolan_server.auth import key_of
from ortolan_server.body import read_json
from ortolan_server.bridge import Subscription
from ortolan_server.candidates import Candidates
from ortolan_server.dialects.base import Dialect
from ortolan_server.edge import place_of, request_id
from ortolan_server.errors import ApiError, from_runtime, internal, unavailable
from ortolan_server.fields import FieldTable, nearest_name
from ortolan_server.keys import Key
from ortolan_server.models import Models, Served
from ortolan_server.observation import Observation, Observer
from ortolan_server.prompts import Limits, character_count, prepare, read_request
from ortolan_server.reply import Frame, Piece, PromptPart, Usage
from ortolan_server.request import SEED_BITS, CompletionRequest
from ortolan_server.responses import end_stream, send_json, send_part, start_stream, watching

logger = logging.getLogger("ortolan.server")

Events = list[tuple[int, Event]]

# Below these, work is done on the loop: a thread costs more than it saves.
_FEW_CHARACTERS = 2048
_FEW_SCORES = 256

_MAX_NAMES_IN_HEADER = 16
_MAX_NAMES_TOLD = 256


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What every completion endpoint needs, made once when the server starts."""

    models: Models
    observer: Observer
    limits: Limits
    max_body_bytes: int
    heartbeat_s: float
    is_strict: bool
    is_draining: Callable[[], bool]
    clock: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits


class CompletionEndpoint:
    """Answers one dialect's route."""

    def __init__(self, dialect: Dialect, service: Service) -> None:
        self._dialect = dialect
        self._service = service
        self._table: FieldTable = dialect.table(is_strict=service.is_strict)
        self._told: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ApiError before anything is sent."""
        key = key_of(scope)
        observation = self._service.observer.begin(
            request_id=request_id(scope),
            key_id=None if key is None else key.id,
            dialect=self._dialect.name,
        )
        with observation.answering():
            await self._answer(scope, receive, send, observation)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, observation: Observation
    ) -> None:
        service = self._service
        body = await read_json(scope, receive, service.max_body_bytes)
        if service.is_draining():
            raise unavailable("the server is shutting down")
        name = named_model(body)
        served = service.models.choose(name, key_of(scope))
        observation.model = served.name if name in (None, served.name) else ""
        with service.models.answering(served):
            request, ignored = self._read(body, served, key_of(scope))
            observation.is_stream = request.stream
            frame = self._frame(request, served)
            prompts, sequences = await _prepare(frame, served, service.limits)
            subscription = _submit(sequences, served, observation)
            try:
                candidates = Candidates(request, prompts)
                observation.usage = candidates.usage
                reply = _Reply(self._dialect, service, frame, candidates, observation)
                async with watching(receive, subscription.close):
                    answer = reply.stream if request.stream else reply.whole
                    await answer(subscription, send, _headers(frame, ignored))
            finally:
                served.bridge.release(subscription)

    def _read(
        self, body: object, served: Served, key: Key | None
    ) -> tuple[CompletionRequest, tuple[str, ...]]:
        service = self._service
        # A client that is told of a full queue tries again, which must not be in vain for ever.
        choices = min(service.limits.choices, served.engine.most_sequences)
        request, ignored = read_request(
            body,
            self._dialect,
            self._table,
            facts=served.facts,
            names=service.models.names(key),
            limits=msgspec.structs.replace(service.limits, choices=choices),
        )
        self._log_ignored(ignored)
        return request, ignored

    def _frame(self, request: CompletionRequest, served: Served) -> Frame:
        service = self._service
        seed = service.random_bits(SEED_BITS) if request.seed is None else request.seed
        return Frame(
            id=f"{self._dialect.id_prefix}{service.random_bits(96):024x}",
            created_s=service.clock(),
            model=served.name,
            fingerprint=served.fingerprint,
            seed=seed,
            request=request,
            tokenizer=served.facts.tokenizer,
        )

    def _log_ignored(self, ignored: tuple[str, ...]) -> None:
        """Tell of each unknown field once; a client that invents names cannot fill the log."""
        for name in ignored:
            if name in self._told or len(self._told) >= _MAX_NAMES_TOLD:
                continue
            self._told.add(name)
            meant = nearest_name(name, self._table.names())
            hint = f"; `{meant}` is near" if meant else ""
            logger.info("ignored the unknown field `%s`%s", _quoted(name), hint)


class _Reply:
    """One reply being made."""

    def __init__(
        self,
        dialect: Dialect,
        service: Service,
        frame: Frame,
        candidates: Candidates,
        observation: Observation,
    ) -> None:
        self._dialect = dialect
        self._observation = observation
        self._renderer = dialect.renderer
        self._service = service
        self._frame = frame
        self._candidates = candidates

    async def whole(
        self, subscription: Subscription, send: Send, headers: Mapping[str, str]
    ) -> None:
        """Collect everything, then send one object. Raises ApiError."""
        while not self._candidates.have_ended:
            events = await subscription.take()
            if subscription.is_closed:
                return
            self._candidates.collect(events)
        choices = self._candidates.choices()
        scores = sum(len(choice.tokens) + len(choice.prompt.scores) for choice in choices)
        usage = self._candidates.usage()
        if scores <= _FEW_SCORES:
            document = self._renderer.reply(self._frame, choices, usage)
        else:
            document = await asyncio.to_thread(self._renderer.reply, self._frame, choices, usage)
        await send_json(send, document, headers=headers)
        self._observation.delivered_tokens = usage.completion_tokens
        self._observation.complete()

    async def stream(
        self, subscription: Subscription, send: Send, headers: Mapping[str, str]
    ) -> None:
        """Send each event as it comes. A failure after the first byte is an event too."""
        await start_stream(send, {**headers, **sse.HEADERS})
        try:
            await self._send_pieces(subscription, send)
        except ApiError as error:
            await self._end_with(error, send)
        except Exception as exc:
            id = self._observation.request_id
            # The message may hold a prompt, so only the exception's type and place are logged.
            logger.error("request %s failed while streaming: %s", id, place_of(exc))
            await self._end_with(internal(id), send)

    async def _end_with(self, error: ApiError, send: Send) -> None:
        self._observation.fail(error)
        await end_stream(send, sse.event(self._dialect.error(error)))

    async def _send_pieces(self, subscription: Subscription, send: Send) -> None:
        while not self._candidates.have_ended:
            events = await subscription.take(self._service.heartbeat_s)
            if subscription.is_closed:
                return
            raw, error = await self._rendered(events)
            if raw or not events:
                await send_part(send, raw or sse.HEARTBEAT)
            self._observation.delivered_tokens += sum(event.new_tokens for _, event in events)
            if error is not None:
                raise error
        await end_stream(send, self._usage_event() + sse.DONE)
        self._observation.complete()

    async def _rendered(self, events: Events) -> tuple[bytes, ApiError | None]:
        """Return what ``events`` are on the wire up to the first failure, and that failure."""
        if sum(len(event.prompt) for _, event in events) <= _FEW_SCORES:
            return self._render(events)
        return await asyncio.to_thread(self._render, events)

    def _render(self, events: Events) -> tuple[bytes, ApiError | None]:
        chunks: list[dict[str, Any]] = []
        for position, event in events:
            try:
                piece = self._candidates.piece(position, event)
            except ApiError as error:
                return sse.events(chunks), error
            if piece is not None:
                chunks.append(self._chunk(piece))
        return sse.events(chunks), None

    def _chunk(self, piece: Piece) -> dict[str, Any]:
        is_last = piece.finish is not None and self._candidates.have_ended
        needs_usage = is_last or self._frame.request.continuous_usage
        usage = self._candidates.usage() if needs_usage else Usage()
        return self._renderer.chunk(self._frame, piece, usage, is_last=is_last)

    def _usage_event(self) -> bytes:
        if not self._frame.request.include_usage:
            return b""
        document = self._renderer.usage_chunk(self._frame, self._candidates.usage())
        return b"" if document is None else sse.event(document)


async def _prepare(
    frame: Frame, served: Served, limits: Limits
) -> tuple[list[PromptPart], list[GenerationRequest]]:
    work = partial(prepare, frame.request, seed=frame.seed, facts=served.facts, limits=limits)
    try:
        if character_count(frame.request) <= _FEW_CHARACTERS:
            return work()
        return await asyncio.to_thread(work)
    except OrtolanError as error:
        raise from_runtime(error) from error


def _submit(
    sequences: list[GenerationRequest], served: Served, observation: Observation
) -> Subscription:
    try:
        subscription = served.bridge.subscribe(sequences, observation)
    except OrtolanError as error:
        raise from_runtime(error) from error
    observation.submitted()
    return subscription


def named_model(body: object) -> object:
    """Return what a body gives as its model, whatever it is."""
    return body.get("model") if isinstance(body, dict) else None


def _headers(frame: Frame, ignored: tuple[str, ...]) -> dict[str, str]:
    headers = {"x-ortolan-seed": str(frame.seed)}
    if ignored:
        names = ignored[:_MAX_NAMES_IN_HEADER]
        headers["x-ortolan-ignored"] = ", ".join(_quoted(name) for name in names)
    return headers


def _quoted(name: str) -> str:
    return quote(name[:64], errors="replace")
