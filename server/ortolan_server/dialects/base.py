"""What a dialect is, and what the dialects share: common fields, the canonical request, rendering.

A dialect is declared data plus a renderer. Adding one is a module and a line in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from ortolan_runtime.params import MAX_LOGPROBS
from ortolan_server.errors import ApiError, invalid_value
from ortolan_server.fields import Field, FieldTable, Values
from ortolan_server.kinds import (
    Flag,
    Integer,
    LogitBias,
    Number,
    Prompts,
    Schema,
    StreamOptions,
    Text,
    Texts,
    TokenIds,
    Unsupported,
)
from ortolan_server.reply import Frame, Piece, Usage
from ortolan_server.request import CompletionRequest

MAX_CHOICES = 128
DEFAULT_MAX_TOKENS = 16

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

    def __call__(self, values: Values, dialect: Dialect) -> CompletionRequest:
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


def completion_request(values: Values, dialect: Dialect) -> CompletionRequest:
    """Return the canonical request of a completions dialect. Raises ApiError."""
    named = dict(values.by_name)
    named.pop("user", None)
    named.pop("suffix", None)
    options = named.pop("stream_options", None)
    if options is not None and dialect.stream_options_need_stream and not named["stream"]:
        raise invalid_value("stream_options", "`stream_options` needs `stream` to be true")
    named["include_usage"], named["continuous_usage"] = options or (False, False)
    named["best_of"] = best_of(named, values)
    named["has_max_tokens"] = "max_tokens" in values.given
    return CompletionRequest(**named)


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


MODEL = Field(
    name="model", kind=Text(minimum=1, maximum=256), required=True, doc="The served model's name."
)
PROMPT = Field(
    name="prompt",
    target="prompts",
    kind=Prompts(),
    required=True,
    doc="What to complete: a string, a list of strings, token ids, or a list of lists of them.",
)
MAX_TOKENS = Field(
    name="max_tokens",
    kind=Integer(minimum=0),
    default=DEFAULT_MAX_TOKENS,
    doc="How many tokens to generate at most; with the prompt they must fit into the context.",
)
TEMPERATURE = Field(
    name="temperature",
    kind=Number(minimum=0.0, maximum=2.0),
    default=1.0,
    doc="Divides the logits before the draw; 0 takes the likeliest token.",
)
STOP = Field(
    name="stop",
    kind=Texts(maximum=16),
    strict=Texts(maximum=4),
    default=(),
    doc="Generation ends where one of these strings is complete; the text ends before it.",
)
SEED = Field(
    name="seed",
    kind=Integer(),
    doc="Same seed, same request, same text. Random when absent; `x-ortolan-seed` tells it.",
)
LOGPROBS = Field(
    name="logprobs",
    kind=Integer(minimum=0, maximum=MAX_LOGPROBS),
    strict=Integer(minimum=0, maximum=5),
    doc="Return the logprob of each token and of this many likeliest ones; 0 is the token alone.",
)
LOGIT_BIAS = Field(
    name="logit_bias",
    kind=LogitBias(),
    default={},
    doc="Added to the logits of these tokens, by token id.",
)

SAMPLING = (
    TEMPERATURE,
    Field(
        name="top_p",
        kind=Number(minimum=0.0, maximum=1.0, is_open=True),
        default=1.0,
        doc="Keep the likeliest tokens that together have this probability.",
    ),
    Field(
        name="top_k",
        kind=Integer(minimum=1, off=(-1, 0)),
        default=0,
        doc="Keep this many likeliest tokens; 0 and -1 keep all.",
    ),
    Field(
        name="min_p",
        kind=Number(minimum=0.0, maximum=1.0),
        default=0.0,
        doc="Keep the tokens at least this fraction as likely as the likeliest.",
    ),
    Field(
        name="frequency_penalty",
        kind=Number(minimum=-2.0, maximum=2.0),
        default=0.0,
        doc="Subtracted from a token's logit for each time that the output has it.",
    ),
    Field(
        name="presence_penalty",
        kind=Number(minimum=-2.0, maximum=2.0),
        default=0.0,
        doc="Subtracted once from the logit of each token that the output has.",
    ),
    Field(
        name="repetition_penalty",
        kind=Number(minimum=0.0, maximum=2.0, is_open=True),
        default=1.0,
        doc="Divides positive and multiplies negative logits of the prompt's and output's tokens.",
    ),
    LOGIT_BIAS,
    SEED,
)
STREAMING = (
    Field(name="stream", kind=Flag(), default=False, doc="Answer with server-sent events."),
    Field(
        name="stream_options",
        kind=StreamOptions(),
        doc="`include_usage` adds a chunk with the usage; `continuous_usage_stats` to every chunk.",
    ),
)
EXTENSIONS = tuple(
    msgspec.structs.replace(field, is_extension=True)
    for field in (
        Field(
            name="include_stop_str_in_output",
            target="include_stop",
            kind=Flag(),
            default=False,
            doc="Keep the stop string at the end of the text.",
        ),
        Field(
            name="stop_token_ids",
            kind=TokenIds(),
            default=(),
            doc="End at these tokens too, as at the model's own end.",
        ),
        Field(
            name="min_tokens",
            kind=Integer(minimum=0),
            default=0,
            doc="Do not end before this many tokens.",
        ),
        Field(
            name="ignore_eos",
            kind=Flag(),
            default=False,
            doc="Go on after the model's own end.",
        ),
        Field(
            name="allowed_token_ids",
            kind=TokenIds(minimum=1),
            default=(),
            doc="Draw from these tokens alone.",
        ),
        Field(
            name="bad_words",
            kind=Texts(maximum=128, allows_single=False),
            default=(),
            doc="Never generate these words.",
        ),
        Field(
            name="add_special_tokens",
            kind=Flag(),
            default=True,
            doc="Let the tokenizer put its BOS before a prompt that is text.",
        ),
        Field(
            name="skip_special_tokens",
            kind=Flag(),
            default=True,
            doc="Leave control tokens out of the text.",
        ),
        Field(
            name="return_token_ids",
            kind=Flag(),
            default=False,
            doc="Add `token_ids` and `prompt_token_ids` to each choice.",
        ),
        Field(
            name="prompt_logprobs",
            kind=Integer(minimum=0, maximum=MAX_LOGPROBS),
            doc="Return the scores of the prompt's tokens and of this many likeliest ones.",
        ),
        Field(
            name="truncate_prompt_tokens",
            kind=Integer(minimum=1, off=(-1,)),
            doc="Keep the last tokens of the prompt, this many; -1 as many as fit.",
        ),
        Field(
            name="cache_salt",
            kind=Text(),
            default="",
            doc="Only requests with the same salt share the prefix cache.",
        ),
    )
)
COMPLETION_FIELDS = (
    MODEL,
    PROMPT,
    MAX_TOKENS,
    *SAMPLING,
    Field(
        name="n",
        kind=Integer(minimum=1, maximum=MAX_CHOICES),
        default=1,
        doc="How many completions of each prompt to return.",
    ),
    Field(
        name="best_of",
        kind=Integer(minimum=1, maximum=MAX_CHOICES),
        doc="How many candidates to make; the `n` with the highest mean logprob are returned.",
    ),
    STOP,
    *STREAMING,
    LOGPROBS,
    Field(name="echo", kind=Flag(), default=False, doc="Put the prompt before the completion."),
    Field(name="user", kind=Text(), doc="Taken and not used."),
    Field(name="suffix", kind=Unsupported(), doc="Insertion is not supported: null alone."),
    *EXTENSIONS,
)
