"""What a caller may ask of one sequence, checked once when it is made."""

from __future__ import annotations

import math

import msgspec

from ortolan_runtime.errors import InvalidParameter

MAX_LOGPROBS = 20
# A smaller one tells float32 logits apart that are equal but for rounding.
LEAST_TEMPERATURE = 1e-6
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw the next token. Neutral values switch a step off.

    The order is: bias and bans, penalties, temperature, top_k, top_p, min_p, draw. ``temperature``
    0, or below ``LEAST_TEMPERATURE``, takes the likeliest token. The draw depends on (seed, choice,
    position) alone. Raises InvalidParameter.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    choice: int = 0

    def __post_init__(self) -> None:
        _require_within("temperature", self.temperature, 0.0, 100.0)
        _require("top_k", self.top_k >= 0, "must be >= 0 (0 is off)", self.top_k)
        _require("top_p", 0.0 < self.top_p <= 1.0, "must be > 0 and <= 1", self.top_p)
        _require_within("min_p", self.min_p, 0.0, 1.0)
        _require_within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        is_positive = 0.0 < self.repetition_penalty <= 2.0
        _require("repetition_penalty", is_positive, "must be > 0 and <= 2", self.repetition_penalty)
        for bias in self.logit_bias.values():
            _require("logit_bias", math.isfinite(bias), "must hold finite numbers", bias)
        for word in self.bad_words:
            _require("bad_words", len(word) > 0, "must hold no empty word", word)
        in_range = SEED_MIN <= self.seed <= SEED_MAX
        _require("seed", in_range, "must be a signed 64-bit integer", self.seed)
        _require("choice", 0 <= self.choice <= SEED_MAX, "must be >= 0", self.choice)

    @property
    def is_greedy(self) -> bool:
        """Return whether the likeliest token is taken."""
        return self.temperature < LEAST_TEMPERATURE


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate: a prompt of token ids, and when to stop.

    ``logprobs`` asks for the logprob of each generated token and of that many likeliest ones (0 is
    the token alone, None is none); ``prompt_logprobs`` the same for each prompt token but the
    first. ``max_tokens`` 0 scores the prompt and generates nothing. ``cache_salt`` keeps the prefix
    cache of one tenant from another's. Raises InvalidParameter.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    cache_salt: str = ""

    def __post_init__(self) -> None:
        _require("prompt", len(self.prompt) > 0, "must hold at least 1 token", self.prompt)
        _require("max_tokens", self.max_tokens >= 0, "must be >= 0", self.max_tokens)
        _require("min_tokens", self.min_tokens >= 0, "must be >= 0", self.min_tokens)
        # A lone string is a sequence of strings too: of its characters, and of the empty one.
        is_list = not isinstance(self.stop, str)
        _require("stop", is_list, "must be several strings, as in ('x',)", self.stop)
        _require("stop", "" not in self.stop, "must hold no empty string", list(self.stop))
        for field, value in (
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ):
            if value is not None:
                _require_within(field, value, 0, MAX_LOGPROBS)


def _require(field: str, holds: bool, requirement: str, value: object) -> None:
    if not holds:
        raise InvalidParameter(field, requirement, value)


def _require_within(field: str, value: float, low: float, high: float) -> None:
    # Written so that NaN fails too.
    _require(field, low <= value <= high, f"must be within {low}..{high}", value)
