"""What the three penalties do to the next token: see tables.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tables import one, row_of, shares


def _softmax_shares(values: Sequence[float]) -> list[float]:
    weights = [math.exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


def _assert_drawn_like(seen: Sequence[int], edited: Sequence[float]) -> None:
    """Check 1000 evenly spaced draws against a softmax; each token may be off by one draw."""
    assert np.array(seen) / 1000 == pytest.approx(_softmax_shares(edited), abs=1.01e-3)


PENALTY_ROW = np.array([[-2.0, 2.0, 1.0]], np.float32)


def test_repetition_divides_positive_and_multiplies_negative_logits_of_the_prompt() -> None:
    seen = shares(PENALTY_ROW, 1000, prompt=(0, 1), repetition_penalty=1.9)
    _assert_drawn_like(seen, [-3.8, 2 / 1.9, 1.0])


def test_repetition_counts_the_output_too() -> None:
    seen = shares(PENALTY_ROW, 1000, output=(1,), repetition_penalty=1.9)
    _assert_drawn_like(seen, [-2.0, 2 / 1.9, 1.0])


def test_repetition_counts_a_token_once() -> None:
    once = shares(PENALTY_ROW, 100, output=(1,), repetition_penalty=1.5)
    often = shares(PENALTY_ROW, 100, prompt=(1, 1), output=(1, 1), repetition_penalty=1.5)
    assert once == often


def test_repetition_below_one_favours_what_was_there() -> None:
    seen = shares(PENALTY_ROW, 1000, prompt=(0, 2), repetition_penalty=0.5)
    _assert_drawn_like(seen, [-1.0, 2.0, 2.0])


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    plain = shares(PENALTY_ROW, 1000)
    for penalty in ("presence_penalty", "frequency_penalty"):
        assert shares(PENALTY_ROW, 1000, prompt=(0, 1), **{penalty: 2.0}) == plain


def test_presence_is_subtracted_once() -> None:
    seen = shares(PENALTY_ROW, 1000, output=(1, 1, 1), presence_penalty=2.0)
    _assert_drawn_like(seen, [-2.0, 0.0, 1.0])


def test_frequency_is_subtracted_for_each_occurrence() -> None:
    seen = shares(PENALTY_ROW, 1000, output=(1, 1, 1), frequency_penalty=0.5)
    _assert_drawn_like(seen, [-2.0, 0.5, 1.0])


def test_a_negative_frequency_penalty_favours_what_was_said() -> None:
    seen = shares(PENALTY_ROW, 1000, output=(2, 2), frequency_penalty=-0.5)
    _assert_drawn_like(seen, [-2.0, 2.0, 2.0])


def test_all_three_penalties_add_up() -> None:
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": 0.125}
    seen = shares(PENALTY_ROW, 1000, prompt=(0,), output=(1, 1), **penalties)
    _assert_drawn_like(seen, [-4.0, 1.0 - 0.25 - 2 * 0.125, 1.0])


def test_a_bias_comes_before_the_repetition_penalty() -> None:
    # (2 - 1) / 2, and not 2 / 2 - 1.
    penalty = {"logit_bias": {1: -1.0}, "repetition_penalty": 2.0}
    _assert_drawn_like(shares(PENALTY_ROW, 1000, output=(1,), **penalty), [-2.0, 0.5, 1.0])


def test_penalties_come_before_temperature() -> None:
    seen = shares(PENALTY_ROW, 1000, output=(1,), presence_penalty=1.0, temperature=0.5)
    _assert_drawn_like(seen, [-4.0, 2.0, 2.0])


def test_the_smallest_repetition_penalty_forces_a_likely_token() -> None:
    assert shares(PENALTY_ROW, 10, prompt=(2,), repetition_penalty=1e-300) == [0, 0, 10]


def test_the_smallest_repetition_penalty_leaves_an_impossible_token_out() -> None:
    row = row_of((0.5, 0.5, 0.0))
    assert shares(row, 10, prompt=(2,), repetition_penalty=1e-300) == [5, 5, 0]


def test_a_penalty_changes_the_greedy_token() -> None:
    assert one(PENALTY_ROW, output=(1,), presence_penalty=2.0, temperature=0.0) == 2
