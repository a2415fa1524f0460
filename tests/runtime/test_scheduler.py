"""The scheduler's order of steps, in cases small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortolan_runtime.kvcache import KVCache
from ortolan_runtime.scheduler import DecodeStep, ForkStep, PrefillStep, Scheduler, Step, Work


class Nowhere:
    """A store without memory, for tests of order alone."""

    def copy(self, source: int, target: int, length: int) -> None: ...

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None: ...

    def release(self, row: int, length: int) -> None: ...


def scheduler_of(*, slots: int = 4, chunk: int = 4, budget: int = 1000) -> Scheduler:
    cache = KVCache(Nowhere(), rows=2 * slots, budget_tokens=budget)
    return Scheduler(cache, slots=slots, prefill_chunk=chunk, scoring_chunk=3)


def work(id: int, prompt: Sequence[int], *, scores: bool = False) -> Work:
    return Work(id=id, tokens=list(prompt), prompt_length=len(prompt), scores_prompt=scores)


def run(scheduler: Scheduler, step: Step | None) -> str:
    """Carry a step out and return it in words; each sequence goes on for ever."""
    match step:
        case PrefillStep():
            scheduler.prefilled(step, np.zeros(1, np.float32), np.float32(0))
            if step.is_last and len(step.work.tokens) == step.work.prompt_length:
                step.work.tokens.append(0)
            return f"prefill {step.work.id} {step.start}+{step.count}"
        case DecodeStep():
            ready = [w for w in step.works if scheduler.needs_logits(w)]
            scheduler.decoded(step)
            for one in ready:
                one.tokens.append(0)
            return "decode " + " ".join(str(w.id) for w in step.works)
        case ForkStep():
            step.work.tokens.append(0)
            return f"fork {step.work.id}"
    return "nothing"


def steps(scheduler: Scheduler, count: int) -> list[str]:
    return [run(scheduler, scheduler.next_step()) for _ in range(count)]


def test_an_empty_scheduler_has_nothing_to_run() -> None:
    scheduler = scheduler_of()
    assert scheduler.is_idle
    assert scheduler.next_step() is None


def test_a_prompt_goes_chunk_by_chunk_and_then_decodes() -> None:
    scheduler = scheduler_of(chunk=4)
    scheduler.add(work(1, range(10)))
    assert steps(scheduler, 4) == ["prefill 1 0+4", "prefill 1 4+4", "prefill 1 8+2", "decode 1"]


def test_a_rest_of_one_token_is_never_left_alone() -> None:
    scheduler = scheduler_of(chunk=4)
    scheduler.add(work(1, range(9)))
    assert steps(scheduler, 3) == ["prefill 1 0+4", "prefill 1 4+3", "prefill 1 7+2"]


def test_a_rest_of_three_goes_at_once_where_two_are_the_most() -> None:
    scheduler = scheduler_of(chunk=2)
    scheduler.add(work(1, range(5)))
    assert steps(scheduler, 2) == ["prefill 1 0+2", "prefill 1 2+3"]


def test_a_prompt_of_one_token_is_a_chunk_of_one() -> None:
    scheduler = scheduler_of()
    scheduler.add(work(1, [7]))
    assert steps(scheduler, 2) == ["prefill 1 0+1", "decode 1"]


def test_a_long_prompt_stalls_running_streams_for_one_chunk_at_a_time() -> None:
    scheduler = scheduler_of(chunk=4)
    scheduler.add(work(1, [5, 6]))
    assert steps(scheduler, 2) == ["prefill 1 0+2", "decode 1"]
    scheduler.add(work(2, range(10, 22)))
    assert steps(scheduler, 6) == [
        "prefill 2 0+4",
        "decode 1",
        "prefill 2 4+4",
        "decode 1",
        "prefill 2 8+4",
        "decode 1 2",
    ]


def test_a_short_prompt_does_not_wait_for_a_long_one_to_end() -> None:
    scheduler = scheduler_of(chunk=4)
    scheduler.add(work(1, range(100)))
    scheduler.add(work(2, [500, 501]))
    assert steps(scheduler, 3) == ["prefill 1 0+4", "prefill 2 0+2", "decode 2"]


def test_several_short_prompts_share_one_turn() -> None:
    scheduler = scheduler_of(chunk=4)
    scheduler.add(work(1, [1, 2]))
    steps(scheduler, 2)
    scheduler.add(work(2, [3, 4]))
    scheduler.add(work(3, [5, 6]))
    scheduler.add(work(4, [7, 8]))
    assert steps(scheduler, 3) == ["prefill 2 0+2", "prefill 3 0+2", "decode 1 2 3"]


def test_those_without_a_slot_wait_in_the_order_of_arrival() -> None:
    scheduler = scheduler_of(slots=1)
    works = [work(id, [10 * id, 10 * id + 1]) for id in (1, 2, 3)]
    for one in works:
        scheduler.add(one)
    assert steps(scheduler, 2) == ["prefill 1 0+2", "decode 1"]
    assert (scheduler.running, scheduler.waiting) == (1, 2)
    scheduler.remove(works[0])
    assert steps(scheduler, 1) == ["prefill 2 0+2"]


def test_one_that_waits_for_memory_is_not_overtaken_by_smaller_ones() -> None:
    scheduler = scheduler_of(budget=100)
    first = work(1, range(60))
    scheduler.add(first)
    steps(scheduler, 16)
    scheduler.add(work(2, range(100, 160)))
    scheduler.add(work(3, [500, 501]))
    assert steps(scheduler, 1) == ["decode 1"]
    scheduler.remove(first)
    assert steps(scheduler, 1) == ["prefill 2 0+4"]


def test_newcomers_without_end_do_not_keep_a_long_prompt_from_its_turns() -> None:
    scheduler = scheduler_of(slots=4, chunk=4)
    scheduler.add(work(1, range(40)))
    newcomer = work(2, [1002, 1003])
    for id in range(2, 32):
        newcomer = work(id, [1000 + id, 2000 + id])
        scheduler.add(newcomer)
        seen = steps(scheduler, 3)
        assert any(step.startswith(("prefill 1 ", "decode 1")) for step in seen)
        scheduler.remove(newcomer)
    assert len(newcomer.tokens) > 2  # the newcomers had theirs, too


def test_equal_prompts_decode_from_the_same_logits() -> None:
    scheduler = scheduler_of()
    for id in (1, 2, 3):
        scheduler.add(work(id, [5, 6, 7]))
    assert steps(scheduler, 4) == ["prefill 1 0+3", "fork 2", "fork 3", "decode 1 2 3"]


def test_a_prompt_that_was_there_before_is_prefilled_from_its_last_two_tokens() -> None:
    scheduler = scheduler_of(chunk=8)
    first, second = work(1, range(6)), work(2, range(6))
    scheduler.add(first)
    steps(scheduler, 1)
    scheduler.remove(first)
    scheduler.add(second)
    assert steps(scheduler, 1) == ["prefill 2 4+2"]
    assert second.cached_tokens == 4


def test_a_prompt_that_is_scored_uses_small_chunks_and_no_cache() -> None:
    scheduler = scheduler_of(chunk=16)
    scheduler.add(work(1, range(7)))
    steps(scheduler, 1)
    scheduler.add(work(2, range(7), scores=True))
    assert steps(scheduler, 3) == ["prefill 2 0+3", "prefill 2 3+2", "prefill 2 5+2"]


def test_the_youngest_is_preempted_and_later_computes_its_tokens_again() -> None:
    scheduler = scheduler_of(slots=2, chunk=8, budget=40)
    old, young = work(1, [1, 2]), work(2, [3, 4])
    scheduler.add(old)
    scheduler.add(young)
    assert steps(scheduler, 2) == ["prefill 1 0+2", "prefill 2 0+2"]
    assert steps(scheduler, 18) == ["decode 1 2"] * 18  # to 20 tokens each
    assert scheduler.preemptions == 0
    assert steps(scheduler, 1) == ["decode 1"]
    assert (scheduler.preemptions, scheduler.running, scheduler.waiting) == (1, 1, 1)
    told = list(young.tokens)
    scheduler.remove(old)
    assert steps(scheduler, 1) == ["prefill 2 0+2"]
    assert steps(scheduler, 18) == ["decode 2"] * 18
    assert young.tokens == told
    assert steps(scheduler, 1) == ["decode 2"]
    assert len(young.tokens) == len(told) + 1


def test_a_sequence_can_be_removed_while_it_waits() -> None:
    scheduler = scheduler_of(slots=1)
    waits = work(2, [3, 4])
    scheduler.add(work(1, [1, 2]))
    steps(scheduler, 1)
    scheduler.add(waits)
    scheduler.remove(waits)
    assert steps(scheduler, 1) == ["decode 1"]
    assert scheduler.waiting == 0


def test_a_sequence_can_be_removed_amid_its_prompt() -> None:
    scheduler = scheduler_of(chunk=4)
    one = work(1, range(10))
    scheduler.add(one)
    steps(scheduler, 1)
    scheduler.remove(one)
    assert scheduler.is_idle


def test_one_that_waited_for_a_removed_prompt_goes_on_with_what_it_had_written() -> None:
    scheduler = scheduler_of(chunk=4)
    one, other = work(1, range(10)), work(2, range(10))
    scheduler.add(one)
    scheduler.add(other)
    assert steps(scheduler, 1) == ["prefill 1 0+4"]
    scheduler.remove(one)
    assert steps(scheduler, 1) == ["prefill 2 4+4"]


def test_a_sequence_can_be_removed_while_it_decodes() -> None:
    scheduler = scheduler_of()
    works = [work(id, [10 * id, 10 * id + 1]) for id in (1, 2, 3)]
    for one in works:
        scheduler.add(one)
    steps(scheduler, 4)
    scheduler.remove(works[0])
    assert steps(scheduler, 1) == ["decode 3 2"]
