"""The fields that the dialects share; each takes them as they are or with small changes."""

from __future__ import annotations

from ortolan_runtime.params import MAX_LOGPROBS
from ortolan_server.fields import Field
from ortolan_server.inputs import LogitBias, Prompts, StreamOptions, TokenIds
from ortolan_server.kinds import Flag, Integer, ModelName, Number, Text, Texts, Unsupported

MAX_CHOICES = 128
DEFAULT_MAX_TOKENS = 16

MODEL = Field(name="model", kind=ModelName(), required=True, doc="The served model's name.")
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
    aliases=("tempature",),  # Second's document spells it so, and clients send what they read
    doc="Divides the logits before the draw; 0 takes the likeliest token.",
)
STOP = Field(
    name="stop",
    kind=Texts(maximum=16),
    strict=Texts(maximum=4),
    default=(),
    doc="Generation ends where one of these strings is complete, or at a control token spelt so; "
    "the text ends before it.",
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

TOP_K = Field(
    name="top_k",
    kind=Integer(minimum=1, off=(-1, 0)),
    default=0,
    doc="Keep this many likeliest tokens; 0 and -1 keep all.",
)
N = Field(
    name="n",
    kind=Integer(minimum=1, maximum=MAX_CHOICES),
    default=1,
    doc="How many completions of each prompt to return.",
)

SAMPLING = (
    TEMPERATURE,
    Field(
        name="top_p",
        kind=Number(minimum=0.0, maximum=1.0, is_open=True),
        default=1.0,
        doc="Keep the likeliest tokens that together have this probability.",
    ),
    TOP_K,
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
# vLLM's names.
EXTENSIONS = (
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
        doc="Do not end before this many tokens, by a stop string neither.",
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
COMPLETION_FIELDS = (
    MODEL,
    PROMPT,
    MAX_TOKENS,
    *SAMPLING,
    N,
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
