"""The TokensMind dialect: the stop string stays in the text, and usage tells the kinds of token."""

from __future__ import annotations

import msgspec

from ortolan_server.dialects import shapes
from ortolan_server.dialects.base import Dialect, Document, completion_request
from ortolan_server.dialects.common import COMPLETION_FIELDS, EXTENSIONS, LOGPROBS, STOP, TOP_K, N
from ortolan_server.dialects.openai import OpenAIRenderer
from ortolan_server.fields import replaced
from ortolan_server.kinds import Integer, Schema
from ortolan_server.reply import Usage


class TokensMindRenderer(OpenAIRenderer):
    """Writes OpenAI's shape with usage broken down further."""

    def usage(self, usage: Usage) -> Document:
        """Return the usage by kinds of token; text is the only kind here."""
        prompt = {
            "cached_tokens": usage.cached_tokens,
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
        }
        completion = {
            "text_tokens": usage.completion_tokens,
            "audio_tokens": 0,
            "reasoning_tokens": 0,
        }
        details = {"prompt_tokens_details": prompt, "completion_tokens_details": completion}
        return super().usage(usage) | details

    def reply_schema(self) -> Schema:
        """Return the JSON Schema of ``reply``."""
        return shapes.completion_schema(usage=shapes.detailed_usage_schema())


_KEPT = (
    "Generation ends where one of these strings is complete, or at a control token spelt so; "
    "the text ends after it."
)
_INCLUDE_STOP = next(field for field in EXTENSIONS if field.target == "include_stop")

TOKENSMIND = Dialect(
    name="tokensmind",
    title="TokensMind",
    base_path="/tokensmind/v1",
    fields=replaced(
        COMPLETION_FIELDS,
        msgspec.structs.replace(STOP, doc=_KEPT),
        msgspec.structs.replace(_INCLUDE_STOP, default=True),
        msgspec.structs.replace(TOP_K, strict=Integer(minimum=1, maximum=128)),
        msgspec.structs.replace(N, strict=Integer(minimum=1, maximum=127)),
        msgspec.structs.replace(LOGPROBS, kind=Integer(minimum=0, maximum=5)),
    ),
    renderer=TokensMindRenderer(),
    make_request=completion_request,
)
