"""The small routes: health, models, version, and the tokenizer over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.text import Tokenizer
from ortolan_runtime.version import __version__
from ortolan_server.auth import key_of
from ortolan_server.body import read_json
from ortolan_server.completions import Service, named_model
from ortolan_server.dialects.common import MODEL
from ortolan_server.errors import from_runtime, model_not_found, unavailable
from ortolan_server.fields import Field, FieldTable, read_values
from ortolan_server.inputs import TokenIds
from ortolan_server.kinds import Flag, Text
from ortolan_server.models import Models, Served
from ortolan_server.responses import send_json

Document = dict[str, Any]
Documents = list[Document]
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
    """The models list, which clients use to find out what is served to them."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def list(self, scope: Scope, receive: Receive) -> Document:
        """Return all models that the request's key may use."""
        return {"object": "list", "data": self._cards(scope)}

    async def retrieve(self, scope: Scope, receive: Receive) -> Document:
        """Return one model. Raises ApiError."""
        wanted: str = scope["path_params"]["model"]
        cards = self._cards(scope)
        for card in cards:
            if card["id"] == wanted:
                return card
        raise model_not_found(wanted, (card["id"] for card in cards))

    def _cards(self, scope: Scope) -> Documents:
        names = self._models.names(key_of(scope))
        return [_card(served) for served in self._models.current if served.name in names]


def _card(served: Served) -> Document:
    return {
        "id": served.name,
        "object": "model",
        "created": int(served.created_s),
        "owned_by": "ortolan",
        "max_model_len": served.facts.context_length,
    }


class TokenizerRoutes:
    """The tokenizers over HTTP, by vLLM's names: evaluation tools count tokens with them."""

    def __init__(self, service: Service) -> None:
        self._models = service.models
        self._max_body_bytes = service.max_body_bytes
        self._tokenize = FieldTable(
            dialect="tokenize", fields=TOKENIZE_FIELDS, is_strict=service.is_strict
        )
        self._detokenize = FieldTable(
            dialect="detokenize", fields=DETOKENIZE_FIELDS, is_strict=service.is_strict
        )

    async def tokenize(self, scope: Scope, receive: Receive) -> Document:
        """Return the ids of a text. Raises ApiError."""
        served, values = await self._read(scope, receive, self._tokenize)
        tokenizer = served.facts.tokenizer
        try:
            ids, texts = await asyncio.to_thread(_encoded, values, tokenizer)
        except InvalidParameter as error:
            raise from_runtime(error) from error
        return {
            "count": len(ids),
            "max_model_len": served.facts.context_length,
            "tokens": ids,
            "token_strs": texts,
        }

    async def detokenize(self, scope: Scope, receive: Receive) -> Document:
        """Return the text of ids. Raises ApiError."""
        served, values = await self._read(scope, receive, self._detokenize)
        decode = served.facts.tokenizer.decode
        text = await asyncio.to_thread(decode, values["tokens"], skip_special_tokens=False)
        return {"prompt": text}

    async def info(self, scope: Scope, receive: Receive) -> Document:
        """Return what a client needs to know about the tokenizer of `?model=`. Raises ApiError."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        served = self._choose(query.get("model", [None])[0], scope)
        manifest, tokenizer = served.engine.bundle.manifest, served.facts.tokenizer
        eos = manifest.eos_token_ids
        return {
            "tokenizer_class": "TokenizersBackend",
            "bos_token": _text_of(manifest.bos_token_id, tokenizer),
            "eos_token": _text_of(eos[0] if eos else None, tokenizer),
            "unk_token": None,
            "pad_token": None,
            "chat_template": served.engine.bundle.chat_template,
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": served.facts.context_length,
        }

    async def _read(
        self, scope: Scope, receive: Receive, table: FieldTable
    ) -> tuple[Served, Document]:
        body = await read_json(scope, receive, self._max_body_bytes)
        facts = self._models.choose(named_model(body), key_of(scope)).facts
        values = read_values(body, table, facts).by_name
        return self._choose(values["model"], scope), values

    def _choose(self, name: str | None, scope: Scope) -> Served:
        """Return the model of that name, or the first. Raises ApiError."""
        key = key_of(scope)
        served = self._models.choose(name, key)
        if name not in (None, served.name):
            raise model_not_found(name, self._models.names(key))
        return served


def _encoded(values: Document, tokenizer: Tokenizer) -> tuple[list[int], list[str] | None]:
    """Return the ids of a text, with the text of each where that is wanted."""
    ids = tokenizer.encode(values["prompt"], add_special_tokens=values["add_special_tokens"])
    wants_texts = values["return_token_strs"]
    return ids, [tokenizer.token_text(id) for id in ids] if wants_texts else None


def _text_of(id: int | None, tokenizer: Tokenizer) -> str | None:
    return None if id is None else tokenizer.token_text(id)


class HealthRoutes:
    """Whether the process works (health) and whether it takes new requests (ready)."""

    def __init__(self, is_alive: Callable[[], bool], is_draining: Callable[[], bool]) -> None:
        self._is_alive = is_alive
        self._is_draining = is_draining

    async def health(self, scope: Scope, receive: Receive) -> Document:
        """Return that the engine runs. Raises ApiError."""
        if not self._is_alive():
            raise unavailable("the engine has failed")
        return {"status": "ok"}

    async def ready(self, scope: Scope, receive: Receive) -> Document:
        """Return that requests are taken. Raises ApiError."""
        await self.health(scope, receive)
        if self._is_draining():
            raise unavailable("the server is shutting down")
        return {"status": "ready"}


async def version(scope: Scope, receive: Receive) -> Document:
    """Return the server's version."""
    return {"version": __version__}
