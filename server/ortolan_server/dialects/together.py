"""The Together dialect: `POST /completions`, whose prompt comes back beside the choices."""

from __future__ import annotations

import msgspec

from ortolan_runtime.events import FinishReason
from ortolan_runtime.params import MAX_LOGPROBS
from ortolan_server.dialects import shapes
from ortolan_server.dialects.base import Dialect, Document, completion_request
from ortolan_server.dialects.common import (
    COMPLETION_FIELDS,
    LOGIT_BIAS,
    LOGPROBS,
    MAX_TOKENS,
    MODEL,
    STOP,
)
from ortolan_server.dialects.openai import counts, extensions
from ortolan_server.fields import replaced
from ortolan_server.inputs import LogitBias
from ortolan_server.kinds import Integer, Schema, Texts
from ortolan_server.logprobs import completions_logprobs, shown_logprob
from ortolan_server.reply import Frame, Piece, Usage

FINISH_REASONS: dict[FinishReason, str] = {"stop": "stop", "eos": "eos", "length": "length"}


class TogetherRenderer:
    """Writes `text.completion` objects and `completion.chunk` chunks."""

    def reply(self, frame: Frame, choices: list[Piece], usage: Usage) -> Document:
        """Return the object of a reply that does not stream."""
        return {
            "id": frame.id,
            "object": "text.completion",
            "created": int(frame.created_s),
            "model": frame.model,
            "choices": [self._choice(frame, piece) for piece in choices],
            "prompt": self._prompts(frame, choices),
            "usage": counts(usage),
        }

    def chunk(self, frame: Frame, piece: Piece, usage: Usage, *, is_last: bool) -> Document:
        """Return one chunk with its last token; the reply's last one has the usage."""
        shows_usage = is_last or frame.request.continuous_usage
        choice = self._choice(frame, piece) | {"delta": {"content": piece.text}}
        document: Document = {
            "id": frame.id,
            "object": "completion.chunk",
            "created": int(frame.created_s),
            "model": frame.model,
            "choices": [choice],
            "token": self._token(frame, piece),
            "usage": counts(usage) if shows_usage else None,
            "seed": frame.seed,
            "finish_reason": choice["finish_reason"],
        }
        if frame.request.echo and piece.is_first:
            document["prompt"] = self._prompts(frame, [piece])
        return document

    def usage_chunk(self, frame: Frame, usage: Usage) -> None:
        """Return None: the last chunk has the usage."""
        return

    def reply_schema(self) -> Schema:
        """Return the JSON Schema of ``reply``."""
        return shapes.together_schema()

    def _choice(self, frame: Frame, piece: Piece) -> Document:
        choice: Document = {
            "text": piece.text,
            "index": piece.index,
            "seed": frame.seed,
            "finish_reason": None if piece.finish is None else FINISH_REASONS[piece.finish],
            "logprobs": self._logprobs(frame, piece),
        }
        return choice | extensions(frame, piece)

    def _logprobs(self, frame: Frame, piece: Piece) -> Document | None:
        shown = completions_logprobs(piece, frame.request, frame.tokenizer, with_prompt=False)
        return shown and {"token_ids": [token.id for token in piece.tokens], **shown}

    def _prompts(self, frame: Frame, pieces: list[Piece]) -> list[Document]:
        """Return each prompt once, with its scores when it was scored for an echo."""
        by_prompt = {piece.index // frame.request.n: piece for piece in pieces}
        return [
            {"text": piece.prompt.text, "logprobs": self._prompt_logprobs(frame, piece)}
            for _, piece in sorted(by_prompt.items(), key=lambda item: item[0])
        ]

    def _prompt_logprobs(self, frame: Frame, piece: Piece) -> Document | None:
        if not frame.request.echo or frame.request.logprobs is None:
            return None
        alone = msgspec.structs.replace(piece, tokens=(), is_first=True)
        shown = completions_logprobs(alone, frame.request, frame.tokenizer, with_prompt=True)
        return shown and {"token_ids": [score.id for score in piece.prompt.scores], **shown}

    def _token(self, frame: Frame, piece: Piece) -> Document | None:
        if not piece.tokens:
            return None
        last = piece.tokens[-1]
        return {
            "id": last.id,
            "text": last.text,
            "logprob": None if last.logprob is None else shown_logprob(last.logprob),
            "special": frame.tokenizer.is_special(last.id),
        }


TOGETHER = Dialect(
    name="together",
    title="Together",
    base_path="",
    fields=replaced(
        COMPLETION_FIELDS,
        msgspec.structs.replace(MODEL, required=False, doc="The served model when absent."),
        msgspec.structs.replace(
            MAX_TOKENS, default=None, doc="How many tokens at most; the rest of the context."
        ),
        msgspec.structs.replace(STOP, strict=Texts(maximum=16)),
        msgspec.structs.replace(LOGIT_BIAS, kind=LogitBias(bound=None)),
        msgspec.structs.replace(
            LOGPROBS, kind=Integer(minimum=0, maximum=MAX_LOGPROBS), strict=None
        ),
    ),
    renderer=TogetherRenderer(),
    make_request=completion_request,
    stream_options_need_stream=False,
)
