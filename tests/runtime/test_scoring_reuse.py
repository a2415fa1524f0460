"""Scoring many continuations of one context: computed once, and the same to the bit."""

from __future__ import annotations

from pathlib import Path

from engines import alone, apart, assert_same, engine_on, request, together

from ortolan_runtime.params import GenerationRequest

CONTEXT = list(range(40, 72))
CONTINUATIONS = [[5, 6, 7], [5, 9], [11, 12, 13, 14], [15]]


def scoring(ids: list[int], count: int = 1) -> GenerationRequest:
    return request(ids, temperature=0.0, max_tokens=1, prompt_logprobs=count, logprobs=count)


def test_continuations_of_one_context_reuse_it_bit_by_bit(glass_bundle: Path) -> None:
    requests = [scoring(CONTEXT + end) for end in CONTINUATIONS]
    cold = apart(glass_bundle, requests)
    with engine_on(glass_bundle, slots=4) as engine:
        warm = alone(engine, requests)
    assert_same(warm, cold)
    assert [o.cached_tokens for o in cold] == [0, 0, 0, 0]
    # A token's score needs the logits of the one before, so the last shared token is run again.
    assert [o.cached_tokens for o in warm] == [0, 32, 31, 31]


def test_continuations_that_come_together_wait_for_the_context(glass_bundle: Path) -> None:
    requests = [scoring(CONTEXT + end) for end in CONTINUATIONS]
    with engine_on(glass_bundle, slots=4) as engine:
        separate = alone(engine, requests)
    with engine_on(glass_bundle, slots=4) as engine:
        outcomes = together(engine, requests)
        prefilled = engine.statistics().prompt_tokens
    assert_same(outcomes, separate)
    assert prefilled < 2 * len(CONTEXT)


def test_scores_with_another_number_of_alternatives_are_not_reused(glass_bundle: Path) -> None:
    with engine_on(glass_bundle, slots=4) as engine:
        first, second = alone(engine, [scoring(CONTEXT + [5, 6], 1), scoring(CONTEXT + [5, 7], 3)])
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    assert all(len(token.top) == 3 for token in second.prompt[1:])


def test_a_prompt_without_scores_cannot_be_reused_for_scoring(glass_bundle: Path) -> None:
    plain = request(CONTEXT + [5, 6], temperature=0.0, max_tokens=1)
    with engine_on(glass_bundle, slots=4) as engine:
        _, scored, again = alone(engine, [plain, scoring(CONTEXT + [5, 6]), plain])
    assert scored.cached_tokens == 0
    assert all(token.logprob is not None for token in scored.prompt[1:])
    assert again.cached_tokens > 0


def test_the_same_prompt_scored_again_is_the_same(glass_bundle: Path) -> None:
    one = scoring(CONTEXT, 2)
    with engine_on(glass_bundle, slots=4) as engine:
        first, second = alone(engine, [one, one])
    assert second.bits() == first.bits()
    assert second.cached_tokens == len(CONTEXT) - 2
