"""What goes wrong in one sequence ends that one, and the others do not change by a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engines import Outcome, Seam, Sink, engine_around, engine_on, request, together

from ortolan_runtime.engine import Engine
from ortolan_runtime.errors import EngineClosed
from ortolan_runtime.logits import Ids, Output
from ortolan_runtime.params import GenerationRequest

POISON = 77  # a token whose row goes wrong


class NaNRow(Seam):
    """Gives NaN for each row whose token is the poison."""

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        output = super().prefill(row, tokens, past, positions)
        return poisoned(output, tokens[positions] == POISON)

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        return poisoned(super().decode(tokens, past), tokens == POISON)


class NaNPosition(Seam):
    """Gives NaN for each row that decodes on top of 20 tokens."""

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        return poisoned(super().decode(tokens, past), past == 20)


class Refusing(Seam):
    """Refuses to run whenever the poison is among the tokens."""

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        if POISON in tokens:
            raise RuntimeError("the session cannot run")
        return super().prefill(row, tokens, past, positions)

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        if 20 in past:
            raise RuntimeError("the session cannot run")
        return super().decode(tokens, past)


class Dying(Seam):
    """Ends the thread at the third decode step, as no exception of the model's would."""

    steps = 0

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        self.steps += 1
        if self.steps == 3:
            raise KeyboardInterrupt
        return super().decode(tokens, past)


class Undemanding(Seam):
    """Takes ids that no model has for token 0."""

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        return super().prefill(row, np.maximum(tokens, 0), past, positions)


class Credulous(Engine):
    """Takes every request, so that our own faults behind the checks can be acted out."""

    def check(self, request: GenerationRequest) -> None:
        pass


def poisoned(output: Output, rows: npt.NDArray[np.bool_]) -> Output:
    logits, logsumexp = output.logits.copy(), output.logsumexp.copy()
    logits[rows, 5] = np.nan
    logsumexp[rows] = np.nan
    return Output(logits, logsumexp)


def neighbours() -> list[GenerationRequest]:
    """Return sound requests that never hold more than 18 tokens."""
    common: dict[str, Any] = {"ignore_eos": True, "logit_bias": {POISON: -100.0}}
    return [
        request([5, 6, 7, 8], max_tokens=12, temperature=0.0, logprobs=2, **common),
        request([9, 10], max_tokens=15, seed=4, logprobs=0, **common),
        request([11, 12, 13], max_tokens=9, seed=-1, top_p=0.8, **common),
    ]


@pytest.fixture(scope="module")
def sound(glass_bundle: Path) -> list[Outcome]:
    """Give what the sound requests say together, without anything going wrong."""
    with engine_on(glass_bundle, slots=4) as engine:
        return together(engine, neighbours())


def said(outcome: Outcome) -> tuple[str, list[int]]:
    return outcome.text, outcome.ids


def test_a_row_of_nan_after_its_prompt_ends_that_sequence_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    with engine_around(glass_bundle, NaNRow) as (engine, _):
        bad, *rest = together(engine, [request([20, POISON], max_tokens=9), *neighbours()])
        assert bad.ending.reason == "error"
        assert bad.ending.error == "the model's output is not a number"
        assert (bad.text, bad.ending.completion_tokens) == ("", 0)
        assert [said(o) for o in rest] == [said(o) for o in sound]
        assert engine.is_alive


def test_a_row_of_nan_amid_a_batch_ends_that_sequence_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    with engine_around(glass_bundle, NaNPosition) as (engine, _):
        first = request([30, 31, 32], max_tokens=60, temperature=0.0, ignore_eos=True)
        bad, *rest = together(engine, [first, *neighbours()])
        assert bad.ending.reason == "error"
        assert bad.ending.completion_tokens == 18
        assert [said(o) for o in rest] == [said(o) for o in sound]


