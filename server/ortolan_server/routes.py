"""The small routes: health, models, version, and the tokenizer over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from ortolan_runtime.bundle import Bundle
from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.version import __version__
from ortolan_server.completions import Service, read_json
from ortolan_server.dialects.common import MODEL
from ortolan_server.errors import ApiError, from_runtime, model_not_found
from ortolan_server.fields import Field, FieldTable, read_values
from ortolan_server.inputs import TokenIds
from ortolan_server.kinds import Flag, Text
from ortolan_server.responses import send_json

Document = dict[str, Any]
Answer = Callable[[Scope, Receive], Awaitable[Document]]

_OPTIONAL_MODEL = msgspec.structs.replace(MODEL, required=False)
TOKENIZE_FIELDS = (
    _OPTIONAL_MODEL,
    Field(name="prompt", kind=Text(maximum=1 << 30), required=True, doc="The text to encode."),
    Field(name="add_special_tokens", kind=Flag(), default=True, doc="Put the BOS in front."),
    Field(name="return_token_strs", kind=Flag(), default=False, doc="Return each token's text."),
)
DETOKENIZE_FIELDS = (
    _OPTIONAL_MODEL,
    Field(name="tokens", kind=TokenIds(), required=True, doc="The ids to decode."),
)


class Route:
    """Answers with one JSON document."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ApiError."""
        await send_json(send, await self._answer(scope, receive))


class ModelRoutes:
    """The models list, which clients use to find out what is served."""

    def __init__(self, service: Service, created_s: float) -> None:
        self._card: Document = {
            "id": service.facts.model,
            "object": "model",
            "created": int(created_s),
            "owned_by": "ortolan",
            "max_model_len": service.facts.context_length,
        }

    async def list(self, scope: Scope, receive: Receive) -> Document:
        """Return all served models."""
        return {"object": "list", "data": [self._card]}

    async def retrieve(self, scope: Scope, receive: Receive) -> Document:
        """Return one model. Raises ApiError."""
        wanted: str = scope["path_params"]["model"]
        if wanted != self._card["id"]:
            raise model_not_found(wanted, self._card["id"])
        return self._card


class TokenizerRoutes:
    """The tokenizer over HTTP, by vLLM's names: evaluation tools count tokens with it."""

    def __init__(self, service: Service, bundle: Bundle) -> None:
        self._service = service
        self._tokenizer = service.facts.tokenizer
        self._manifest = bundle.manifest
        self._chat_template = bundle.chat_template
        self._tokenize = FieldTable(
            dialect="tokenize", fields=TOKENIZE_FIELDS, is_strict=service.is_strict
        )
        self._detokenize = FieldTable(
            dialect="detokenize", fields=DETOKENIZE_FIELDS, is_strict=service.is_strict
        )

    async def tokenize(self, scope: Scope, receive: Receive) -> Document:
        """Return the ids of a text. Raises ApiError."""
        values = await self._values(scope, receive, self._tokenize)
        try:
            ids = await asyncio.to_thread(
                self._tokenizer.encode,
                values["prompt"],
                add_special_tokens=values["add_special_tokens"],
            )
        except InvalidParameter as error:
            raise from_runtime(error) from error
        texts = [self._tokenizer.token_text(id) for id in ids]
        return {
            "count": len(ids),
            "max_model_len": self._service.facts.context_length,
            "tokens": ids,
            "token_strs": texts if values["return_token_strs"] else None,
        }

    async def detokenize(self, scope: Scope, receive: Receive) -> Document:
        """Return the text of ids. Raises ApiError."""
        ids = (await self._values(scope, receive, self._detokenize))["tokens"]
        text = await asyncio.to_thread(self._tokenizer.decode, ids, skip_special_tokens=False)
        return {"prompt": text}

    async def info(self, scope: Scope, receive: Receive) -> Document:
        """Return what a client needs to know about the tokenizer."""
        eos = self._manifest.eos_token_ids
        return {
            "tokenizer_class": "TokenizersBackend",
            "bos_token": self._text_of(self._manifest.bos_token_id),
            "eos_token": self._text_of(eos[0] if eos else None),
            "unk_token": None,
            "pad_token": None,
            "chat_template": self._chat_template,
            "vocab_size": self._tokenizer.vocab_size,
            "model_max_length": self._service.facts.context_length,
        }

    async def _values(self, scope: Scope, receive: Receive, table: FieldTable) -> Document:
        body = await read_json(scope, receive, self._service.max_body_bytes)
        values = read_values(body, table, self._service.facts).by_name
        if values["model"] not in (None, self._service.facts.model):
            raise model_not_found(values["model"], self._service.facts.model)
        return values

    def _text_of(self, id: int | None) -> str | None:
        return None if id is None else self._tokenizer.token_text(id)


class HealthRoutes:
    """Whether the process works (health) and whether it takes new requests (ready)."""

    def __init__(self, is_alive: Callable[[], bool], is_draining: Callable[[], bool]) -> None:
        self._is_alive = is_alive
        self._is_draining = is_draining

    async def health(self, scope: Scope, receive: Receive) -> Document:
        """Return that the engine runs. Raises ApiError."""
        if not self._is_alive():
            raise ApiError(503, "the engine has failed", type="server_error", code="unavailable")
        return {"status": "ok"}

    async def ready(self, scope: Scope, receive: Receive) -> Document:
        """Return that requests are taken. Raises ApiError."""
        await self.health(scope, receive)
        if self._is_draining():
            raise ApiError(
                503, "the server is shutting down", type="server_error", code="unavailable"
            )
        return {"status": "ready"}


def fixed(document: Document) -> Answer:
    """Return an answer that is always ``document``."""

    async def answer(scope: Scope, receive: Receive) -> Document:
        return document

    return answer


async def version(scope: Scope, receive: Receive) -> Document:
    """Return the server's version."""
    return {"version": __version__}
