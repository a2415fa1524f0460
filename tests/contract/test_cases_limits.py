"""Known faults of other servers at the limits of the context (cases A-LIM-*)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving import Server, joined

CONTEXT = 256


def test_max_tokens_null_is_the_default(plain: Server) -> None:
    """A-LIM-01."""
    for absent in (None, ...):
        document = plain.complete("Count: 1 2 3", max_tokens=absent)
        assert document["usage"]["completion_tokens"] == 16
        assert document["choices"][0]["finish_reason"] == "length"
        assert joined(plain.stream("Count: 1 2 3", max_tokens=absent)) == plain.text("Count: 1 2 3")


def test_max_tokens_0_generates_nothing(plain: Server) -> None:
    """A-LIM-01, with echo and without."""
    for fields in ({}, {"echo": True}):
        document = plain.complete("Count", max_tokens=0, **fields)
        assert document["usage"]["completion_tokens"] == 0
        assert document["choices"][0]["text"] == ("Count" if fields else "")
        assert document["choices"][0]["finish_reason"] == "length"


def test_the_default_is_cut_to_what_the_context_leaves(plain: Server) -> None:
    """A-LIM-01: nobody asked for 16."""
    document = plain.complete([5] * (CONTEXT - 3))
    assert document["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"),
    [(8, CONTEXT - 3), (CONTEXT, 1), (CONTEXT + 1, 1), (8, 10**12), (CONTEXT + 1, 0), (400, None)],
)
def test_what_does_not_fit_is_refused_with_the_true_numbers(
    plain: Server, prompt_tokens: int, max_tokens: int | None, is_streamed: bool
) -> None:
    """A-LIM-02."""
    body = plain.body([5] * prompt_tokens, max_tokens=max_tokens, stream=is_streamed)
    error = plain.refused(body)
    asked = 16 if max_tokens is None else max_tokens
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
    assert numbers == [CONTEXT, prompt_tokens + asked, prompt_tokens, asked]


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"), [(CONTEXT - 1, 1), (8, CONTEXT - 8), (CONTEXT, 0)]
)
def test_an_exact_fit_is_accepted(plain: Server, prompt_tokens: int, max_tokens: int) -> None:
    """A-LIM-02."""
    fields: dict[str, Any] = {"max_tokens": max_tokens, "echo": max_tokens == 0}
    document = plain.complete([5] * prompt_tokens, **fields)
    assert document["usage"]["completion_tokens"] == max_tokens


def test_together_fills_the_rest_of_the_context(plain: Server) -> None:
    """Its max_tokens has no default but the room there is."""
    document = plain.complete([5] * 100, path="/completions")
    assert document["usage"]["completion_tokens"] == CONTEXT - 100


def test_a_prompt_can_be_cut_to_its_end(plain: Server) -> None:
    """The extension keeps the last tokens."""
    fields: dict[str, Any] = {"max_tokens": 1, "return_token_ids": True}
    ids = list(range(20)) * 20
    cut = plain.complete(ids, truncate_prompt_tokens=5, **fields)
    assert cut["choices"][0]["prompt_token_ids"] == ids[-5:]
    fitted = plain.complete(ids, truncate_prompt_tokens=-1, **fields)
    assert fitted["usage"]["prompt_tokens"] == CONTEXT - 1
