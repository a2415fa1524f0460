"""The Second dialect: `POST /openai/completions`, with its own seed, clock and statuses."""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from ortolan_runtime.params import MAX_LOGPROBS
from ortolan_server.dialects.base import Dialect, completion_request
from ortolan_server.dialects.common import (
    COMPLETION_FIELDS,
    LOGIT_BIAS,
    LOGPROBS,
    SEED,
    STOP,
)
from ortolan_server.dialects.openai import OpenAIRenderer
from ortolan_server.fields import replaced
from ortolan_server.inputs import LogitBias
from ortolan_server.kinds import Integer, Texts
from ortolan_server.reply import Frame

DEFAULT_SEED = 689760


class SecondRenderer(OpenAIRenderer):
    """Writes OpenAI's shape with the time in milliseconds."""

    def created(self, frame: Frame) -> int:
        """Return the time of creation, in milliseconds since the epoch."""
        return int(frame.created_s * 1000)


SECOND = Dialect(
    name="second",
    title="Second",
    base_path="/openai",
    fields=replaced(
        COMPLETION_FIELDS,
        msgspec.structs.replace(STOP, kind=Texts(maximum=4)),
        msgspec.structs.replace(SEED, default=DEFAULT_SEED, doc="Same seed, same text."),
        msgspec.structs.replace(LOGIT_BIAS, kind=LogitBias(allows_text=True)),
        msgspec.structs.replace(
            LOGPROBS, kind=Integer(minimum=0, maximum=MAX_LOGPROBS), strict=None
        ),
    ),
    renderer=SecondRenderer(),
    make_request=completion_request,
    statuses=MappingProxyType(
        {
            "model_not_found": 400,
            "request_too_large": 400,
            "unsupported_media_type": 400,
            "unavailable": 500,
        }
    ),
    omits_null_error_fields=True,
    stream_options_need_stream=False,
)
