"""Known faults of other servers in prompts and in fanning them out (cases A-PR-*, A-N-*)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from serving import Server, joined


def test_an_empty_prompt_is_refused_where_the_model_has_no_bos(plain: Server) -> None:
    """A-PR-01, a tokenizer without BOS."""
    for prompt in ("", [""], None, ..., [], [[]], ["a", ""], [[1], []]):
        assert plain.refused(plain.body(prompt, max_tokens=4))["param"] == "prompt"
        assert plain.text("x", max_tokens=1)


def test_an_empty_prompt_is_the_beginning_of_a_document(pieces: Server) -> None:
    """A-PR-01, a tokenizer with BOS."""
    for prompt, count in (("", 1), ([""], 1), (["a", ""], 2)):
        usage = pieces.complete(prompt, max_tokens=4)["usage"]
        assert usage["completion_tokens"] == 4 * count
    assert pieces.complete("", max_tokens=1)["usage"]["prompt_tokens"] == 1
    assert pieces.text("", add_special_tokens=False) == pieces.text("")
    for prompt in ([], [[]], None):
        assert pieces.refused(pieces.body(prompt))["param"] == "prompt"


@pytest.mark.parametrize(
    "wrong", [-1, "V", "V+7", 2147483648, 5000000000000000001, 18446744073709551616]
)
def test_ids_outside_the_vocabulary_are_refused(plain: Server, wrong: int | str) -> None:
    """A-PR-02."""
    vocab = plain.client.get("/tokenizer_info").json()["vocab_size"]
    id = {"V": vocab, "V+7": vocab + 7}.get(str(wrong), wrong)
    for prompt in ([id], [[id]], [[5], [id]], [5, id]):
        assert plain.refused(plain.body(prompt, max_tokens=2))["param"] == "prompt"
    for right in ([0], [vocab - 1], [5.0]):
        assert plain.complete(right, max_tokens=2)["usage"]["prompt_tokens"] == 1


def test_strings_and_lists_of_ids_are_batches_and_flat_ids_one_prompt(plain: Server) -> None:
    """A-PR-03."""
    words = ["Put", "those", "here"]
    choices = plain.complete(words, max_tokens=3, echo=True)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for choice, word in zip(choices, words, strict=True):
        assert choice["text"].startswith(word)
    assert len(plain.complete([1, 2, 3], max_tokens=1)["choices"]) == 1
    assert len(plain.complete([[1, 2], [3]], max_tokens=1)["choices"]) == 2
    for mixed in (["a", 1], ["a", [1]], [["a"]], [1.5], [True], {"a": 1}, 5, [None], [[1], 2]):
        assert plain.refused(plain.body(mixed))["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 100_000}, "prompt"),
        ({"n": 1_000_000_000}, "n"),
        ({"prompt": ["a"] * 64, "n": 100}, "prompt"),
        ({"best_of": 1_000_000}, "best_of"),
        ({"prompt": ["a"] * 2, "best_of": 65}, "prompt"),
    ],
)
def test_a_request_that_fans_out_too_far_is_refused_at_once(
    plain: Server, fields: dict[str, Any], param: str
) -> None:
    """A-PR-04."""
    body = plain.body(**{"max_tokens": 1, **fields})
    start = time.monotonic()
    assert plain.refused(body)["param"] == param
    assert time.monotonic() - start < 1.0


def test_what_can_never_wait_in_the_queue_is_refused_for_good(narrow: Server) -> None:
    """One slot and a queue of two hold three sequences: a 429 would be tried again and again."""
    assert len(narrow.complete("Hi", n=3, max_tokens=1)["choices"]) == 3
    for fields in ({"n": 4}, {"n": 1, "best_of": 4}, {"prompt": ["a"] * 4}):
        error = narrow.refused({**narrow.body("Hi", max_tokens=1), **fields})
        assert "must be <= 3, got 4" in error["message"]


def test_choices_come_prompt_by_prompt(plain: Server) -> None:
    """A-N-01."""
    prompts = ["alpha beta", "gamma delta"]
    document = plain.complete(prompts, n=2, max_tokens=4, echo=True, seed=1, temperature=1)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    for choice in document["choices"]:
        assert choice["text"].startswith(prompts[choice["index"] // 2])


def test_each_choice_of_a_stream_ends_under_its_own_index(plain: Server) -> None:
    """A-N-02."""
    fields: dict[str, Any] = {"n": 3, "max_tokens": 6, "temperature": 1, "seed": 5}
    chunks = plain.stream("Hello", **fields)
    whole = plain.complete("Hello", **fields)["choices"]
    endings = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in endings) == [0, 1, 2]
    assert [joined(chunks, i) for i in range(3)] == [choice["text"] for choice in whole]


def test_best_of_returns_the_likeliest_candidates_first(plain: Server) -> None:
    """A-N-03."""
    fields: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 5, "logprobs": 0}
    document = plain.complete("Hi", best_of=3, **fields)
    means = [sum(c["logprobs"]["token_logprobs"]) / 5 for c in document["choices"]]
    assert means[0] >= means[1]
    assert [choice["index"] for choice in document["choices"]] == [0, 1]
    assert document["usage"]["completion_tokens"] == 15
    everything = plain.complete("Hi", **{**fields, "n": 3})["choices"]
    all_means = sorted((sum(c["logprobs"]["token_logprobs"]) / 5 for c in everything), reverse=True)
    assert means == pytest.approx(all_means[:2])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
    ],
)
def test_candidates_that_make_no_sense_are_refused(
    plain: Server, fields: dict[str, Any], param: str
) -> None:
    """A-N-03, the refusals."""
    assert plain.refused(plain.body("Hi", **fields))["param"] == param


def test_n_and_best_of_at_their_limits(plain: Server) -> None:
    """A-N-03, what is allowed."""
    assert plain.complete("Hi", n=1, best_of=1, max_tokens=1)
    assert len(plain.complete("Hi", n=128, max_tokens=1)["choices"]) == 128
    equal = plain.complete("Hi", n=2, max_tokens=4)["choices"]
    assert equal[0]["text"] == equal[1]["text"]
    assert plain.stream("Hi", n=2, best_of=2, max_tokens=1)
