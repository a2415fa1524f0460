"""Known faults of other servers around stop strings, ruled out (cases A-STOP-*)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serving import Server, joined

WEEK = "The days of the week are Monday, Tuesday,"
COUNTING = "1 2 3 4 5 6"
TOKENSMIND = "/tokensmind/v1/completions"


def cut(text: str, stop: str, *, included: bool = False) -> str:
    """Return ``text`` up to the first ``stop``."""
    return text[: text.index(stop) + (len(stop) if included else 0)]


def spanning_stops(tokens: list[str], count: int) -> list[str]:
    """Return strings from the middle of a token to the middle of the next but one."""
    draw = random.Random(5)
    longer = [i for i in range(len(tokens) - 2) if len(tokens[i]) > 1 and len(tokens[i + 2]) > 1]
    found = []
    for _ in range(count):
        i = draw.choice(longer)
        start = draw.randrange(1, len(tokens[i]))
        end = draw.randrange(1, len(tokens[i + 2]))
        found.append(tokens[i][start:] + tokens[i + 1] + tokens[i + 2][:end])
    return found


@pytest.mark.parametrize("path", ["/v1/completions", TOKENSMIND])
def test_a_stop_string_over_several_tokens_is_cut_whole_and_never_streamed(
    glass: Server, path: str
) -> None:
    """A-STOP-01."""
    free = glass.complete(WEEK, max_tokens=32, logprobs=1)["choices"][0]
    for stop in spanning_stops(free["logprobs"]["tokens"], 20):
        fields: dict[str, Any] = {"max_tokens": 32, "stop": [stop], "path": path}
        want = cut(free["text"], stop, included=path == TOKENSMIND)
        plain = glass.complete(WEEK, **fields)["choices"][0]
        chunks = glass.stream(WEEK, **fields)
        assert plain["text"] == joined(chunks) == want
        assert plain["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_held_text_is_flushed_when_generation_ends_for_another_reason(glass: Server) -> None:
    """A-STOP-02, ended by max_tokens."""
    free = glass.text("Count: 1 2 3", max_tokens=12)
    for length in range(1, 9):
        stop = [free[-length:] + "\u0001never"]
        chunks = glass.stream("Count: 1 2 3", max_tokens=12, stop=stop)
        assert joined(chunks) == free
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_held_text_is_flushed_at_the_models_own_end(actor: Server) -> None:
    """A-STOP-02, ended by EOS."""
    for length in range(1, 9):
        stop = [COUNTING[-length:] + "\u0001never"]
        chunks = actor.stream("x" * 40, max_tokens=50, stop=stop)
        assert joined(chunks) == COUNTING
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_four_arrays_of_logprobs_are_cut_with_the_text(
    glass: Server, is_streamed: bool
) -> None:
    """A-STOP-03."""
    prompt = "The days of the week are Monday,"
    free = glass.complete(prompt, max_tokens=24, logprobs=2)["choices"][0]
    tokens = free["logprobs"]["tokens"]
    for stop in [*spanning_stops(tokens, 4), tokens[3], tokens[0]]:
        fields: dict[str, Any] = {"max_tokens": 24, "logprobs": 2, "stop": [stop]}
        if is_streamed:
            chunks = glass.stream(prompt, **fields)
            text, shown = joined(chunks), [c["choices"][0]["logprobs"] for c in chunks]
            arrays = {name: sum((s[name] for s in shown if s), []) for name in free["logprobs"]}
        else:
            choice = glass.complete(prompt, **fields)["choices"][0]
            text, arrays = choice["text"], choice["logprobs"]
        assert len({len(array) for array in arrays.values()}) == 1
        assert "".join(arrays["tokens"]).startswith(text)
        end = len(prompt) + len(text) + len(stop)
        assert all(offset <= end for offset in arrays["text_offset"])


def test_offsets_of_a_stream_do_not_depend_on_what_was_held_back(actor: Server) -> None:
    """The text of a token may be out before the token, all but what may begin a stop string."""
    fields: dict[str, Any] = {"max_tokens": 9, "logprobs": 1, "stop": ["c\u0001never"]}
    whole = actor.complete("x" * 120, **fields)["choices"][0]["logprobs"]
    chunks = actor.stream("x" * 120, **fields)
    scored = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert joined(chunks) == "\n\nabc"
    assert [offset for part in scored if part for offset in part["text_offset"]] == [120, 122, 125]
    assert whole["text_offset"] == [120, 122, 125]


def test_logprobs_hold_at_an_end_by_token(actor: Server) -> None:
    """A-STOP-03, ended by EOS."""
    choice = actor.complete("x" * 60, max_tokens=20, logprobs=2)["choices"][0]
    assert choice["text"] == "hello world"
    assert choice["logprobs"]["tokens"] == ["hello", " world", "<e2>"]
    assert len({len(array) for array in choice["logprobs"].values()}) == 1


def test_an_empty_stop_string_is_refused_and_no_stop_string_is_none(plain: Server) -> None:
    """A-STOP-04."""
    for stop in ("", [""], ["x", ""], [1], 5, {"a": 1}, ["x"] * 17):
        assert plain.refused(plain.body("Hi", stop=stop))["param"] == "stop"
    free = plain.text("Hi", max_tokens=5)
    for none in ([], None):
        assert plain.text("Hi", max_tokens=5, stop=none) == free
    assert plain.complete("Hi", max_tokens=5, stop="\n")
    assert plain.complete("Hi", max_tokens=5, stop=list("abcdefgh"))


def test_more_than_four_stop_strings_are_refused_where_the_document_says_so(
    plain: Server, strict: Server
) -> None:
    """A-STOP-04, at the limit that two documents give."""
    five = ["a", "b", "c", "d", "e"]
    second = "/openai/completions"
    assert plain.refused(plain.body("Hi", stop=five), path=second)["param"] == "stop"
    assert strict.refused(strict.body("Hi", stop=five))["param"] == "stop"
    assert plain.complete("Hi", max_tokens=1, stop=five[:4], path=second)


def first_stop(text: str, stops: list[str]) -> str:
    """Return ``text`` cut as if its characters came one by one: the oracle."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))]
    return text


