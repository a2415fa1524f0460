"""From a decoded body to what the engine takes: the canonical request, then its sequences."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ortolan_runtime.params import GenerationRequest, SamplingParams
from ortolan_runtime.text import Tokenizer
from ortolan_server.dialects.base import Dialect
from ortolan_server.errors import context_length_exceeded, invalid_value, model_not_found
from ortolan_server.fields import FieldTable, read_values
from ortolan_server.kinds import Facts
from ortolan_server.reply import PromptPart
from ortolan_server.request import CompletionRequest
from ortolan_server.settings import ServerSettings


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request may ask for: candidates over all prompts, tokens when it names no limit."""

    choices: int
    output_tokens: int


def limits_of(settings: ServerSettings) -> Limits:
    """Return the limits that the settings say."""
    return Limits(
        choices=settings.max_choices_per_request, output_tokens=settings.max_output_tokens
    )


def read_request(
    body: object,
    dialect: Dialect,
    table: FieldTable,
    *,
    facts: Facts,
    names: Sequence[str],
    limits: Limits,
) -> tuple[CompletionRequest, tuple[str, ...]]:
    """Return the request that a decoded body is, and the names in it that nobody knows.

    ``names`` are the models that may be asked for. Raises ApiError.
    """
    values = read_values(body, table, facts)
    request = dialect.make_request(values, dialect, facts)
    check_model(request, names)
    check_choices(request, limits)
    return request, values.ignored


def check_choices(request: CompletionRequest, limits: Limits) -> None:
    """Refuse a request that fans out too far, before anything is made of it. Raises ApiError."""
    prompts, candidates = len(request.prompts), request.best_of
    if prompts * candidates > limits.choices:
        name = "prompt" if prompts > 1 else ("best_of" if candidates > request.n else "n")
        raise invalid_value(
            name,
            f"the number of prompts times `best_of` must be <= {limits.choices}, got "
            f"{prompts * candidates} ({prompts} prompts, {candidates} candidates of each)",
        )


def check_model(request: CompletionRequest, served: Sequence[str]) -> None:
    """Refuse a request for a model that is not among those ``served``. Raises ApiError."""
    if request.model is not None and request.model not in served:
        raise model_not_found(request.model, served)


def character_count(request: CompletionRequest) -> int:
    """Return about how many characters ``prepare`` has to encode."""
    return sum(len(text) for text in (*request.prompts, *request.bad_words))


def prepare(
    request: CompletionRequest, *, seed: int, facts: Facts, limits: Limits
) -> tuple[list[PromptPart], list[GenerationRequest]]:
    """Return the prompts as ids with their text, and one sequence per candidate, prompt by prompt.

    Holds a core for long texts. Raises ApiError and InvalidParameter.
    """
    prompts = [_prompt_part(prompt, request, facts) for prompt in request.prompts]
    bad_words = _bad_words(request, facts.tokenizer)
    return prompts, [
        _sequence(
            request,
            prompt,
            sampling=_sampling(
                request,
                seed=seed,
                choice=index * request.best_of + candidate,
                bad_words=bad_words,
            ),
            max_tokens=_max_tokens(request, len(prompt.ids), facts, limits),
            # A prompt is scored once; only a stream needs the scores with each of its choices.
            is_scored=candidate == 0 or request.stream,
        )
        for index, prompt in enumerate(prompts)
        for candidate in range(request.best_of)
    ]


def _sequence(
    request: CompletionRequest,
    prompt: PromptPart,
    *,
    sampling: SamplingParams,
    max_tokens: int,
    is_scored: bool,
) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt.ids,
        sampling=sampling,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=request.stop,
        include_stop_in_output=request.include_stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        logprobs=_logprobs(request),
        prompt_logprobs=_prompt_logprobs(request) if is_scored else None,
        skip_special_tokens=request.skip_special_tokens,
        cache_salt=request.cache_salt,
    )


def _prompt_part(
    prompt: str | tuple[int, ...], request: CompletionRequest, facts: Facts
) -> PromptPart:
    tokenizer = facts.tokenizer
    if isinstance(prompt, str):
        ids = tuple(tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens))
        part = PromptPart(text=prompt, ids=ids or _beginning(tokenizer))
    else:
        part = PromptPart(text=_decode(prompt, request, tokenizer), ids=prompt)
    kept = _truncated(part.ids, request, facts)
    if len(kept) < len(part.ids):
        return PromptPart(text=_decode(kept, request, tokenizer), ids=kept)
    return part


def _beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of an empty prompt, the beginning of a document. Raises ApiError."""
    if tokenizer.bos_token_id is None:
        raise invalid_value(
            "prompt", "`prompt` must not be empty: this model has no token for a beginning"
        )
    return (tokenizer.bos_token_id,)


def _decode(ids: tuple[int, ...], request: CompletionRequest, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens)


def _truncated(ids: tuple[int, ...], request: CompletionRequest, facts: Facts) -> tuple[int, ...]:
    if request.truncate_prompt_tokens is None:
        return ids
    room = facts.context_length - (request.max_tokens or 0)
    return ids[-(request.truncate_prompt_tokens or max(room, 1)) :]


def _max_tokens(
    request: CompletionRequest, prompt_tokens: int, facts: Facts, limits: Limits
) -> int:
    """Return how many tokens the sequence may have. Raises ApiError when they do not fit."""
    room = facts.context_length - prompt_tokens
    if request.max_tokens is None:
        wanted = 1 if room < 1 else min(room, limits.output_tokens)
    elif request.has_max_tokens or room < 1:
        wanted = request.max_tokens
    else:
        wanted = min(room, request.max_tokens)
    if wanted > room:
        raise context_length_exceeded(facts.context_length, prompt_tokens, wanted)
    return wanted


def _sampling(
    request: CompletionRequest, *, seed: int, choice: int, bad_words: tuple[tuple[int, ...], ...]
) -> SamplingParams:
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        allowed_token_ids=request.allowed_token_ids,
        bad_words=bad_words,
        seed=seed,
        choice=choice,
    )


def _logprobs(request: CompletionRequest) -> int | None:
    """Return the scores to ask for: candidates are ranked by theirs."""
    if request.logprobs is None and request.best_of > request.n:
        return 0
    return request.logprobs


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    wanted = [request.prompt_logprobs, request.logprobs if request.echo else None]
    return max((count for count in wanted if count is not None), default=None)


def _bad_words(request: CompletionRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return each word as ids, at the beginning of a text and after a space."""
    # Only spaces are taken off: behind a newline another word begins.
    spelt = [form for word in request.bad_words for form in (word, f" {word.lstrip(' ')}")]
    words = {tuple(tokenizer.encode(form, add_special_tokens=False)) for form in spelt}
    return tuple(sorted(word for word in words if word))
