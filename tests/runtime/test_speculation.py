"""Guessing ahead: what is guessed, when it is worth it, and that it changes no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import Outcome, engine_on, request, together

from ortolan_runtime.engine import Engine
from ortolan_runtime.speculation import PromptLookup, SpeculationPolicy

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def run(engine: Engine, text: str, **fields: Any) -> Outcome:
    ids = engine.tokenizer.encode(text)
    (outcome,) = together(engine, [request(ids, **{"temperature": 0.0, **fields})])
    return outcome


def policy_after_a_plain_step() -> SpeculationPolicy:
    policy = SpeculationPolicy()
    policy.note_plain(0.010)
    return policy


def pause_of(policy: SpeculationPolicy) -> int:
    """Return how many plain steps come before the next guess."""
    steps = 0
    while policy.draft_length() == 0:
        steps += 1
    return steps


def test_what_followed_the_last_three_tokens_is_guessed() -> None:
    assert PromptLookup([1, 2, 3, 4, 5, 6, 1, 2, 3]).draft(2) == [4, 5]


def test_of_several_places_the_latest_is_taken() -> None:
    assert PromptLookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).draft(1) == [5]


def test_nothing_is_guessed_when_the_end_is_new() -> None:
    assert PromptLookup([1, 2, 3, 4, 5]).draft(4) == []


def test_where_the_last_three_tokens_are_new_the_last_two_may_not_be() -> None:
    assert PromptLookup([9, 2, 3, 4, 5, 1, 2, 3]).draft(2) == [4, 5]


def test_three_tokens_that_match_go_before_two_that_match_later() -> None:
    assert PromptLookup([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]).draft(1) == [4]


def test_less_than_two_tokens_match_nothing() -> None:
    assert PromptLookup([7, 7]).draft(4) == []
    assert PromptLookup([7]).draft(4) == []


def test_tokens_that_come_later_are_found() -> None:
    tokens = [1, 2, 3, 9]
    lookup = PromptLookup(tokens)
    assert lookup.draft(1) == []
    tokens += [1, 2, 3]
    assert lookup.draft(1) == [9]


def test_a_text_that_goes_round_in_circles_is_guessed_to_go_on() -> None:
    assert PromptLookup([5, 5, 5, 5]).draft(3) == [5, 5, 5]
    assert PromptLookup([1, 2, 1, 2, 1]).draft(5) == [2, 1, 2, 1, 2]


def test_guesses_grow_shorter_at_once_when_they_go_wrong() -> None:
    policy = policy_after_a_plain_step()
    for _ in range(6):
        length = policy.draft_length()
        policy.note_guess(drafted=length, accepted=length, seconds=0.012)
    assert policy.draft_length() == 12
    policy.note_guess(drafted=12, accepted=1, seconds=0.025)
    assert policy.draft_length() == 2


def test_a_text_that_has_moved_on_is_noticed_within_seven_guesses() -> None:
    policy = policy_after_a_plain_step()
    for _ in range(6):
        policy.note_guess(drafted=4, accepted=4, seconds=0.013)
    for _ in range(7):
        policy.note_guess(drafted=2, accepted=0, seconds=0.013)
    assert policy.draft_length() == 0


def test_the_first_step_is_plain_so_that_its_cost_is_known() -> None:
    assert SpeculationPolicy().draft_length() == 0


def test_guesses_that_are_right_grow_longer() -> None:
    policy = policy_after_a_plain_step()
    before = policy.draft_length()
    policy.note_guess(drafted=before, accepted=before, seconds=0.014)
    assert policy.draft_length() > before


def test_guesses_that_do_not_pay_are_given_up_for_a_while() -> None:
    policy = policy_after_a_plain_step()
    policy.note_guess(drafted=4, accepted=0, seconds=0.014)
    lengths = [policy.draft_length() for _ in range(5)]
    assert lengths[:4] == [0] * 4
    assert lengths[4] > 0


def test_guesses_that_never_pay_are_given_up_for_longer_each_time() -> None:
    policy = policy_after_a_plain_step()
    pauses = []
    for _ in range(7):
        policy.note_guess(drafted=2, accepted=0, seconds=0.013)
        pauses.append(pause_of(policy))
    assert pauses == [4, 8, 16, 32, 64, 64, 64]


def test_a_guess_that_pays_makes_the_next_pause_short_again() -> None:
    policy = policy_after_a_plain_step()
    for _ in range(5):
        policy.note_guess(drafted=2, accepted=0, seconds=0.013)
        pause_of(policy)
    policy.note_guess(drafted=2, accepted=2, seconds=0.013)
    for _ in range(8):  # the text has moved on
        policy.note_guess(drafted=2, accepted=0, seconds=0.013)
        if policy.draft_length() == 0:
            break
    assert pause_of(policy) == 3  # and the one above


def test_right_guesses_that_cost_as_much_as_plain_steps_are_given_up_too() -> None:
    policy = policy_after_a_plain_step()
    policy.note_guess(drafted=4, accepted=4, seconds=0.050)
    assert policy.draft_length() == 0


def test_one_wrong_guess_among_right_ones_does_not_end_them() -> None:
    policy = policy_after_a_plain_step()
    for _ in range(10):
        policy.note_guess(drafted=4, accepted=4, seconds=0.014)
    policy.note_guess(drafted=4, accepted=0, seconds=0.014)
    assert policy.draft_length() > 0


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 20])
def test_a_repetitive_text_says_the_same_in_fewer_steps(
    alphabet_bundle: Path, max_tokens: int
) -> None:
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        outcome = run(engine, ALPHABET + "abc", max_tokens=max_tokens)
        assert outcome.text == ALPHABET[3 : 3 + max_tokens]
        assert outcome.ending.completion_tokens == max_tokens
        assert sum(event.new_tokens for event in outcome.events) == max_tokens
        statistics = engine.statistics()
        assert statistics.accepted_tokens <= statistics.drafted_tokens
        if max_tokens == 20:
            assert statistics.decode_steps < 15
            assert statistics.accepted_tokens > 4


def test_wrong_guesses_change_nothing(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        assert run(engine, "abcdXXXX abcdYYYY abc", max_tokens=10).text == "defghijklm"


def test_an_ending_among_the_guesses_ends_the_text(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        stopped = run(engine, ALPHABET + "abc", max_tokens=20, stop=("jk",))
        assert (stopped.text, stopped.ending.reason) == ("defghi", "stop")
        ended = run(engine, ALPHABET + "qrs", max_tokens=20)
        assert (ended.text, ended.ending.reason) == ("tuvwxyz", "eos")


def test_the_context_is_never_overrun(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        prompt = engine.tokenizer.encode(ALPHABET + "abc")
        room = engine.context_length - len(prompt)
        (outcome,) = together(
            engine, [request(prompt, temperature=0.0, max_tokens=room, ignore_eos=True)]
        )
        assert outcome.ending.reason == "length"


def test_sampled_text_is_that_of_plain_steps(alphabet_bundle: Path) -> None:
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 40, "logprobs": 2}
    text = ALPHABET + ALPHABET + "abc"
    with engine_on(alphabet_bundle, slots=2) as engine:
        plain = run(engine, text, **fields)
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        guessed = run(engine, text, **fields)
    assert guessed.text == plain.text
    assert guessed.tokens == plain.tokens


def test_sequences_that_decode_together_do_not_guess(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=2, speculate=True) as engine:
        ids = engine.tokenizer.encode(ALPHABET + "abc")
        one = request(ids, temperature=0.0, max_tokens=20)
        outcomes = together(engine, [one, one])
        assert [outcome.text for outcome in outcomes] == [ALPHABET[3:23]] * 2
        # Both begin and end in the same steps, so no step has one row alone.
        assert engine.statistics().drafted_tokens == 0