def test_the_stop_that_completes_first_wins_in_any_order(glass: Server) -> None:
    """A-STOP-05."""
    prompt = "Ask which one and"
    free = glass.text(prompt, max_tokens=24)
    middle = len(free) // 2
    pairs = [
        ["ic", "hi"],
        [free[middle : middle + 4], free[middle + 1 : middle + 3]],
        [free[middle : middle + 2], free[middle : middle + 3]],
        [free[middle : middle + 3], free[middle + 2 : middle + 5]],
        [free[3:5], free[3:4], "never"],
    ]
    for stops in pairs:
        want = first_stop(free, stops)
        for ordered in (stops, stops[::-1]):
            assert glass.text(prompt, max_tokens=24, stop=ordered) == want
            assert joined(glass.stream(prompt, max_tokens=24, stop=ordered)) == want


def test_a_stop_string_twice_in_one_token_cuts_before_the_first(actor: Server) -> None:
    """A-STOP-05, a token of two line breaks."""
    prompt = "x" * 120
    assert actor.text(prompt, max_tokens=9) == "\n\nabc"
    assert actor.text(prompt, max_tokens=9, stop=["\n"]) == ""


@pytest.mark.parametrize("path", ["/v1/completions", TOKENSMIND])
def test_a_stop_string_in_the_first_token_leaves_an_empty_text(glass: Server, path: str) -> None:
    """A-STOP-06."""
    prompt = "Say again: 7 8 9"
    first = glass.complete(prompt, max_tokens=1, logprobs=0)["choices"][0]["text"]
    want = first if path == TOKENSMIND else ""
    fields: dict[str, Any] = {"max_tokens": 8, "stop": [first], "path": path}
    document = glass.complete(prompt, **fields)
    assert document["choices"][0]["text"] == want
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == 1
    chunks = glass.stream(prompt, **fields)
    assert joined(chunks) == want
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({}, ""),
        ({"include_stop_str_in_output": True}, "<bos>"),
        ({"path": TOKENSMIND}, "<bos>"),
    ],
)
def test_a_stop_string_may_be_a_control_token_that_the_text_does_not_show(
    plain: Server, fields: dict[str, Any], added: str
) -> None:
    """Such as `<|im_end|>`, where it is not the model's own end."""
    text = plain.text(max_tokens=2)
    wanted = {"max_tokens": 9, "min_tokens": 2, "stop": ["never", "<bos>"], "logprobs": 0}
    wanted |= {"logit_bias": {"257": 100}, **fields}
    answer = plain.complete(**wanted)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text + added, "stop")
    assert answer["usage"]["completion_tokens"] == 3
    assert joined(plain.stream(**wanted)) == text + added


def test_the_stop_string_stays_when_asked_for(glass: Server) -> None:
    """The extension gives every dialect what TokensMind does."""
    free = glass.text(WEEK, max_tokens=20)
    stop = free[5:8]
    want = cut(free, stop, included=True)
    assert glass.text(WEEK, max_tokens=20, stop=stop, include_stop_str_in_output=True) == want
    without = {"include_stop_str_in_output": False, "path": TOKENSMIND}
    assert glass.text(WEEK, max_tokens=20, stop=stop, **without) == cut(free, stop)
