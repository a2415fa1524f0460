"""What becomes of requests: texts, endings, counts, limits, and leaving early.

Most tests run a model that says the alphabet: "a" is followed by "b", and "z" by the EOS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import Sink, engine_on, ids_of, request, run, together

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import (
    BundleError,
    ContextLengthExceeded,
    InvalidParameter,
)


def test_a_text_goes_on_until_the_eos(engine: Engine) -> None:
    outcome = run(engine, "t", max_tokens=50)
    assert outcome.text == "uvwxyz"
    assert outcome.ending.reason == "eos"


def test_an_eos_is_counted_and_silent(engine: Engine) -> None:
    outcome = run(engine, "x", max_tokens=50)
    assert outcome.ending.completion_tokens == 3
    assert [token.text for token in outcome.tokens] == ["y", "z", ""]


def test_a_text_ends_at_max_tokens(engine: Engine) -> None:
    outcome = run(engine, "a", max_tokens=4)
    assert (outcome.text, outcome.ending.reason) == ("bcde", "length")
    assert outcome.ending.completion_tokens == 4


def test_the_default_is_sixteen_tokens(engine: Engine) -> None:
    assert run(engine, "a").text == "bcdefghijklmnopq"


def test_a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    outcome = run(engine, "a", stop=("efg",))
    assert (outcome.text, outcome.ending.reason) == ("bcd", "stop")
    assert outcome.ending.completion_tokens == 6


def test_a_stop_string_that_is_included_ends_the_text_behind_it(engine: Engine) -> None:
    outcome = run(engine, "a", stop=("efg",), include_stop_in_output=True)
    assert (outcome.text, outcome.ending.reason) == ("bcdefg", "stop")


def test_text_held_for_a_stop_string_is_flushed_at_the_eos(engine: Engine) -> None:
    outcome = run(engine, "w", max_tokens=9, stop=("yz!",))
    assert (outcome.text, outcome.ending.reason) == ("xyz", "eos")


def test_text_held_for_a_stop_string_is_flushed_at_max_tokens(engine: Engine) -> None:
    outcome = run(engine, "a", max_tokens=3, stop=("cdZ",))
    assert (outcome.text, outcome.ending.reason) == ("bcd", "length")


def test_a_stop_met_by_the_last_token_is_a_stop(engine: Engine) -> None:
    outcome = run(engine, "a", max_tokens=3, stop=("d",))
    assert (outcome.text, outcome.ending.reason) == ("bc", "stop")


def test_a_stop_token_ends_the_text_silently_and_is_counted(engine: Engine) -> None:
    outcome = run(engine, "a", stop_token_ids=tuple(ids_of(engine, "e")))
    assert (outcome.text, outcome.ending.reason) == ("bcd", "stop")
    assert outcome.ending.completion_tokens == 4


def test_an_ignored_eos_is_a_token_like_others(engine: Engine) -> None:
    outcome = run(engine, "y", max_tokens=5, ignore_eos=True)
    assert outcome.ending.reason == "length"
    assert outcome.ending.completion_tokens == 5


def test_an_ignored_eos_can_still_be_a_stop_token(engine: Engine) -> None:
    eos = engine.tokenizer.eos_token_ids
    outcome = run(engine, "y", max_tokens=5, ignore_eos=True, stop_token_ids=eos)
    assert (outcome.text, outcome.ending.reason) == ("z", "stop")


def test_no_end_token_comes_before_min_tokens(engine: Engine) -> None:
    outcome = run(engine, "y", max_tokens=50, min_tokens=9)
    assert outcome.ending.completion_tokens >= 9
    assert outcome.ids[1] not in engine.tokenizer.eos_token_ids


@pytest.mark.parametrize(
    ("stop", "text"),
    [("b", "bcdefghijk"), ("cd", "bcdefghijk"), ("d", "bcdefghijk"), ("cde", "b"), ("fg", "bcde")],
)
def test_no_stop_string_ends_the_text_before_min_tokens(
    engine: Engine, stop: str, text: str
) -> None:
    """It may begin before."""
    assert run(engine, "a", max_tokens=10, min_tokens=3, stop=(stop,)).text == text


def test_no_stop_token_comes_before_min_tokens(engine: Engine) -> None:
    stop = tuple(ids_of(engine, "e"))
    outcome = run(engine, "a", max_tokens=10, min_tokens=6, stop_token_ids=stop)
    assert not set(stop) & set(outcome.ids[:6])


def test_zero_tokens_are_an_ending_without_a_step(engine: Engine) -> None:
    steps = engine.statistics().decode_steps, engine.statistics().prefill_steps
    outcome = run(engine, "a", max_tokens=0)
    assert (outcome.text, outcome.ending.reason) == ("", "length")
    assert outcome.ending.completion_tokens == 0
    assert (engine.statistics().decode_steps, engine.statistics().prefill_steps) == steps


def test_streamed_pieces_join_to_the_text_and_count_each_token_once(engine: Engine) -> None:
    outcome = run(engine, "a", max_tokens=10, stop=("hi",), include_stop_in_output=True)
    assert sum(event.new_tokens for event in outcome.events) == outcome.ending.completion_tokens
    assert "".join(token.text for token in outcome.tokens) == outcome.text


def test_logprobs_are_given_when_asked_for_and_not_otherwise(engine: Engine) -> None:
    plain = run(engine, "a", max_tokens=2)
    assert [(t.logprob, t.top) for t in plain.tokens] == [(None, ())] * 2
    bare = run(engine, "a", max_tokens=2, logprobs=0)
    assert all(t.logprob is not None and t.top == () for t in bare.tokens)
    rich = run(engine, "a", max_tokens=2, logprobs=3)
    assert [len(t.top) for t in rich.tokens] == [3, 3]
    assert [t.top[0] for t in rich.tokens] == [(t.id, t.logprob) for t in rich.tokens]


def test_the_mean_logprob_is_that_of_all_generated_tokens(engine: Engine) -> None:
    outcome = run(engine, "y", max_tokens=5, logprobs=0)
    logprobs = [token.logprob for token in outcome.tokens]
    assert len(logprobs) == 2  # "z" and the EOS
    assert outcome.ending.mean_logprob == pytest.approx(sum(logprobs) / 2)


def test_a_prompt_seen_before_is_reported_as_cached_and_says_the_same(engine: Engine) -> None:
    first = run(engine, "hello world a", max_tokens=5)
    again = run(engine, "hello world a", max_tokens=5)
    assert first.cached_tokens == 0
    assert again.cached_tokens == 13 - 2  # the last two are computed again
    assert again.text == first.text == "bcdef"


def test_a_cache_salt_keeps_tenants_apart(engine: Engine) -> None:
    run(engine, "some secret a", max_tokens=1, cache_salt="one")
    assert run(engine, "some secret a", max_tokens=1, cache_salt="two").cached_tokens == 0
    assert run(engine, "some secret a", max_tokens=1, cache_salt="one").cached_tokens == 11


def test_choices_of_one_prompt_prefill_it_once(engine: Engine) -> None:
    before = engine.statistics().prompt_tokens
    prompt = ids_of(engine, "a prompt that nobody has seen a")
    outcomes = together(engine, [request(prompt, max_tokens=4, seed=1, choice=k) for k in range(6)])
    assert engine.statistics().prompt_tokens - before == len(prompt)
    assert [o.ending.completion_tokens for o in outcomes] == [4] * 6
    assert sorted(o.cached_tokens for o in outcomes) == [0] + [len(prompt)] * 5


def test_a_request_without_room_in_the_context_is_refused_with_the_numbers(
    engine: Engine,
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.submit(request([1] * 100, max_tokens=29), Sink())
    assert "must be <= 128 tokens, got 129 (prompt 100, `max_tokens` 29)" in str(caught.value)


def test_a_request_that_fits_exactly_is_accepted(engine: Engine) -> None:
    prompt = ids_of(engine, "a" * 100)
    (outcome,) = together(engine, [request(prompt, max_tokens=28, ignore_eos=True)])
    assert outcome.ending.completion_tokens == 28


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt", {"prompt": [1, -1]}),
        ("prompt", {"prompt": [259]}),
        ("logit_bias", {"logit_bias": {259: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": (0, -1)}),
        ("stop_token_ids", {"stop_token_ids": (300,)}),
        ("bad_words", {"bad_words": ((1, 259),)}),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_by_field(
    field: str, fields: dict[str, Any], engine: Engine
) -> None:
    prompt = fields.pop("prompt", [1])
    with pytest.raises(InvalidParameter, match=f"`{field}` must hold token ids within 0..258"):
        engine.submit(request(prompt, **fields), Sink())


def test_of_several_requests_none_is_taken_when_one_is_refused(engine: Engine) -> None:
    sink = Sink()
    with pytest.raises(InvalidParameter):
        engine.submit_all([request([1]), request([-1])], sink)
    assert run(engine, "x").text == "yz"
    assert sink.outcomes == {}


def test_complete_and_generate_take_text_or_tokens(engine: Engine) -> None:
    assert engine.complete("a", temperature=0.0, max_tokens=3) == "bcd"
    assert engine.complete(ids_of(engine, "a"), temperature=0.0, max_tokens=3) == "bcd"
    events = list(engine.generate("a", temperature=0.0, max_tokens=3))
    assert events[-1].ending is not None


def test_a_missing_bundle_is_a_bundle_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no such folder"):
        Engine.open(tmp_path / "none")


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"threads": 0}, {"prefill_chunk": 0}, {"queue_limit": -1}]
)
def test_options_outside_their_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter, match=f"^`{next(iter(wrong))}` must be "):
        EngineOptions(**wrong)


def test_memory_for_less_than_16_tokens_is_refused_with_the_least(alphabet_bundle: Path) -> None:
    options = EngineOptions(kv_memory_bytes=100)
    with pytest.raises(InvalidParameter, match="`kv_memory` must be >= 128 bytes"):
        Engine.open(alphabet_bundle, options)


def test_a_memory_of_less_than_the_context_bounds_a_request(alphabet_bundle: Path) -> None:
    # 8 bytes a token: one layer, one head of one float32, keys and values.
    with engine_on(alphabet_bundle, kv_memory_bytes=8 * 20) as engine:
        assert engine.context_length == 20
        assert engine.complete("a", temperature=0.0, max_tokens=19) == "bcdefghijklmnopqrst"
        with pytest.raises(ContextLengthExceeded):
            engine.submit(request([1], max_tokens=20), Sink())


def test_statistics_count_what_was_done(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=2) as engine:
        run(engine, "hello a", max_tokens=5)
        statistics = engine.statistics()
        assert statistics.prompt_tokens == 7
        assert statistics.generated_tokens == 5
        assert (statistics.prefill_steps, statistics.decode_steps) == (1, 4)
        assert (statistics.running, statistics.waiting) == (0, 0)
        assert statistics.kv_cached_tokens == statistics.kv_used_tokens == 7
        assert statistics.prefill_s >= statistics.prefill_model_s > 0
        assert statistics.decode_s >= statistics.decode_model_s > 0
