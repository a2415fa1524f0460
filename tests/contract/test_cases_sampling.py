"""Known faults of other servers in sampling and seeds (cases A-SAM-*, A-DET-*)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import Server, serving

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1


def test_a_seeded_request_is_the_same_alone_in_company_and_after_a_restart(
    glass: Server, glass_bundle: Path
) -> None:
    """A-DET-01."""
    fields: dict[str, Any] = {"temperature": 0.8, "seed": 42, "max_tokens": 24}
    prompt = "Once upon a time"
    texts = {glass.text(prompt, **fields) for _ in range(3)}
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            others = [
                pool.submit(glass.text, f"{n} {prompt}", temperature=1, max_tokens=30)
                for n in range(7)
            ]
            texts.add(glass.text(prompt, **fields))
            assert all(other.result() for other in others)
    with serving(glass_bundle) as restarted:
        texts |= {restarted.text(prompt, **fields) for _ in range(3)}
    assert len(texts) == 1


def test_choices_draw_apart_and_repeatably_and_no_seed_is_a_random_one(glass: Server) -> None:
    """A-DET-01. Ten unseeded texts of 24 tokens alike by chance: less than 1e-9."""
    fields: dict[str, Any] = {"temperature": 0.8, "max_tokens": 24}
    first, second = (
        [c["text"] for c in glass.complete("Once", n=3, seed=42, **fields)["choices"]]
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 1
    assert len({glass.text("Once", **fields) for _ in range(10)}) > 1


def test_seeds_are_all_of_64_bits_and_no_float_comes_between(glass: Server) -> None:
    """A-DET-02."""
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 12}
    for wrong in (2**64, 2**63, SEED_MIN - 1, 7.5, "7", True, [7], 1e30):
        assert glass.refused(glass.body("Hi", seed=wrong))["param"] == "seed"
    for right in (SEED_MAX, SEED_MIN, -1, 0, 2**53, 7.0):
        assert glass.text("Hi", seed=right, **fields) == glass.text("Hi", seed=right, **fields)
    assert glass.text("Hi", seed=7.0, **fields) == glass.text("Hi", seed=7, **fields)
    neighbours = {glass.text("Hi", seed=2**53 + step, **fields) for step in range(2)}
    assert len(neighbours) == 2


def test_the_seed_that_was_used_is_told(glass: Server) -> None:
    """The header makes any answer repeatable."""
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 12}
    response = glass.post("/v1/completions", glass.body("Hi", **fields))
    text = response.json()["choices"][0]["text"]
    assert glass.text("Hi", seed=int(response.headers["x-ortolan-seed"]), **fields) == text


def test_biases_that_are_none_are_refused_by_name(plain: Server) -> None:
    """A-SAM-01."""
    vocab = plain.client.get("/tokenizer_info").json()["vocab_size"]
    wrong: list[Any] = [{str(vocab + 1000): -100}, {str(vocab): 1}, {"-1": 5}, {"abc": 5}]
    wrong += [{"1.5": 5}, {"05": 1}, {"5": 101}, {"5": "7"}, {"5": None}, {"5": True}, [[5, 1]], 5]
    for bias in wrong:
        assert plain.refused(plain.body("Hi", logit_bias=bias))["param"] == "logit_bias"
        assert plain.text("Hi", max_tokens=1)
    for none in ({}, None):
        assert plain.text("Hi", logit_bias=none) == plain.text("Hi")


def test_second_takes_text_as_the_key_of_a_bias(plain: Server) -> None:
    """Its document calls each key a token."""
    path = "/openai/completions"
    assert plain.text("Hi", path=path, logit_bias={"hello": 100}, max_tokens=2) == "hellohello"
    wrong = {"logit_bias": {"no single token": 5}}
    assert plain.refused(plain.body("Hi", **wrong), path=path)["param"] == "logit_bias"


def test_presence_and_frequency_penalties_leave_the_prompt_alone(plain: Server) -> None:
    """A-SAM-02: a token that the prompt has twenty times wins until the output has it as often."""
    ids = plain.post("/tokenize", {"prompt": "xz"}).json()["tokens"]
    # The scripted logits are within 5 or so: the biases decide, and the penalties between them.
    fields = {"logit_bias": {str(ids[0]): 50, str(ids[1]): 30}, "presence_penalty": 2}
    text = plain.text("x" * 20, max_tokens=20, frequency_penalty=2, **fields)
    assert text.startswith("xxx")
    assert "z" in text


def test_a_repetition_penalty_counts_the_prompt_at_the_first_step(plain: Server) -> None:
    """A-SAM-02: a token of the prompt that would win by a little loses at once."""
    ids = plain.post("/tokenize", {"prompt": "xz"}).json()["tokens"]
    # The scripted logits are within 5 or so: the biases decide, and the penalty between them.
    bias = {str(ids[0]): 50, str(ids[1]): 40}
    assert plain.text("x", max_tokens=1, logit_bias=bias) == "x"
    assert plain.text("x", max_tokens=1, logit_bias=bias, repetition_penalty=1.9) == "z"


@pytest.mark.parametrize("temperature", [1e-300, 1e-8, 1e-6, 1e-5, 1e-4])
def test_tiny_temperatures_are_greedy(plain: Server, temperature: float) -> None:
    """A-SAM-03."""
    prompt = "The river runs through the"
    greedy = plain.text(prompt, max_tokens=7)
    assert plain.text(prompt, max_tokens=7, temperature=temperature) == greedy
    assert plain.text(prompt, max_tokens=7, temperature=1e-3)


NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("is_streamed", ["true", "false"])
def test_what_is_no_finite_number_is_refused_by_name(
    plain: Server, number: str, is_streamed: str
) -> None:
    """A-SAM-04."""
    for name in NUMBERS:
        start = f'{{"model":"{plain.served}","prompt":"x","stream":{is_streamed}'
        assert plain.refused(f'{start},"{name}":{number}}}'.encode())["param"] == name
    error = plain.refused(f'{start},"logit_bias":{{"5":{number}}}}}'.encode())
    assert error["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", -0.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 2.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "16"),
        ("n", True),
    ],
)
def test_numbers_outside_their_range_are_refused_with_the_range(
    plain: Server, name: str, value: Any
) -> None:
    """A-SAM-04, ranges."""
    error = plain.refused(plain.body("x", **{name: value}))
    assert error["param"] == name
    assert f"`{name}` must be" in error["message"]


def distinct_first_tokens(server: Server, **fields: Any) -> int:
    """Return how many first tokens 60 seeds give."""
    with ThreadPoolExecutor(4) as pool:
        texts = pool.map(
            lambda seed: server.text("I like", **{"temperature": 1.5, "seed": seed, **fields}),
            range(60),
        )
        return len(set(texts))


@pytest.mark.parametrize("off", [{}, {"top_k": 0}, {"top_k": -1}, {"top_k": None}, {"min_p": 0}])
def test_a_limit_that_is_off_limits_nothing(glass: Server, off: dict[str, Any]) -> None:
    """A-SAM-05. 60 draws of one token alike by chance: less than 1e-9."""
    assert distinct_first_tokens(glass, max_tokens=1, **off) > 1


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"min_p": 1}, {"top_p": 1e-9}])
def test_the_tightest_limit_is_greedy(glass: Server, limit: dict[str, Any]) -> None:
    """A-SAM-05."""
    assert distinct_first_tokens(glass, max_tokens=1, **limit) == 1
    greedy = glass.text("I like", max_tokens=1)
    assert glass.text("I like", max_tokens=1, temperature=1.5, **limit) == greedy
    assert glass.text("I like", max_tokens=1, temperature=1.5, top_k=10**9, logit_bias={"5": 1})


@pytest.mark.parametrize(
    ("wanted", "bad", "is_banned"),
    [
        (" world", "world", True),
        (" world", " world", True),
        (" ", " ", True),
        (" ", "\n", False),
        (" world", "\nworld", False),
    ],
)
def test_a_bad_word_is_banned_as_it_is_and_behind_a_space(
    plain: Server, wanted: str, bad: str, is_banned: bool
) -> None:
    """And nothing else is: a newline in front of it is part of it."""
    (id,) = plain.post("/tokenize", {"prompt": wanted}).json()["tokens"]
    text = plain.text(max_tokens=3, logit_bias={str(id): 100}, bad_words=[bad])
    assert (text == wanted * 3) is not is_banned
