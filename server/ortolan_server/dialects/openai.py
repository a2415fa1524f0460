"""The OpenAI dialect: `POST /v1/completions` as OpenAI's legacy endpoint has it."""

from __future__ import annotations

from typing import Any

from ortolan_runtime.events import FinishReason
from ortolan_server.dialects import shapes
from ortolan_server.dialects.base import Dialect, Document, completion_request
from ortolan_server.dialects.common import COMPLETION_FIELDS
from ortolan_server.kinds import Schema
from ortolan_server.logprobs import completions_logprobs, prompt_logprobs
from ortolan_server.reply import Frame, Piece, Usage

FINISH_REASONS: dict[FinishReason, str] = {"stop": "stop", "eos": "stop", "length": "length"}


class OpenAIRenderer:
    """Writes `text_completion` objects; dialects that vary small parts of them derive from it."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def reply(self, frame: Frame, choices: list[Piece], usage: Usage) -> Document:
        """Return the object of a reply that does not stream."""
        rendered = [self.choice(frame, piece) for piece in choices]
        head = self.head(frame, self.object_name)
        return head | {"choices": rendered, "usage": self.usage(usage)}

    def chunk(self, frame: Frame, piece: Piece, usage: Usage, *, is_last: bool) -> Document:
        """Return one chunk: the object's shape with the new text only."""
        head = self.head(frame, self.chunk_name)
        document = head | {"choices": [self.part(frame, piece)]}
        if frame.request.continuous_usage:
            document["usage"] = self.usage(usage)
        elif frame.request.include_usage:
            document["usage"] = None
        return document

    def usage_chunk(self, frame: Frame, usage: Usage) -> Document:
        """Return the chunk that has the usage and no choice."""
        head = self.head(frame, self.chunk_name)
        return head | {"choices": [], "usage": self.usage(usage)}

    def head(self, frame: Frame, name: str) -> Document:
        """Return what every object and chunk begins with."""
        return {
            "id": frame.id,
            "object": name,
            "created": self.created(frame),
            "model": frame.model,
            "system_fingerprint": frame.fingerprint,
        }

    def created(self, frame: Frame) -> int:
        """Return the time of creation, in seconds since the epoch."""
        return int(frame.created_s)

    def choice(self, frame: Frame, piece: Piece) -> Document:
        """Return one whole choice."""
        return self.part(frame, piece)

    def part(self, frame: Frame, piece: Piece) -> Document:
        """Return the part of a choice that a chunk carries; it has the whole choice's shape."""
        request = frame.request
        shows_prompt = request.echo and piece.is_first
        text = piece.prompt.text + piece.text if shows_prompt else piece.text
        choice: Document = {
            "index": piece.index,
            "text": text,
            "logprobs": completions_logprobs(
                piece, request, frame.tokenizer, with_prompt=request.echo
            ),
            "finish_reason": None if piece.finish is None else FINISH_REASONS[piece.finish],
        }
        return choice | self.extensions(frame, piece)

    def extensions(self, frame: Frame, piece: Piece) -> Document:
        """Return what the extensions add to a choice."""
        return extensions(frame, piece)

    def usage(self, usage: Usage) -> Document:
        """Return the usage with what the prefix cache saved."""
        return counts(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}

    def reply_schema(self) -> Schema:
        """Return the JSON Schema of ``reply``."""
        return shapes.completion_schema()


def counts(usage: Usage) -> Document:
    """Return the three counts that every dialect has."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def extensions(frame: Frame, piece: Piece) -> dict[str, Any]:
    """Return what the extensions add to a choice, by vLLM's names."""
    added: dict[str, Any] = {}
    if frame.request.return_token_ids:
        added["token_ids"] = [token.id for token in piece.tokens]
        added["prompt_token_ids"] = list(piece.prompt.ids) if piece.is_first else None
    count = frame.request.prompt_logprobs
    if count is not None and piece.is_first:
        added["prompt_logprobs"] = prompt_logprobs(piece.prompt.scores, frame.tokenizer, count)
    return added


OPENAI = Dialect(
    name="openai",
    title="OpenAI",
    base_path="/v1",
    fields=COMPLETION_FIELDS,
    renderer=OpenAIRenderer(),
    make_request=completion_request,
)
