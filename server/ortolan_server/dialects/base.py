"""What a dialect is, and how the fields of a completions dialect become the canonical request.

A dialect is declared data plus a renderer. Adding one is a module and a line in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from ortolan_server.errors import ApiError, invalid_value
from ortolan_server.fields import Field, FieldTable, Values
from ortolan_server.kinds import Facts, Schema
from ortolan_server.reply import Frame, Piece, Usage
from ortolan_server.request import CompletionRequest

Document = dict[str, Any]


class Renderer(Protocol):
    """How a dialect writes its replies; each method returns what becomes one JSON document."""

    def reply(self, frame: Frame, choices: list[Piece], usage: Usage) -> Document:
        """Return the object of a reply that does not stream."""

    def chunk(self, frame: Frame, piece: Piece, usage: Usage, *, is_last: bool) -> Document:
        """Return one chunk; ``usage`` counts up to here, ``is_last`` is the reply's last piece."""

    def usage_chunk(self, frame: Frame, usage: Usage) -> Document | None:
        """Return the chunk with the whole usage, None where the last chunk has it."""

    def reply_schema(self) -> Schema:
        """Return the JSON Schema of ``reply``."""


class RequestMaker(Protocol):
    """Turns checked values into the canonical request, with the rules between fields."""

    def __call__(self, values: Values, dialect: Dialect, facts: Facts) -> CompletionRequest:
        """Return the canonical request. Raises ApiError."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's API: where it is, what it takes, how it answers.

    ``base_path`` and ``endpoint`` make the route. ``statuses`` maps an error's code to another
    status than the common one; ``omits_null_error_fields`` leaves out param and code when null.
    """

    name: str
    title: str
    base_path: str
    endpoint: str = "/completions"
    id_prefix: str = "cmpl-"
    fields: tuple[Field, ...]
    renderer: Renderer
    make_request: RequestMaker
    statuses: Mapping[str, int] = MappingProxyType({})
    omits_null_error_fields: bool = False
    stream_options_need_stream: bool = True

    @property
    def path(self) -> str:
        """Return the route's path."""
        return self.base_path + self.endpoint

    def table(self, *, is_strict: bool) -> FieldTable:
        """Return the table that bodies are read with."""
        return FieldTable(dialect=self.name, fields=self.fields, is_strict=is_strict)

    def status(self, error: ApiError) -> int:
        """Return the HTTP status of ``error`` in this dialect."""
        return self.statuses.get(error.code or "", error.status)

    def error(self, error: ApiError) -> Document:
        """Return the body of ``error`` in this dialect."""
        body: Document = {"message": error.message, "type": error.type}
        for name, value in (("param", error.param), ("code", error.code)):
            if value is not None or not self.omits_null_error_fields:
                body[name] = value
        return {"error": body}


def completion_request(values: Values, dialect: Dialect, facts: Facts) -> CompletionRequest:
    """Return the canonical request of a completions dialect. Raises ApiError."""
    named = dict(values.by_name)
    named.pop("user")
    named.pop("suffix")
    named |= stream_options(named, dialect)
    named["best_of"] = best_of(named, values)
    named["has_max_tokens"] = "max_tokens" in values.given
    check_min_tokens(named)
    return CompletionRequest(**named)


def stream_options(named: dict[str, Any], dialect: Dialect) -> dict[str, bool]:
    """Take the stream's options out of ``named``; return them as flags. Raises ApiError."""
    options: tuple[bool, bool] | None = named.pop("stream_options")
    if options is not None and dialect.stream_options_need_stream and not named["stream"]:
        raise invalid_value("stream_options", "`stream_options` needs `stream` to be true")
    include_usage, continuous_usage = options or (False, False)
    return {"include_usage": include_usage, "continuous_usage": continuous_usage}


def check_min_tokens(named: Mapping[str, Any]) -> None:
    """Refuse a least number of tokens above the most. Raises ApiError."""
    least, most = named["min_tokens"], named["max_tokens"]
    if most is not None and least > most:
        raise invalid_value(
            "min_tokens", f"`min_tokens` ({least}) must be <= `max_tokens` ({most})"
        )


def best_of(named: Mapping[str, Any], values: Values) -> int:
    """Return how many candidates to make of each prompt. Raises ApiError."""
    n: int = named["n"]
    candidates: int = named["best_of"] if "best_of" in values.given else n
    if candidates < n:
        raise invalid_value("best_of", f"`best_of` ({candidates}) must be >= `n` ({n})")
    if candidates > n and named["stream"]:
        raise invalid_value(
            "best_of", f"`best_of` ({candidates}) must equal `n` ({n}) when `stream` is true"
        )
    return candidates
