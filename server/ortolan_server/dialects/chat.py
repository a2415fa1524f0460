"""Chat completions: messages through the bundle's template, then the same engine as all others."""

from __future__ import annotations

from typing import Any

import msgspec

from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.events import TokenScore
from ortolan_runtime.params import MAX_LOGPROBS
from ortolan_server.dialects import shapes
from ortolan_server.dialects.base import Dialect, Document, check_min_tokens, stream_options
from ortolan_server.dialects.common import (
    EXTENSIONS,
    MAX_TOKENS,
    MODEL,
    SAMPLING,
    STOP,
    STREAMING,
    N,
)
from ortolan_server.dialects.openai import FINISH_REASONS, OpenAIRenderer
from ortolan_server.errors import invalid_value
from ortolan_server.fields import Field, Values
from ortolan_server.inputs import Messages, TextFormat
from ortolan_server.kinds import Facts, Flag, Integer, Text, Unsupported
from ortolan_server.logprobs import shown_logprob, token_name
from ortolan_server.reply import Frame, Piece
from ortolan_server.request import CompletionRequest


class ChatRenderer(OpenAIRenderer):
    """Writes `chat.completion` objects and chunks."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def choice(self, frame: Frame, piece: Piece) -> Document:
        """Return one choice with its whole message."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": piece.index, "message": message, **self._rest(frame, piece)}

    def part(self, frame: Frame, piece: Piece) -> Document:
        """Return the part of a choice that a chunk carries; the first one names the role."""
        delta: Document = {"role": "assistant"} if piece.is_first else {}
        if piece.text or piece.is_first:
            delta["content"] = piece.text
        return {"index": piece.index, "delta": delta, **self._rest(frame, piece)}

    def reply_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of ``reply``."""
        return shapes.chat_schema()

    def _rest(self, frame: Frame, piece: Piece) -> Document:
        return {
            "logprobs": _logprobs(frame, piece),
            "finish_reason": None if piece.finish is None else FINISH_REASONS[piece.finish],
            **self.extensions(frame, piece),
        }


def _logprobs(frame: Frame, piece: Piece) -> Document | None:
    count = frame.request.logprobs
    if count is None:
        return None
    return {"content": [_entry(score, count, frame) for score in piece.tokens], "refusal": None}


def _entry(score: TokenScore, count: int, frame: Frame) -> Document:
    tops = [
        _named(frame.tokenizer.token_text(id), id, logprob, frame)
        for id, logprob in score.top[:count]
    ]
    name = token_name(score, frame.tokenizer)
    return _named(name, score.id, score.logprob or 0.0, frame) | {"top_logprobs": tops}


def _named(name: str, id: int, logprob: float, frame: Frame) -> Document:
    raw = frame.tokenizer.token_bytes(id)
    return {
        "token": name,
        "logprob": shown_logprob(logprob),
        "bytes": None if raw is None else list(raw),
    }


def chat_request(values: Values, dialect: Dialect, facts: Facts) -> CompletionRequest:
    """Return the canonical request of a chat. Raises ApiError."""
    named = dict(values.by_name)
    for unused in ("user", "tools", "functions", "response_format"):
        named.pop(unused)
    prompt = _rendered(named.pop("messages"), facts)
    check_min_tokens(named)
    named |= stream_options(named, dialect)
    named["logprobs"] = _wanted_logprobs(named)
    return CompletionRequest(
        prompts=(prompt,),
        best_of=named["n"],
        has_max_tokens="max_tokens" in values.given,
        add_special_tokens=False,  # the template writes them itself
        **named,
    )


def _rendered(messages: list[dict[str, Any]], facts: Facts) -> str:
    if facts.chat_template is None:
        raise invalid_value(
            "messages",
            "this model has no chat template; use /v1/completions, or export the bundle again "
            "from a source that has one",
        )
    try:
        return facts.chat_template.render(messages)
    except InvalidParameter as exc:
        raise invalid_value("messages", str(exc)) from None


def _wanted_logprobs(named: dict[str, Any]) -> int | None:
    wants: bool = named.pop("logprobs")
    count: int | None = named.pop("top_logprobs")
    if count is not None and not wants:
        raise invalid_value("top_logprobs", "`top_logprobs` needs `logprobs` to be true")
    return (count or 0) if wants else None


_NOT_IN_CHAT = ("add_special_tokens", "prompt_logprobs", "truncate_prompt_tokens")

CHAT = Dialect(
    name="chat",
    title="OpenAI chat",
    base_path="/v1",
    endpoint="/chat/completions",
    id_prefix="chatcmpl-",
    fields=(
        MODEL,
        Field(name="messages", kind=Messages(), required=True, doc="The conversation so far."),
        msgspec.structs.replace(
            MAX_TOKENS,
            default=None,
            aliases=("max_completion_tokens",),
            doc="How many tokens at most; the rest of the context when absent.",
        ),
        *SAMPLING,
        N,
        STOP,
        *STREAMING,
        Field(name="logprobs", kind=Flag(), default=False, doc="Return each token's logprob."),
        Field(
            name="top_logprobs",
            kind=Integer(minimum=0, maximum=MAX_LOGPROBS),
            doc="Return this many likeliest tokens with each.",
        ),
        Field(name="response_format", kind=TextFormat(), doc="Text alone is supported."),
        Field(name="tools", kind=Unsupported(), doc="Tools are not supported: null alone."),
        Field(name="functions", kind=Unsupported(), doc="Functions are not supported."),
        Field(name="user", kind=Text(), doc="Taken and not used."),
        *(field for field in EXTENSIONS if field.name not in _NOT_IN_CHAT),
    ),
    renderer=ChatRenderer(),
    make_request=chat_request,
)
