"""What each parameter does to the next token, on tables of four tokens.

A row of logits is written as probabilities. Its outcome is read off evenly spaced draws: of 20
draws at 0.025, 0.075, …, a token of probability 0.25 gets exactly 5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ortolan_runtime.params import SamplingParams
from ortolan_runtime.randomness import uniforms
from ortolan_runtime.sampling import RowState, TokenCounts, logprobs_of, sample, top_logprobs

TABLE = (0.4, 0.3, 0.2, 0.1)


@functools.cache
def _draws() -> tuple[np.ndarray, np.ndarray]:
    """Return 400,000 draws in ascending order, and the seeds that give them."""
    seeds = np.arange(400_000)
    zeros = np.zeros_like(seeds)
    draws = uniforms(seeds, zeros, zeros)
    order = np.argsort(draws)
    return draws[order], seeds[order]


def _seed_of(draw: float) -> int:
    """Return a seed whose first draw is ``draw``, give or take 0.0001."""
    draws, seeds = _draws()
    index = int(np.searchsorted(draws, draw))
    assert abs(draws[index] - draw) < 1e-4
    return int(seeds[index])


def _logits(probabilities: Sequence[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):  # probability 0 is a logit of -inf
        return np.log(np.array([probabilities], np.float64)).astype(np.float32)


def _logsumexp(logits: np.ndarray) -> np.ndarray:
    return np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)


def _counts(output: Sequence[int] = (), prompt: Sequence[int] = ()) -> TokenCounts:
    counts = TokenCounts(prompt=frozenset(prompt))
    for token in output:
        counts.add(token)
    return counts


def _shares(
    logits: np.ndarray,
    count: int,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    **params: Any,
) -> list[int]:
    """Return how many of ``count`` evenly spaced draws each token gets; logits are ``[1, n]``."""
    rows = [
        RowState(
            params=SamplingParams(seed=_seed_of((i + 0.5) / count), **params),
            counts=_counts(output, prompt),
            position=0,
            tail=[*prompt, *output],
            banned=banned,
        )
        for i in range(count)
    ]
    batch = np.repeat(logits, count, axis=0)
    sampled = sample(batch, np.repeat(_logsumexp(logits), count), rows)
    assert sampled.is_valid.all()
    return np.bincount(sampled.tokens, minlength=logits.shape[1]).tolist()


def _one(logits: np.ndarray, **params: Any) -> int:
    """Return the token of a draw in the middle."""
    return int(np.argmax(_shares(logits, 1, **params)))


def test_neutral_parameters_draw_by_the_models_own_probabilities() -> None:
    assert _shares(_logits(TABLE), 20) == [8, 6, 4, 2]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert _shares(_logits((0.2, 0.4, 0.3, 0.1)), 20, temperature=0.0) == [0, 20, 0, 0]


def test_temperature_zero_takes_the_lower_id_of_two_equal_tokens() -> None:
    assert _shares(_logits((0.1, 0.4, 0.4, 0.1)), 20, temperature=0.0) == [0, 20, 0, 0]


def test_temperature_one_half_squares_the_probabilities() -> None:
    assert _shares(_logits(TABLE), 30, temperature=0.5) == [16, 9, 4, 1]


def test_temperature_two_takes_the_root_of_the_probabilities() -> None:
    assert _shares(_logits((0.64, 0.16, 0.16, 0.04)), 18, temperature=2.0) == [8, 4, 4, 2]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-40, 1e-8, 1e-5, 1e-4])
def test_a_tiny_temperature_takes_the_likeliest_token(temperature: float) -> None:
    assert _shares(_logits(TABLE), 20, temperature=temperature) == [20, 0, 0, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-40, 1e-8])
def test_a_tiny_temperature_takes_the_likeliest_of_a_large_vocabulary(temperature: float) -> None:
    logits = np.zeros((1, 20_000), np.float32)
    logits[0, 12_345] = 1e-3
    assert _one(logits, temperature=temperature) == 12_345


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-40, 1e-6, 1e-5])
def test_a_tiny_temperature_takes_the_likeliest_of_a_large_vocabulary_that_was_edited(
    temperature: float,
) -> None:
    logits = np.zeros((1, 20_000), np.float32)
    logits[0, 12_345] = 1e-3
    assert _one(logits, temperature=temperature, logit_bias={7: -1e308}) == 12_345


def test_top_k_leaves_the_k_likeliest() -> None:
    assert _shares(_logits(TABLE), 7, top_k=2) == [4, 3, 0, 0]


def test_top_k_one_is_greedy() -> None:
    assert _shares(_logits(TABLE), 20, top_k=1) == [20, 0, 0, 0]


def test_top_k_zero_is_off() -> None:
    assert _shares(_logits(TABLE), 20, top_k=0) == [8, 6, 4, 2]


def test_top_k_of_more_than_the_vocabulary_leaves_all() -> None:
    assert _shares(_logits(TABLE), 20, top_k=10**9) == [8, 6, 4, 2]


def test_top_k_leaves_the_lower_ids_of_equal_tokens() -> None:
    assert _shares(_logits((0.25, 0.25, 0.25, 0.25)), 20, top_k=2) == [10, 10, 0, 0]


def test_top_p_leaves_the_fewest_tokens_that_hold_that_mass() -> None:
    assert _shares(_logits(TABLE), 7, top_p=0.6) == [4, 3, 0, 0]


def test_top_p_counts_the_token_that_reaches_the_mass() -> None:
    assert _shares(_logits((0.5, 0.25, 0.125, 0.125)), 3, top_p=0.75) == [2, 1, 0, 0]


def test_the_smallest_top_p_leaves_the_likeliest_token() -> None:
    assert _shares(_logits(TABLE), 20, top_p=1e-9) == [20, 0, 0, 0]


def test_top_p_leaves_the_lower_ids_of_equal_tokens() -> None:
    assert _shares(_logits((0.25, 0.25, 0.25, 0.25)), 20, top_p=0.5) == [10, 10, 0, 0]


def test_min_p_leaves_tokens_of_that_share_of_the_likeliest() -> None:
    assert _shares(_logits(TABLE), 9, min_p=0.45) == [4, 3, 2, 0]


def test_min_p_one_leaves_the_likeliest_token() -> None:
    assert _shares(_logits(TABLE), 20, min_p=1.0) == [20, 0, 0, 0]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # 0.4 + 0.3 of 0.9 is 0.78; of the whole it would not reach 0.75.
    assert _shares(_logits(TABLE), 7, top_k=3, top_p=0.75) == [4, 3, 0, 0]


def test_top_p_is_a_share_after_temperature() -> None:
    # Squared, the likeliest holds 16/30.
    assert _shares(_logits(TABLE), 20, temperature=0.5, top_p=0.5) == [20, 0, 0, 0]


def test_min_p_is_a_share_after_temperature() -> None:
    # Squared, the second has 9/16 of the likeliest, the third 4/16.
    assert _shares(_logits(TABLE), 25, temperature=0.5, min_p=0.3) == [16, 9, 0, 0]


def test_the_strictest_of_top_k_top_p_and_min_p_decides() -> None:
    assert _shares(_logits(TABLE), 7, top_k=3, top_p=0.95, min_p=0.7) == [4, 3, 0, 0]


def test_a_logit_bias_multiplies_the_odds() -> None:
    bias = {3: math.log(3)}
    assert _shares(_logits((0.5, 0.3, 0.1, 0.1)), 12, logit_bias=bias) == [5, 3, 1, 3]


def test_a_logit_bias_of_minus_100_rules_a_token_out() -> None:
    assert _shares(_logits(TABLE), 6, logit_bias={0: -100.0}) == [0, 3, 2, 1]


def test_a_logit_bias_of_100_forces_a_token() -> None:
    assert _shares(_logits(TABLE), 20, logit_bias={3: 100.0}) == [0, 0, 0, 20]


def test_a_logit_bias_changes_the_greedy_token() -> None:
    assert _one(_logits(TABLE), temperature=0.0, logit_bias={2: 2.0}) == 2


def test_a_logit_bias_comes_before_temperature() -> None:
    # 0.1 times 2 is 0.2; squared, the shares are 16 : 9 : 4 : 4.
    bias = {3: math.log(2)}
    assert _shares(_logits(TABLE), 33, temperature=0.5, logit_bias=bias) == [16, 9, 4, 4]


@pytest.mark.parametrize("bias", [1e30, 3e38, 1e39, 1e308])
def test_a_huge_logit_bias_forces_a_token(bias: float) -> None:
    assert _shares(_logits(TABLE), 5, logit_bias={2: bias}) == [0, 0, 5, 0]
    assert _one(_logits(TABLE), logit_bias={2: bias}, temperature=0.0) == 2


@pytest.mark.parametrize("bias", [-1e30, -3e38, -1e39, -1e308])
def test_a_huge_negative_logit_bias_rules_a_token_out(bias: float) -> None:
    assert _shares(_logits(TABLE), 6, logit_bias={0: bias}) == [0, 3, 2, 1]


def test_ruling_every_token_out_by_bias_leaves_their_odds() -> None:
    bias = dict.fromkeys(range(4), -100.0)
    assert _shares(_logits(TABLE), 10, logit_bias=bias) == [4, 3, 2, 1]


def test_a_huge_bias_on_every_token_still_draws_one() -> None:
    bias = dict.fromkeys(range(4), -1e308)
    assert sum(_shares(_logits(TABLE), 10, logit_bias=bias)) == 10


def test_only_allowed_tokens_are_drawn() -> None:
    assert _shares(_logits(TABLE), 6, allowed_token_ids=(1, 2, 3)) == [0, 3, 2, 1]


def test_an_allowed_token_may_be_named_twice() -> None:
    assert _shares(_logits(TABLE), 5, allowed_token_ids=(1, 2, 1)) == [0, 3, 2, 0]


def test_the_only_allowed_token_is_drawn_though_its_probability_is_zero() -> None:
    assert _shares(_logits((0.5, 0.5, 0.0, 0.0)), 4, allowed_token_ids=(3,)) == [0, 0, 0, 4]


def test_a_bad_word_of_one_token_is_never_drawn() -> None:
    assert _shares(_logits(TABLE), 6, bad_words=((0,),)) == [0, 3, 2, 1]


def test_the_last_token_of_a_bad_word_is_banned_after_its_beginning() -> None:
    assert _shares(_logits(TABLE), 6, bad_words=((2, 1, 0),), output=(2, 1)) == [0, 3, 2, 1]


def test_the_last_token_of_a_bad_word_is_free_after_anything_else() -> None:
    assert _shares(_logits(TABLE), 10, bad_words=((2, 1, 0),), output=(1, 1)) == [4, 3, 2, 1]


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    words = ((2, 1, 0),)
    assert _shares(_logits(TABLE), 6, bad_words=words, prompt=(2,), output=(1,)) == [0, 3, 2, 1]


def test_a_bad_word_longer_than_the_text_bans_nothing() -> None:
    assert _shares(_logits(TABLE), 10, bad_words=((3, 2, 1, 0),), output=(1,)) == [4, 3, 2, 1]


def test_end_tokens_that_are_banned_for_now_are_not_drawn() -> None:
    assert _shares(_logits(TABLE), 6, banned=(0,)) == [0, 3, 2, 1]
    assert _one(_logits(TABLE), temperature=0.0, banned=(0,)) == 1


def test_a_ban_on_every_token_is_no_ban() -> None:
    assert _shares(_logits(TABLE), 10, banned=(0, 1, 2, 3)) == [4, 3, 2, 1]


def test_a_ban_on_the_only_allowed_token_is_no_ban() -> None:
    assert _shares(_logits(TABLE), 4, allowed_token_ids=(2,), banned=(2,)) == [0, 0, 4, 0]


def _softmax_shares(values: Sequence[float]) -> list[float]:
    weights = [math.exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


def _assert_drawn_like(shares: Sequence[int], edited: Sequence[float]) -> None:
    """Check 1000 evenly spaced draws against a softmax; each token may be off by one draw."""
    assert np.array(shares) / 1000 == pytest.approx(_softmax_shares(edited), abs=1.01e-3)


PENALTY_ROW = np.array([[-2.0, 2.0, 1.0]], np.float32)


def test_repetition_divides_positive_and_multiplies_negative_logits_of_the_prompt() -> None:
    shares = _shares(PENALTY_ROW, 1000, prompt=(0, 1), repetition_penalty=1.9)
    _assert_drawn_like(shares, [-3.8, 2 / 1.9, 1.0])


def test_repetition_counts_the_output_too() -> None:
    shares = _shares(PENALTY_ROW, 1000, output=(1,), repetition_penalty=1.9)
    _assert_drawn_like(shares, [-2.0, 2 / 1.9, 1.0])


def test_repetition_counts_a_token_once() -> None:
    once = _shares(PENALTY_ROW, 100, output=(1,), repetition_penalty=1.5)
    often = _shares(PENALTY_ROW, 100, prompt=(1, 1), output=(1, 1), repetition_penalty=1.5)
    assert once == often


def test_repetition_below_one_favours_what_was_there() -> None:
    shares = _shares(PENALTY_ROW, 1000, prompt=(0, 2), repetition_penalty=0.5)
    _assert_drawn_like(shares, [-1.0, 2.0, 2.0])


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    plain = _shares(PENALTY_ROW, 1000)
    for penalty in ("presence_penalty", "frequency_penalty"):
        assert _shares(PENALTY_ROW, 1000, prompt=(0, 1), **{penalty: 2.0}) == plain


def test_presence_is_subtracted_once() -> None:
    shares = _shares(PENALTY_ROW, 1000, output=(1, 1, 1), presence_penalty=2.0)
    _assert_drawn_like(shares, [-2.0, 0.0, 1.0])


def test_frequency_is_subtracted_for_each_occurrence() -> None:
    shares = _shares(PENALTY_ROW, 1000, output=(1, 1, 1), frequency_penalty=0.5)
    _assert_drawn_like(shares, [-2.0, 0.5, 1.0])


def test_a_negative_frequency_penalty_favours_what_was_said() -> None:
    shares = _shares(PENALTY_ROW, 1000, output=(2, 2), frequency_penalty=-0.5)
    _assert_drawn_like(shares, [-2.0, 2.0, 2.0])


def test_all_three_penalties_add_up() -> None:
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": 0.125}
    shares = _shares(PENALTY_ROW, 1000, prompt=(0,), output=(1, 1), **penalties)
    _assert_drawn_like(shares, [-4.0, 1.0 - 0.25 - 2 * 0.125, 1.0])


def test_a_bias_comes_before_the_repetition_penalty() -> None:
    # (2 - 1) / 2, and not 2 / 2 - 1.
    penalty = {"logit_bias": {1: -1.0}, "repetition_penalty": 2.0}
    _assert_drawn_like(_shares(PENALTY_ROW, 1000, output=(1,), **penalty), [-2.0, 0.5, 1.0])


def test_penalties_come_before_temperature() -> None:
    shares = _shares(PENALTY_ROW, 1000, output=(1,), presence_penalty=1.0, temperature=0.5)
    _assert_drawn_like(shares, [-4.0, 2.0, 2.0])


def test_the_smallest_repetition_penalty_forces_a_likely_token() -> None:
    assert _shares(PENALTY_ROW, 10, prompt=(2,), repetition_penalty=1e-300) == [0, 0, 10]


def test_the_smallest_repetition_penalty_leaves_an_impossible_token_out() -> None:
    row = _logits((0.5, 0.5, 0.0))
    assert _shares(row, 10, prompt=(2,), repetition_penalty=1e-300) == [5, 5, 0]


def test_a_penalty_changes_the_greedy_token() -> None:
    assert _one(PENALTY_ROW, output=(1,), presence_penalty=2.0, temperature=0.0) == 2


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    assert _shares(_logits((0.5, 0.5, 0.0, 0.0)), 20) == [10, 10, 0, 0]
    assert _shares(_logits((0.5, 0.5, 0.0, 0.0)), 20, temperature=50.0) == [10, 10, 0, 0]


def test_a_penalty_leaves_a_token_of_probability_zero_out() -> None:
    shares = _shares(
        _logits((0.5, 0.5, 0.0, 0.0)),
        20,
        output=(2,),
        repetition_penalty=0.5,
        presence_penalty=-2.0,
    )
    assert shares[2:] == [0, 0]


def test_a_vocabulary_of_one_token_has_one_outcome() -> None:
    assert _shares(np.zeros((1, 1), np.float32), 5, top_p=0.5) == [5]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nan_or_infinity_is_invalid_and_its_neighbours_are_not(
    bad: float, temperature: float
) -> None:
    logits = np.repeat(_logits(TABLE), 3, axis=0)
    logits[1, 2] = bad
    params = SamplingParams(temperature=temperature, seed=_seed_of(0.5))
    rows = [RowState(params=params, counts=_counts(), position=0) for _ in range(3)]
    sampled = sample(logits, np.zeros(3, np.float32), rows)
    alone = sample(logits[:1], np.zeros(1, np.float32), rows[:1])
    assert sampled.is_valid.tolist() == [True, False, True]
    assert sampled.tokens.tolist() == [alone.tokens[0], 0, alone.tokens[0]]


def test_a_row_without_any_finite_logit_is_invalid() -> None:
    logits = np.full((1, 4), -np.inf, np.float32)
    rows = [RowState(params=SamplingParams(), counts=_counts(), position=0)]
    assert sample(logits, np.zeros(1, np.float32), rows).is_valid.tolist() == [False]


def test_a_row_whose_logsumexp_is_not_a_number_is_invalid() -> None:
    rows = [RowState(params=SamplingParams(), counts=_counts(), position=0)]
    sampled = sample(_logits(TABLE), np.array([np.nan], np.float32), rows)
    assert sampled.is_valid.tolist() == [False]


def test_the_raw_logits_are_left_as_they_were() -> None:
    logits = _logits(TABLE)
    before = logits.copy()
    _shares(logits, 1, output=(1,), logit_bias={0: 3.0}, presence_penalty=1.0, banned=(2,))
    assert logits.tobytes() == before.tobytes()
    batch = np.repeat(logits, 2, axis=0)
    params = SamplingParams(allowed_token_ids=(1,), repetition_penalty=1.5, bad_words=((0,),))
    rows = [RowState(params=params, counts=_counts((1,)), position=0) for _ in range(2)]
    sample(batch, np.zeros(2, np.float32), rows)
    assert batch.tobytes() == np.repeat(before, 2, axis=0).tobytes()


def test_the_draw_of_a_row_moves_with_seed_choice_and_position() -> None:
    logits = np.repeat(_logits([1 / 64] * 64), 40, axis=0)
    lse = np.zeros(40, np.float32)

    def tokens(**fields: Sequence[int]) -> list[int]:
        rows = [
            RowState(
                params=SamplingParams(
                    seed=fields.get("seed", [1] * 40)[i], choice=fields.get("choice", [0] * 40)[i]
                ),
                counts=_counts(),
                position=fields.get("position", [0] * 40)[i],
            )
            for i in range(40)
        ]
        return sample(logits, lse, rows).tokens.tolist()

    assert len(set(tokens())) == 1
    # 40 draws of 64 tokens give fewer than 20 different ones about twice in a million times.
    for field in ("seed", "choice", "position"):
        assert len(set(tokens(**{field: range(40)}))) >= 20


def test_logprobs_are_the_raw_logits_less_their_logsumexp() -> None:
    logits = np.array([[1.0, 2.0, 0.5, 0.0]], np.float32)
    lse = np.array([3.0], np.float32)
    assert logprobs_of(logits, lse, np.array([1])).tolist() == [-1.0]


def test_top_logprobs_come_best_first_and_of_equals_the_lower_id() -> None:
    row = np.array([1.0, 2.0, 0.5, 2.0], np.float32)
    assert top_logprobs(row, np.float32(2.5), 3) == [(1, -0.5), (3, -0.5), (0, -1.5)]


def test_top_logprobs_of_zero_are_none() -> None:
    assert top_logprobs(np.zeros(4, np.float32), np.float32(0), 0) == []


def test_top_logprobs_of_more_than_the_vocabulary_are_all() -> None:
    assert len(top_logprobs(np.zeros(4, np.float32), np.float32(0), 20)) == 4


def test_top_logprobs_are_the_same_floats_as_the_sampled_tokens() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (5, 5000)).astype(np.float32)
    lse = _logsumexp(logits)
    for row in range(5):
        for id, logprob in top_logprobs(logits[row], lse[row], 20):
            one = logprobs_of(logits[row : row + 1], lse[row : row + 1], np.array([id]))
            assert float(one[0]) == logprob
