"""Known faults of other servers in echo and logprobs (cases A-ECHO-*, A-LP-*, A-CACHE-*)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from serving import Json, Server, joined, serving

BREAD = "Bread is baked in an oven at"


def arrays(choice: Json) -> Json:
    """Return a choice's logprobs after checking that they belong together."""
    shown: Json = choice["logprobs"]
    assert len({len(array) for array in shown.values()}) == 1
    for logprob in shown["token_logprobs"]:
        assert logprob is None or (math.isfinite(logprob) and logprob <= 0)
    return shown


def merged(chunks: list[Json]) -> Json:
    """Return the logprobs of a stream's chunks as one."""
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: sum((part[name] for part in shown if part), []) for name in names}


@pytest.mark.parametrize("logprobs", [1, None])
def test_scoring_a_prompt_without_generating_is_a_request_like_any_other(
    glass: Server, logprobs: int | None
) -> None:
    """A-ECHO-01."""
    prompt = "Question: is water wet? Answer: yes"
    fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": logprobs}
    document = glass.complete(prompt, **fields)
    choice, usage = document["choices"][0], document["usage"]
    assert choice["text"] == prompt
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens"] == 0
    if logprobs is not None:
        assert len(arrays(choice)["tokens"]) == usage["prompt_tokens"]
    assert joined(glass.stream(prompt, **fields)) == prompt
    assert glass.text("Hello", max_tokens=3)


@pytest.mark.parametrize(
    ("server", "prompt"), [("glass", BREAD), ("pieces", "The quick fox"), ("pieces", "a fox")]
)
def test_echo_with_logprobs_scores_the_prompt_too(
    server: str, prompt: str, request: pytest.FixtureRequest
) -> None:
    """A-ECHO-02; in `a fox` the space before the first word is a token of its own."""
    served: Server = request.getfixturevalue(server)
    fields: dict[str, Any] = {"echo": True, "logprobs": 5, "max_tokens": 1}
    document = served.complete(prompt, **fields)
    choice, count = document["choices"][0], document["usage"]["prompt_tokens"]
    shown = arrays(choice)
    assert len(shown["tokens"]) == count + 1
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None
    assert all(logprob <= 0 for logprob in shown["token_logprobs"][1:])
    assert "".join(shown["tokens"]) == choice["text"]
    lengths = [len("".join(shown["tokens"][:i])) for i in range(count + 1)]
    assert shown["text_offset"] == lengths
    assert merged(served.stream(prompt, **fields)) == shown


def test_echoed_scores_are_those_of_a_request_for_the_prefix(glass: Server) -> None:
    """A-ECHO-02, against single steps; ids and batches give the same."""
    ids = glass.post("/tokenize", {"prompt": BREAD}).json()["tokens"]
    fields: dict[str, Any] = {"echo": True, "logprobs": 5, "max_tokens": 1}
    shown = arrays(glass.complete(ids, **fields)["choices"][0])
    compared = 0
    for position in range(3, len(ids)):
        alone = glass.complete(ids[:position], max_tokens=1, logprobs=20)["choices"][0]
        scores = alone["logprobs"]["top_logprobs"][0]
        name = shown["tokens"][position]
        if name in scores:
            compared += 1
            assert shown["token_logprobs"][position] == pytest.approx(scores[name], abs=1e-2)
    assert compared > 1
    both = glass.complete([ids, ids[:4]], **fields)["choices"]
    assert arrays(both[0]) == shown
    assert len(arrays(both[1])["tokens"]) == 5


def test_logprobs_0_gives_the_sampled_token_and_null_gives_nothing(
    plain: Server, strict: Server
) -> None:
    """A-LP-01; a map of the sampled token alone, as docs/api.md says."""
    prompt = "Say goodbye in Italian:"
    for none in (None, ...):
        assert plain.complete(prompt, logprobs=none)["choices"][0]["logprobs"] is None
    for count in (0, 1, 5, 20):
        shown = arrays(plain.complete(prompt, max_tokens=6, logprobs=count)["choices"][0])
        assert shown["text_offset"][0] == len(prompt)
        for token, logprob, top in zip(
            shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True
        ):
            assert len(top) in (count, count + 1)
            assert top[token] == logprob
    for wrong in (21, -1, 1000, 1.5, True, "1"):
        assert plain.refused(plain.body(prompt, logprobs=wrong))["param"] == "logprobs"
    assert strict.refused(strict.body(prompt, logprobs=6))["param"] == "logprobs"
    tokensmind = "/tokensmind/v1/completions"
    assert plain.refused(plain.body(prompt, logprobs=6), path=tokensmind)["param"] == "logprobs"


def test_reported_logprobs_are_raw_whatever_the_sampling(glass: Server) -> None:
    """A-LP-02; bias and penalties do not show either."""
    prompt = "The opposite of hot is"

    def top(**fields: Any) -> dict[str, float]:
        choice = glass.complete(prompt, max_tokens=1, logprobs=5, seed=1, **fields)["choices"][0]
        best = choice["logprobs"]["top_logprobs"][0]
        return dict(sorted(best.items(), key=lambda item: -item[1])[:5])

    want = top()
    for fields in (
        {"temperature": 2, "top_p": 0.1},
        {"temperature": 0.5, "top_k": 2},
        {"temperature": 1, "repetition_penalty": 1.8, "presence_penalty": 2},
        {"logit_bias": {"5": -100, "9": 100}},
    ):
        assert top(**fields) == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize("server", ["plain", "pieces"])
def test_two_ids_with_one_text_stay_two_entries(
    server: str, request: pytest.FixtureRequest
) -> None:
    """A-LP-03: bytes that are no text alone are named by their bytes."""
    served: Server = request.getfixturevalue(server)
    by_count = {}
    for count in (2, 5, 20):
        shown = arrays(served.complete("return ", max_tokens=4, logprobs=count)["choices"][0])
        by_count[count] = shown["top_logprobs"]
        assert all(len(top) >= count for top in shown["top_logprobs"])
        for token, logprob, top in zip(
            shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True
        ):
            assert top[token] == logprob
    for few, many in zip(by_count[2], by_count[5], strict=True):
        assert few.items() <= many.items()


def test_a_greedy_tokens_logprob_is_the_highest_bit_for_bit(glass: Server) -> None:
    """What lm-eval calls greedy: equality of floats, generated and echoed."""
    shown = arrays(glass.complete("Once upon a", max_tokens=10, logprobs=1)["choices"][0])
    for logprob, top in zip(shown["token_logprobs"], shown["top_logprobs"], strict=True):
        assert logprob == max(top.values())


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_cached_prefix_changes_no_score(
    glass_bundle: Path, glass: Server, order: tuple[str, str]
) -> None:
    """A-CACHE-01, cold and warm, and in another order after a restart."""
    prefix = "There was a table set out under a tree in front of the house, and the March "
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 2}
    with serving(glass_bundle) as fresh:
        for _ in range(2):
            for tail in order:
                prompt = f"{prefix}tail {tail}"
                cold = fresh.complete(prompt, **fields)
                warm = glass.complete(prompt, **fields)
                assert cold["choices"] == warm["choices"]
                assert cold["usage"]["prompt_tokens"] == warm["usage"]["prompt_tokens"]
