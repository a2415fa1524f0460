"""Rows are found, shared, evicted and kept in order as the cache says."""

from __future__ import annotations

import numpy as np
import pytest

from ortolan_runtime.kvcache import KVCache, Match, as_tokens


class Log:
    """A store that remembers what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def copy(self, source: int, target: int, length: int) -> None:
        self.calls.append(("copy", source, target, length))

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        self.calls.append(("swap", one, one_length, other, other_length))

    def release(self, row: int, length: int) -> None:
        self.calls.append(("release", row, length))


def cache_of(rows: int = 4, budget: int = 1000) -> KVCache:
    return KVCache(Log(), rows=rows, budget_tokens=budget)


def calls(cache: KVCache, name: str) -> list[tuple[object, ...]]:
    store = cache._store
    assert isinstance(store, Log)
    return [call for call in store.calls if call[0] == name]


def run_prompt(cache: KVCache, owner: int, *tokens: int, salt: str = "", reuse: int = 0) -> int:
    """Take a row for a prompt, prefill what is not reused, and return how much was."""
    prompt = as_tokens(tokens)
    reused = cache.acquire(owner, prompt, salt, reuse=reuse, tokens=len(tokens))
    assert reused is not None
    cache.extend_prefilled(owner, len(tokens) - reused)
    return reused


def test_a_new_cache_holds_nothing() -> None:
    cache = cache_of()
    assert (cache.used_tokens, cache.cached_tokens, cache.decoding_rows) == (0, 0, 0)
    assert cache.best_match(as_tokens([1, 2]), "") is None


def test_a_running_prompt_is_counted_and_is_no_cached_one() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    assert (cache.used_tokens, cache.cached_tokens) == (3, 0)


def test_a_finished_prompt_is_kept_without_its_output() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    cache.start_decoding(1)
    cache.extend_decoded(1)
    cache.finish(1, keep=True)
    assert (cache.used_tokens, cache.cached_tokens) == (3, 3)
    assert calls(cache, "release") == [("release", 0, 3)]


def test_a_finished_prompt_may_be_dropped_at_once() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    cache.finish(1, keep=False)
    assert cache.used_tokens == 0
    assert cache.best_match(as_tokens([5, 6, 7]), "") is None


def test_the_longest_common_beginning_is_found() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    run_prompt(cache, 2, 5, 6, 8, 9)
    assert cache.best_match(as_tokens([5, 6, 8, 1]), "") == Match(row=1, ready=3)


def test_what_another_tenant_wrote_is_not_found() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7, salt="a")
    assert cache.best_match(as_tokens([5, 6, 7]), "b") is None
    assert cache.best_match(as_tokens([5, 6, 7]), "a") == Match(row=0, ready=3)


def test_only_what_is_prefilled_by_now_is_found() -> None:
    cache = cache_of()
    prompt = as_tokens([5, 6, 7, 8])
    cache.acquire(1, prompt, "", reuse=0, tokens=4)
    assert cache.best_match(prompt, "") is None
    cache.extend_prefilled(1, 2)
    assert cache.best_match(prompt, "") == Match(row=0, ready=2)


def test_a_beginning_is_copied_from_a_row_that_still_runs() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    assert run_prompt(cache, 2, 5, 6, 9, reuse=2) == 2
    assert calls(cache, "copy") == [("copy", 0, 1, 2)]
    assert (cache.length_of(1), cache.length_of(2)) == (3, 3)


def test_what_a_lone_token_left_is_shared_by_equal_prompts_alone() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5)
    assert cache.best_match(as_tokens([5, 6, 7]), "") is None
    assert cache.best_match(as_tokens([5]), "") == Match(row=0, ready=1)


def test_a_lone_token_does_not_begin_with_what_a_longer_prompt_left() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    assert cache.best_match(as_tokens([5]), "") is None


def test_no_more_is_reused_than_was_asked_for() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7, 8)
    assert run_prompt(cache, 2, 5, 6, 7, 8, reuse=2) == 2


def test_a_kept_prompt_that_is_continued_gives_its_row() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    cache.finish(1, keep=True)
    assert run_prompt(cache, 2, 5, 6, 7, 8, 9, reuse=3) == 3
    assert cache.row_of(2) == 0
    assert calls(cache, "copy") == []
    assert cache.used_tokens == 5


def test_a_kept_prompt_of_which_a_part_is_used_stays() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6, 7)
    cache.finish(1, keep=True)
    assert run_prompt(cache, 2, 5, 6, 9, reuse=2) == 2
    assert cache.cached_tokens == 3
    assert calls(cache, "copy") == [("copy", 0, 1, 2)]


def test_a_kept_prompt_is_cut_to_what_is_used_when_there_is_no_room_for_both() -> None:
    cache = cache_of(budget=5)
    run_prompt(cache, 1, 5, 6, 7)
    cache.finish(1, keep=True)
    assert run_prompt(cache, 2, 5, 6, 9, reuse=2) == 2
    assert cache.row_of(2) == 0
    assert cache.used_tokens == 3


def test_the_kept_prompt_that_was_used_longest_ago_goes_first() -> None:
    cache = cache_of(budget=9)
    for owner, token in ((1, 10), (2, 20), (3, 30)):
        run_prompt(cache, owner, token, token, token)
        cache.finish(owner, keep=True)
    run_prompt(cache, 4, 10, 10, 10, 1, reuse=3)  # which uses the first one again
    assert cache.best_match(as_tokens([20, 20, 20]), "") is None
    assert cache.best_match(as_tokens([30, 30, 30]), "") is not None
    assert cache.evictions == 1


def test_memory_that_was_promised_is_not_promised_twice() -> None:
    cache = cache_of(budget=10)
    assert cache.acquire(1, as_tokens(range(6)), "", reuse=0, tokens=6) == 0
    assert cache.acquire(2, as_tokens(range(20, 26)), "", reuse=0, tokens=6) is None
    assert cache.acquire(2, as_tokens(range(20, 24)), "", reuse=0, tokens=4) == 0


def test_headroom_must_be_left_for_those_who_run() -> None:
    cache = cache_of(budget=10)
    prompt = as_tokens([1, 2, 3, 4])
    assert cache.acquire(1, prompt, "", reuse=0, tokens=4, headroom=7) is None
    assert cache.acquire(1, prompt, "", reuse=0, tokens=4, headroom=6) == 0


def test_no_row_is_given_when_all_are_owned() -> None:
    cache = cache_of(rows=2)
    run_prompt(cache, 1, 1, 2)
    run_prompt(cache, 2, 3, 4)
    assert cache.acquire(3, as_tokens([5, 6]), "", reuse=0, tokens=2) is None


def test_reserving_drops_kept_prompts_as_far_as_needed_and_no_further() -> None:
    cache = cache_of(budget=9)
    for owner, token in ((1, 10), (2, 20), (3, 30)):
        run_prompt(cache, owner, token, token, token)
        cache.finish(owner, keep=True)
    assert cache.reserve(2)
    assert cache.cached_tokens == 6


def test_what_runs_is_never_dropped_for_a_reservation() -> None:
    cache = cache_of(budget=4)
    run_prompt(cache, 1, 1, 2, 3)
    assert cache.reserve(1)
    assert not cache.reserve(2)
    assert cache.used_tokens == 3


def test_rows_that_decode_come_first_in_the_order_in_which_they_began() -> None:
    cache = cache_of()
    for owner in (1, 2, 3):
        run_prompt(cache, owner, owner, owner)
    cache.start_decoding(3)
    cache.start_decoding(1)
    assert cache.decoding_owners() == [3, 1]
    assert (cache.row_of(3), cache.row_of(1)) == (0, 1)
    assert cache.row_of(2) == 2


def test_the_last_decoding_row_fills_the_gap_of_one_that_ends() -> None:
    cache = cache_of()
    for owner in (1, 2, 3):
        run_prompt(cache, owner, owner, owner)
        cache.start_decoding(owner)
    cache.finish(1, keep=True)
    assert cache.decoding_owners() == [3, 2]
    assert calls(cache, "swap") == [("swap", 0, 2, 2, 2)]


def test_the_memory_behind_a_prompt_is_given_back_when_it_ends() -> None:
    cache = cache_of()
    run_prompt(cache, 1, 5, 6)
    cache.finish(1, keep=False)
    assert calls(cache, "release") == [("release", 0, 0)]


@pytest.mark.parametrize(
    ("prompt", "salt", "shares"),
    [
        ([5, 6, 7, 8, 9, 1], "", True),
        ([5, 6, 1, 2, 3, 4], "", False),  # the two tokens are there already
        ([5, 6, 7, 8], "", True),
        ([9, 9, 9, 9], "", False),
        ([5, 6, 7, 8, 9, 1], "other", False),
    ],
)
def test_a_prefill_that_will_write_more_of_a_prompt_is_worth_waiting_for(
    prompt: list[int], salt: str, shares: bool
) -> None:
    cache = cache_of()
    cache.acquire(1, as_tokens([5, 6, 7, 8]), "", reuse=0, tokens=4)
    cache.extend_prefilled(1, 2)
    assert cache.will_share_more(1, as_tokens(prompt), salt) is shares


def test_tokens_are_int64() -> None:
    assert as_tokens([1, 2**40]).dtype == np.int64
