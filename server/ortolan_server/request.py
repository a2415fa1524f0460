"""The canonical request: what every dialect is decoded into, checked, before the engine sees it."""

from __future__ import annotations

import msgspec

# JavaScript's numbers hold this many bits exactly, so that a client can send a seed back that was
# made for a request without one.
SEED_BITS = 53

PromptInput = str | tuple[int, ...]


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of any dialect. Every value is in range; the field tables checked it.

    ``max_tokens`` None asks for the rest of the context; when it was not given (``has_max_tokens``
    false) the default is cut to what the context leaves. ``best_of`` >= ``n``. ``seed`` None is a
    random one. ``logprobs`` 0 is the sampled token alone, None is off.
    """

    model: str | None = None
    prompts: tuple[PromptInput, ...]
    max_tokens: int | None = 16
    has_max_tokens: bool = False
    n: int = 1
    best_of: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    truncate_prompt_tokens: int | None = None
    cache_salt: str = ""
