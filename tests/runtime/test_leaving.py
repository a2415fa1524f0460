"""Sequences end however they leave: cancelled, drained, closed, or with a broken sink.

The model says the alphabet; see conftest.py. A ``Gate`` stops it before each run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines import GREEDY, Gate, Sink, engine_around, engine_on, ids_of, request, run

from ortolan_runtime.engine import Engine
from ortolan_runtime.errors import EngineBusy, EngineClosed
from ortolan_runtime.events import Event


def test_leaving_generate_early_ends_the_sequence(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        gate.go(3)
        for event in engine.generate("a", temperature=0.0, max_tokens=100):
            if event.text == "b":
                break
        gate.open()
        assert engine.drain(10)
        assert engine.statistics().generated_tokens < 100


def test_a_queued_sequence_can_be_cancelled(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, slots=1) as (engine, gate):
        sink = Sink()
        first = engine.submit(request([97], max_tokens=5, **GREEDY), sink)
        gate.reach()
        queued = engine.submit(request([98], max_tokens=5, **GREEDY), sink)
        engine.cancel(queued)
        gate.go(2)  # the run that was on its way, and the one after the mail was read
        (outcome,) = sink.wait_for([queued])
        assert outcome.ending.reason == "cancelled"
        assert outcome.ending.completion_tokens == 0
        gate.open()
        assert sink.wait_for([first])[0].ending.reason == "length"


def test_a_sequence_can_be_cancelled_amid_its_prompt(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, prefill_chunk=4) as (engine, gate):
        sink = Sink()
        id = engine.submit(request([97] * 40, max_tokens=5), sink)
        gate.reach()
        gate.go()
        gate.reach()
        engine.cancel(id)
        gate.go()
        (outcome,) = sink.wait_for([id])
        assert outcome.ending.reason == "cancelled"
        assert engine.statistics().prefill_steps <= 2


def test_a_sequence_cancelled_while_it_decodes_keeps_what_it_said(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        sink = Sink()
        id = engine.submit(
            request(ids_of(engine, "a"), max_tokens=50, stop=("defg",), **GREEDY), sink
        )
        for _ in range(3):
            gate.reach()
            gate.go()
        gate.reach()
        engine.cancel(id)
        gate.go()
        (outcome,) = sink.wait_for([id])
        assert outcome.ending.reason == "cancelled"
        assert outcome.ending.completion_tokens == 4
        assert outcome.text == "bcde"  # "de" was held for the stop string


def test_cancelling_what_has_ended_does_nothing(engine: Engine) -> None:
    sink = Sink()
    id = engine.submit(request([97], max_tokens=1), sink)
    (outcome,) = sink.wait_for([id])
    engine.cancel(id)
    engine.cancel(10**9)
    assert run(engine, "x").text == "yz"
    assert outcome.ending.reason == "length"


def test_a_prompt_that_ends_inside_a_character_may_be_cancelled(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        sink = Sink()
        half = ids_of(engine, "é")[:1]
        id = engine.submit(request([97, *half], max_tokens=5), sink)
        gate.reach()
        engine.cancel(id)
        gate.open()
        assert sink.wait_for([id])[0].ending.reason == "cancelled"
        assert run(engine, "x").text == "yz"


def test_the_slot_of_one_that_was_cancelled_is_free_for_the_next(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, slots=1) as (engine, gate):
        sink = Sink()
        ids = [
            engine.submit(request(ids_of(engine, "x"), max_tokens=90, **GREEDY), sink)
            for _ in range(2)
        ]
        gate.reach()
        engine.cancel(ids[0])
        gate.open()
        outcomes = sink.wait_for(ids)
        assert [o.ending.reason for o in outcomes] == ["cancelled", "eos"]


def test_a_full_queue_refuses_more_and_takes_them_later(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, slots=1, queue_limit=2) as (engine, gate):
        sink = Sink()
        ids = engine.submit_all([request([97], max_tokens=1) for _ in range(3)], sink)
        with pytest.raises(EngineBusy, match="must hold <= 2 sequences, got 3"):
            engine.submit(request([97]), sink)
        gate.open()
        sink.wait_for(ids)
        assert run(engine, "x").text == "yz"


def test_a_batch_that_does_not_fit_the_queue_is_refused_whole(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, slots=1, queue_limit=2) as (engine, gate):
        sink = Sink()
        with pytest.raises(EngineBusy):
            engine.submit_all([request([97], max_tokens=1) for _ in range(4)], sink)
        gate.open()
        assert run(engine, "x").text == "yz"
        assert sink.outcomes == {}


def test_draining_lets_running_ones_end_and_takes_no_more(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        sink = Sink()
        id = engine.submit(request(ids_of(engine, "x"), max_tokens=9, **GREEDY), sink)
        gate.reach()
        assert not engine.drain(0.0)
        with pytest.raises(EngineClosed, match="shutting down"):
            engine.submit(request([97]), sink)
        gate.open()
        assert engine.drain(10)
        assert sink.wait_for([id])[0].text == "yz"


def test_closing_ends_everything_as_cancelled(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate, slots=1) as (engine, gate):
        sink = Sink()
        ids = engine.submit_all([request([97], max_tokens=50) for _ in range(5)], sink)
        gate.reach()
        closing = threading.Thread(target=engine.close)
        closing.start()
        gate.open()
        closing.join()
        outcomes = sink.wait_for(ids)
        assert [o.ending.reason for o in outcomes] == ["cancelled"] * 5
        assert not engine.is_alive
        with pytest.raises(EngineClosed):
            engine.submit(request([97]), sink)


def test_closing_twice_is_harmless(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle) as engine:
        engine.close()
        engine.close()


def test_a_sink_that_raises_does_not_end_the_streams_of_others(engine: Engine) -> None:
    class Broken:
        def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
            raise RuntimeError("the client is gone")

    sink = Sink()
    engine.submit(request(ids_of(engine, "a"), max_tokens=20, **GREEDY), Broken())
    id = engine.submit(request(ids_of(engine, "t"), max_tokens=20, **GREEDY), sink)
    assert sink.wait_for([id])[0].text == "uvwxyz"
    assert engine.is_alive


def test_one_sink_hears_of_all_its_sequences_at_once_for_each_step(
    alphabet_bundle: Path,
) -> None:
    class Counting(Sink):
        calls = 0

        def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
            self.calls += 1
            super().deliver(events)

    with engine_on(alphabet_bundle, slots=4) as engine:
        sink = Counting()
        prompt = ids_of(engine, "a")
        ids = engine.submit_all([request(prompt, max_tokens=11, **GREEDY)] * 4, sink)
        sink.wait_for(ids)
    assert sink.calls == 4 + 10  # a first token each, and ten decode steps of all


def test_many_threads_may_submit_and_cancel_at_once(alphabet_bundle: Path) -> None:
    with engine_on(alphabet_bundle, slots=3) as engine:
        prompt = ids_of(engine, "a")
        sink, submitted = Sink(), []

        def visit(number: int) -> None:
            for round in range(5):
                id = engine.submit(request(prompt, max_tokens=12, **GREEDY), sink)
                submitted.append(id)
                if (number + round) % 3 == 0:
                    engine.cancel(id)

        threads = [threading.Thread(target=visit, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes = sink.wait_for(submitted)
        assert len(outcomes) == 30
        for outcome in outcomes:
            assert outcome.ending.reason in ("length", "cancelled")
            assert "bcdefghijklm".startswith(outcome.text)


def test_closing_tells_how_far_each_sequence_had_come(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        sink = Sink()
        ids = engine.submit_all([request([97], max_tokens=20)], sink)
        gate.reach()
        gate.go(3)
        sink.wait_until(
            lambda: sum(e.new_tokens for o in sink.outcomes.values() for e in o.events) >= 2
        )
        closing = threading.Thread(target=engine.close)
        closing.start()
        gate.open()
        closing.join()
        (outcome,) = sink.wait_for(ids)
        assert outcome.ending.completion_tokens == sum(e.new_tokens for e in outcome.events) > 1


def test_a_cancel_is_told_before_the_next_step_runs(alphabet_bundle: Path) -> None:
    with engine_around(alphabet_bundle, Gate) as (engine, gate):
        sink = Sink()
        leaving, staying = engine.submit_all([request([97], max_tokens=20)] * 2, sink)
        gate.reach()
        engine.cancel(leaving)
        gate.go()  # the step that was under way; the next one is not let go
        sink.wait_for([leaving])
        gate.open()
        sink.wait_for([staying])
