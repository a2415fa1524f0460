"""What each parameter does to the next token, on tables of four tokens: see tables.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tables import TABLE, counts_of, logsumexp_of, one, row_of, shares

from ortolan_runtime.adjustments import RowState
from ortolan_runtime.params import SamplingParams
from ortolan_runtime.sampling import logprob_of, sample, top_logprobs


def test_neutral_parameters_draw_by_the_models_own_probabilities() -> None:
    assert shares(row_of(TABLE), 20) == [8, 6, 4, 2]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert shares(row_of((0.2, 0.4, 0.3, 0.1)), 20, temperature=0.0) == [0, 20, 0, 0]


def test_temperature_zero_takes_the_lower_id_of_two_equal_tokens() -> None:
    assert shares(row_of((0.1, 0.4, 0.4, 0.1)), 20, temperature=0.0) == [0, 20, 0, 0]


def test_temperature_one_half_squares_the_probabilities() -> None:
    assert shares(row_of(TABLE), 30, temperature=0.5) == [16, 9, 4, 1]


def test_temperature_two_takes_the_root_of_the_probabilities() -> None:
    assert shares(row_of((0.64, 0.16, 0.16, 0.04)), 18, temperature=2.0) == [8, 4, 4, 2]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-40, 1e-8, 1e-5, 1e-4])
def test_a_tiny_temperature_takes_the_likeliest_token(temperature: float) -> None:
    assert shares(row_of(TABLE), 20, temperature=temperature) == [20, 0, 0, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-40, 1e-8])
def test_a_tiny_temperature_takes_the_likeliest_of_a_large_vocabulary(temperature: float) -> None:
    logits = np.zeros((1, 20_000), np.float32)
    logits[0, 12_345] = 1e-3
    assert one(logits, temperature=temperature) == 12_345


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-40, 1e-6, 1e-5])
def test_a_tiny_temperature_takes_the_likeliest_of_a_large_vocabulary_that_was_edited(
    temperature: float,
) -> None:
    logits = np.zeros((1, 20_000), np.float32)
    logits[0, 12_345] = 1e-3
    assert one(logits, temperature=temperature, logit_bias={7: -1e308}) == 12_345


def test_top_k_leaves_the_k_likeliest() -> None:
    assert shares(row_of(TABLE), 7, top_k=2) == [4, 3, 0, 0]


def test_top_k_one_is_greedy() -> None:
    assert shares(row_of(TABLE), 20, top_k=1) == [20, 0, 0, 0]


def test_top_k_zero_is_off() -> None:
    assert shares(row_of(TABLE), 20, top_k=0) == [8, 6, 4, 2]


def test_top_k_of_more_than_the_vocabulary_leaves_all() -> None:
    assert shares(row_of(TABLE), 20, top_k=10**9) == [8, 6, 4, 2]


def test_top_k_leaves_the_lower_ids_of_equal_tokens() -> None:
    assert shares(row_of((0.25, 0.25, 0.25, 0.25)), 20, top_k=2) == [10, 10, 0, 0]


def test_top_p_leaves_the_fewest_tokens_that_hold_that_mass() -> None:
    assert shares(row_of(TABLE), 7, top_p=0.6) == [4, 3, 0, 0]


def test_top_p_counts_the_token_that_reaches_the_mass() -> None:
    assert shares(row_of((0.5, 0.25, 0.125, 0.125)), 3, top_p=0.75) == [2, 1, 0, 0]


def test_the_smallest_top_p_leaves_the_likeliest_token() -> None:
    assert shares(row_of(TABLE), 20, top_p=1e-9) == [20, 0, 0, 0]


def test_top_p_leaves_the_lower_ids_of_equal_tokens() -> None:
    assert shares(row_of((0.25, 0.25, 0.25, 0.25)), 20, top_p=0.5) == [10, 10, 0, 0]


def test_min_p_leaves_tokens_of_that_share_of_the_likeliest() -> None:
    assert shares(row_of(TABLE), 9, min_p=0.45) == [4, 3, 2, 0]


def test_min_p_one_leaves_the_likeliest_token() -> None:
    assert shares(row_of(TABLE), 20, min_p=1.0) == [20, 0, 0, 0]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # 0.4 + 0.3 of 0.9 is 0.78; of the whole it would not reach 0.75.
    assert shares(row_of(TABLE), 7, top_k=3, top_p=0.75) == [4, 3, 0, 0]


def test_top_p_is_a_share_after_temperature() -> None:
    # Squared, the likeliest holds 16/30.
    assert shares(row_of(TABLE), 20, temperature=0.5, top_p=0.5) == [20, 0, 0, 0]


def test_min_p_is_a_share_after_temperature() -> None:
    # Squared, the second has 9/16 of the likeliest, the third 4/16.
    assert shares(row_of(TABLE), 25, temperature=0.5, min_p=0.3) == [16, 9, 0, 0]


def test_the_strictest_of_top_k_top_p_and_min_p_decides() -> None:
    assert shares(row_of(TABLE), 7, top_k=3, top_p=0.95, min_p=0.7) == [4, 3, 0, 0]


def test_a_logit_bias_multiplies_the_odds() -> None:
    bias = {3: math.log(3)}
    assert shares(row_of((0.5, 0.3, 0.1, 0.1)), 12, logit_bias=bias) == [5, 3, 1, 3]


def test_a_logit_bias_of_minus_100_rules_a_token_out() -> None:
    assert shares(row_of(TABLE), 6, logit_bias={0: -100.0}) == [0, 3, 2, 1]


def test_a_logit_bias_of_100_forces_a_token() -> None:
    assert shares(row_of(TABLE), 20, logit_bias={3: 100.0}) == [0, 0, 0, 20]


def test_a_logit_bias_changes_the_greedy_token() -> None:
    assert one(row_of(TABLE), temperature=0.0, logit_bias={2: 2.0}) == 2


def test_a_logit_bias_comes_before_temperature() -> None:
    # 0.1 times 2 is 0.2; squared, the shares are 16 : 9 : 4 : 4.
    bias = {3: math.log(2)}
    assert shares(row_of(TABLE), 33, temperature=0.5, logit_bias=bias) == [16, 9, 4, 4]


@pytest.mark.parametrize("bias", [1e30, 3e38, 1e39, 1e308])
def test_a_huge_logit_bias_forces_a_token(bias: float) -> None:
    assert shares(row_of(TABLE), 5, logit_bias={2: bias}) == [0, 0, 5, 0]
    assert one(row_of(TABLE), logit_bias={2: bias}, temperature=0.0) == 2


@pytest.mark.parametrize("bias", [-1e30, -3e38, -1e39, -1e308])
def test_a_huge_negative_logit_bias_rules_a_token_out(bias: float) -> None:
    assert shares(row_of(TABLE), 6, logit_bias={0: bias}) == [0, 3, 2, 1]


def test_ruling_every_token_out_by_bias_leaves_their_odds() -> None:
    bias = dict.fromkeys(range(4), -100.0)
    assert shares(row_of(TABLE), 10, logit_bias=bias) == [4, 3, 2, 1]


def test_a_huge_bias_on_every_token_still_draws_one() -> None:
    bias = dict.fromkeys(range(4), -1e308)
    assert sum(shares(row_of(TABLE), 10, logit_bias=bias)) == 10


def test_only_allowed_tokens_are_drawn() -> None:
    assert shares(row_of(TABLE), 6, allowed_token_ids=(1, 2, 3)) == [0, 3, 2, 1]


def test_an_allowed_token_may_be_named_twice() -> None:
    assert shares(row_of(TABLE), 5, allowed_token_ids=(1, 2, 1)) == [0, 3, 2, 0]


def test_the_only_allowed_token_is_drawn_though_its_probability_is_zero() -> None:
    assert shares(row_of((0.5, 0.5, 0.0, 0.0)), 4, allowed_token_ids=(3,)) == [0, 0, 0, 4]


def test_a_bad_word_of_one_token_is_never_drawn() -> None:
    assert shares(row_of(TABLE), 6, bad_words=((0,),)) == [0, 3, 2, 1]


def test_the_last_token_of_a_bad_word_is_banned_after_its_beginning() -> None:
    assert shares(row_of(TABLE), 6, bad_words=((2, 1, 0),), output=(2, 1)) == [0, 3, 2, 1]


def test_the_last_token_of_a_bad_word_is_free_after_anything_else() -> None:
    assert shares(row_of(TABLE), 10, bad_words=((2, 1, 0),), output=(1, 1)) == [4, 3, 2, 1]


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    words = ((2, 1, 0),)
    assert shares(row_of(TABLE), 6, bad_words=words, prompt=(2,), output=(1,)) == [0, 3, 2, 1]


def test_a_bad_word_longer_than_the_text_bans_nothing() -> None:
    assert shares(row_of(TABLE), 10, bad_words=((3, 2, 1, 0),), output=(1,)) == [4, 3, 2, 1]


def test_end_tokens_that_are_banned_for_now_are_not_drawn() -> None:
    assert shares(row_of(TABLE), 6, banned=(0,)) == [0, 3, 2, 1]
    assert one(row_of(TABLE), temperature=0.0, banned=(0,)) == 1


def test_a_ban_on_every_token_is_no_ban() -> None:
    assert shares(row_of(TABLE), 10, banned=(0, 1, 2, 3)) == [4, 3, 2, 1]


def test_a_ban_on_the_only_allowed_token_is_no_ban() -> None:
    assert shares(row_of(TABLE), 4, allowed_token_ids=(2,), banned=(2,)) == [0, 0, 4, 0]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    assert shares(row_of((0.5, 0.5, 0.0, 0.0)), 20) == [10, 10, 0, 0]
    assert shares(row_of((0.5, 0.5, 0.0, 0.0)), 20, temperature=50.0) == [10, 10, 0, 0]


def test_a_penalty_leaves_a_token_of_probability_zero_out() -> None:
    seen = shares(
        row_of((0.5, 0.5, 0.0, 0.0)),
        20,
        output=(2,),
        repetition_penalty=0.5,
        presence_penalty=-2.0,
    )
    assert seen[2:] == [0, 0]


def test_a_vocabulary_of_one_token_has_one_outcome() -> None:
    assert shares(np.zeros((1, 1), np.float32), 5, top_p=0.5) == [5]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nan_or_infinity_is_invalid_and_its_neighbours_are_not(
    bad: float, temperature: float
) -> None:
    logits = np.repeat(row_of(TABLE), 3, axis=0)
    logits[1, 2] = bad
    params = SamplingParams(temperature=temperature)
    rows = [RowState(params=params, counts=counts_of(), draw=0.5) for _ in range(3)]
    with np.errstate(invalid="ignore"):
        sums = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))
    sampled = sample(logits, sums, rows)
    alone = sample(logits[:1], sums[:1], rows[:1])
    assert sampled.is_valid.tolist() == [True, False, True]
    assert sampled.tokens.tolist() == [alone.tokens[0], 0, alone.tokens[0]]


def test_a_row_without_any_finite_logit_is_invalid() -> None:
    logits = np.full((1, 4), -np.inf, np.float32)
    rows = [RowState(params=SamplingParams(), counts=counts_of(), draw=0.5)]
    nothing = np.array([-np.inf], np.float32)
    assert sample(logits, nothing, rows).is_valid.tolist() == [False]


def test_a_row_whose_logsumexp_is_not_a_number_is_invalid() -> None:
    rows = [RowState(params=SamplingParams(), counts=counts_of(), draw=0.5)]
    sampled = sample(row_of(TABLE), np.array([np.nan], np.float32), rows)
    assert sampled.is_valid.tolist() == [False]


def test_the_raw_logits_are_left_as_they_were() -> None:
    logits = row_of(TABLE)
    before = logits.copy()
    shares(logits, 1, output=(1,), logit_bias={0: 3.0}, presence_penalty=1.0, banned=(2,))
    assert logits.tobytes() == before.tobytes()
    batch = np.repeat(logits, 2, axis=0)
    params = SamplingParams(allowed_token_ids=(1,), repetition_penalty=1.5, bad_words=((0,),))
    rows = [RowState(params=params, counts=counts_of((1,)), draw=0.5) for _ in range(2)]
    sample(batch, np.zeros(2, np.float32), rows)
    assert batch.tobytes() == np.repeat(before, 2, axis=0).tobytes()


def test_a_logprob_is_the_raw_logit_less_the_logsumexp() -> None:
    row = np.array([1.0, 2.0, 0.5, 0.0], np.float32)
    assert logprob_of(row, np.float32(3.0), 1) == -1.0


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
    lse = logsumexp_of(logits)
    for row in range(5):
        for id, logprob in top_logprobs(logits[row], lse[row], 20):
            assert logprob_of(logits[row], lse[row], id) == logprob