def test_what_a_sequence_of_nan_left_is_not_found_in_the_text_of_others(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    with engine_around(glass_bundle, NaNRow) as (engine, _):
        together(engine, [request([5, 6, 7, 8, POISON], max_tokens=9)])
        assert said(together(engine, neighbours()[:1])[0]) == said(sound[0])


def test_a_prompt_that_the_session_refuses_ends_that_sequence_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    with engine_around(glass_bundle, Refusing) as (engine, _):
        bad, *rest = together(engine, [request([20, POISON, 21]), *neighbours()])
        assert bad.ending.reason == "error"
        assert bad.ending.error == "the model could not run"
        assert [said(o) for o in rest] == [said(o) for o in sound]


def test_a_decode_step_that_the_session_refuses_ends_its_rows_and_no_more(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    with engine_around(glass_bundle, Refusing) as (engine, _):
        long = request([30, 31, 32], max_tokens=60, ignore_eos=True)
        (bad,) = together(engine, [long])
        assert bad.ending.reason == "error"
        assert bad.ending.completion_tokens == 18
        assert [said(o) for o in together(engine, neighbours())] == [said(o) for o in sound]


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_a_row_that_the_session_refuses_amid_a_batch_ends_alone(
    glass_bundle: Path, glass_bundle_fp32: Path, kind: str
) -> None:
    bundle = glass_bundle if kind == "int8" else glass_bundle_fp32
    with engine_on(bundle, slots=4) as engine:
        sound = together(engine, neighbours())
    with engine_around(bundle, Refusing) as (engine, _):
        # Shortest first, so that the faulty row stands last, in the middle and first in turn.
        for place in range(4):
            requests = neighbours()
            requests.insert(
                place,
                request(
                    [30, 31, 32, 33 + place, 34, 35, 36, 37, 38, 39, 40, 41],
                    max_tokens=60,
                    ignore_eos=True,
                ),
            )
            outcomes = together(engine, requests)
            bad = outcomes.pop(place)
            assert (bad.ending.reason, bad.ending.error) == ("error", "the model could not run")
            assert bad.ending.completion_tokens == 9
            assert [o.bits() for o in outcomes] == [o.bits() for o in sound]


def test_an_error_names_neither_the_prompt_nor_a_trace(glass_bundle: Path) -> None:
    with engine_around(glass_bundle, Refusing) as (engine, _):
        (bad,) = together(engine, [request([20, POISON, 21])])
        assert bad.ending.error is not None
        assert "77" not in bad.ending.error
        assert "Traceback" not in bad.ending.error


def test_slots_and_memory_are_free_again_after_failures(glass_bundle: Path) -> None:
    with engine_around(glass_bundle, Refusing, slots=2) as (engine, _):
        together(engine, [request([20, POISON, i]) for i in range(10)])
        statistics = engine.statistics()
        assert (statistics.running, statistics.waiting) == (0, 0)
        assert statistics.kv_used_tokens == statistics.kv_cached_tokens


def test_the_death_of_the_thread_ends_every_sequence_with_an_error(glass_bundle: Path) -> None:
    with engine_around(glass_bundle, Dying, slots=2) as (engine, _):
        outcomes = together(engine, [request([5 + i], max_tokens=50) for i in range(6)])
        assert [o.ending.reason for o in outcomes] == ["error"] * 6
        assert outcomes[0].ending.error == "the engine has failed"


def test_a_dead_engine_says_so_and_takes_no_more(glass_bundle: Path) -> None:
    with engine_around(glass_bundle, Dying) as (engine, _):
        together(engine, [request([5], max_tokens=50)])
        assert not engine.is_alive
        assert engine.failure == "KeyboardInterrupt"
        with pytest.raises(EngineClosed, match="the engine has failed"):
            engine.submit(request([5]), Sink())
        assert engine.drain(1.0)


def test_closing_a_dead_engine_returns_at_once(glass_bundle: Path) -> None:
    with engine_around(glass_bundle, Dying) as (engine, _):
        together(engine, [request([5], max_tokens=50)])
        engine.close()


def test_a_row_that_cannot_be_sampled_ends_that_sequence_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    # The engine refuses such a bias; past it, it stands for a fault of our own in one row.
    with engine_around(glass_bundle, Seam, kind=Credulous) as (engine, _):
        bad, *rest = together(engine, [request([20], logit_bias={10**6: 1.0}), *neighbours()])
        assert bad.ending.reason == "error"
        assert [said(o) for o in rest] == [said(o) for o in sound]


def test_a_request_that_cannot_be_taken_in_ends_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    # An id that no tokenizer takes stands for a fault of our own while a sequence is made.
    with engine_around(glass_bundle, Seam, kind=Credulous) as (engine, _):
        bad, *rest = together(engine, [request([-1]), *neighbours()])
        assert bad.ending.reason == "error"
        assert [said(o) for o in rest] == [said(o) for o in sound]


def test_a_scored_prompt_that_cannot_be_told_ends_alone(
    glass_bundle: Path, sound: list[Outcome]
) -> None:
    # Only the last ids of a prompt are decoded when a sequence is made; all, when it is scored.
    with engine_around(glass_bundle, Undemanding, kind=Credulous) as (engine, _):
        prompt = [-1, *range(5, 15)]
        bad, *rest = together(engine, [request(prompt, prompt_logprobs=0), *neighbours()])
        assert (bad.ending.reason, bad.ending.error) == (
            "error",
            "the prompt could not be taken in",
        )
        assert [said(o) for o in rest] == [said(o) for o in sound]
        assert engine.is_alive
