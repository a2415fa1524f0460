"""A request is checked when it is made, and a refusal names the field and its range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ortolan_runtime.errors import ContextLengthExceeded, InvalidParameter
from ortolan_runtime.params import GenerationRequest, SamplingParams

NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 100.1, NAN, INFINITY]),
        ("top_k", [-1]),
        ("top_p", [0.0, -0.1, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("frequency_penalty", [-2.1, 2.1, NAN]),
        ("presence_penalty", [-2.1, 2.1, NAN]),
        ("repetition_penalty", [0.0, -1.0, 2.1, NAN]),
        ("logit_bias", [{1: NAN}, {1: 0.0, 2: INFINITY}]),
        ("bad_words", [((),)]),
        ("seed", [2**63, -(2**63) - 1]),
        ("choice", [-1, 2**63]),
    ],
)
def test_a_sampling_value_outside_its_range_is_refused_by_name(
    field: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidParameter, match=f"^`{field}` must ") as caught:
            SamplingParams(**{field: value})
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0.0, 1e-300, 2.0, 100.0]),
        ("top_k", [0, 1, 10**9]),
        ("top_p", [1e-9, 1.0]),
        ("min_p", [0.0, 1.0]),
        ("frequency_penalty", [-2.0, 2.0]),
        ("presence_penalty", [-2.0, 2.0]),
        ("repetition_penalty", [1e-9, 2.0]),
        ("logit_bias", [{}, {1: -100.0}, {1: 1e308}]),
        ("seed", [0, -1, 2**63 - 1, -(2**63)]),
    ],
)
def test_the_ends_of_each_range_are_accepted(field: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ()),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("stop", ("x", "")),
        ("stop", "x"),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
    ],
)
def test_a_field_of_a_request_outside_its_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=f"^`{field}` must "):
        GenerationRequest(**{"prompt": (1,), field: value})


def test_no_message_repeats_a_long_value() -> None:
    error = InvalidParameter("prompt", "must be shorter", "secret " * 100)
    assert len(str(error)) < 120


def test_a_request_that_is_too_long_says_how_long_it_is() -> None:
    error = ContextLengthExceeded(context_length=2048, prompt_tokens=1100, max_tokens=1000)
    assert str(error) == (
        "`max_tokens` + prompt must be <= 2048 tokens, got 2100 (prompt 1100, `max_tokens` 1000)"
    )
