"""The scheduler keeps its promises for any arrivals, lengths, cancels and budgets.

The rows are real: a store holds what each step wrote, so that what the cache claims can be looked
up. A written token remembers its tenant and what wrote it: a prefill of several tokens, of a lone
one (whose kernels may round otherwise), or a decode step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortolan_runtime.kvcache import KVCache
from ortolan_runtime.scheduler import DecodeStep, ForkStep, PrefillStep, Scheduler, Work

CONTEXT = 32
Written = tuple[str, str, int]  # tenant, "prefill" or "lone" or "decode", token


class RowStore:
    """KV rows that hold what was written to them, as ``KVStore`` demands."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[Written]] = [[] for _ in range(rows)]

    def copy(self, source: int, target: int, length: int) -> None:
        assert len(self.rows[source]) >= length
        self.rows[target][:length] = self.rows[source][:length]

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        kept = self.rows[one][:one_length]
        self.rows[one] = self.rows[other][:other_length]
        self.rows[other] = kept

    def release(self, row: int, length: int) -> None:
        del self.rows[row][length:]

    def write(self, row: int, start: int, written: list[Written]) -> None:
        assert len(self.rows[row]) >= start, "a token is written behind what the row holds"
        self.rows[row][start : start + len(written)] = written


@dataclass
class Request:
    """One sequence that comes at a step, wants some tokens, and may be cancelled later."""

    arrives: int
    prompt: tuple[int, ...]
    wants: int
    salt: str = ""
    scores: bool = False
    cancelled_after: int | None = None


@dataclass
class Machine:
    """How much of everything there is."""

    slots: int = 3
    chunk: int = 8
    budget: int = 64


def answer(id: int, position: int) -> int:
    """Return the token that sequence ``id`` generates at a position."""
    return 1000 * id + position


def ending_mark(work: Work) -> float:
    """Return what stands for the logits at a prompt's end: a number for prompt and tenant."""
    return float(hash((work.salt, *work.prompt.tolist())) % 2**20)


@dataclass
class Run:
    """A scheduler on a store, and what has happened so far."""

    machine: Machine
    requests: list[Request]
    works: dict[int, Work] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    credit: int = 0  # prompt tokens since the last decode step, while others decode
    prefilled: int = 0
    forks: int = 0

    def __post_init__(self) -> None:
        rows = 2 * self.machine.slots
        self.store = RowStore(rows)
        self.cache = KVCache(self.store, rows=rows, budget_tokens=self.machine.budget)
        self.scheduler = Scheduler(
            self.cache,
            slots=self.machine.slots,
            prefill_chunk=self.machine.chunk,
            scoring_chunk=max(2, self.machine.chunk // 2),
        )

    def play(self) -> None:
        """Run until everything has ended, checking after each step."""
        # Each token of each sequence may be computed again after a preemption of every other one.
        tokens = sum(len(r.prompt) + r.wants for r in self.requests)
        last_arrival = max((r.arrives for r in self.requests), default=0)
        for step in range(last_arrival + 10 + 4 * tokens * (1 + len(self.requests))):
            self.arrive_and_leave(step)
            if self.scheduler.is_idle and step > last_arrival:
                return
            self.one_step()
            self.check()
        raise AssertionError(f"never ended: {set(self.works) - set(self.ended)}")

    def arrive_and_leave(self, step: int) -> None:
        for id, request in enumerate(self.requests, 1):
            if request.arrives == step:
                self.works[id] = Work(
                    id=id,
                    tokens=list(request.prompt),
                    prompt_length=len(request.prompt),
                    salt=request.salt,
                    scores_prompt=request.scores,
                )
                self.scheduler.add(self.works[id])
            after = request.cancelled_after
            if after is not None and step == request.arrives + after and id not in self.ended:
                self.end(id)

    def end(self, id: int) -> None:
        assert id not in self.ended
        self.ended.append(id)
        self.scheduler.remove(self.works[id])

    def one_step(self) -> None:
        decoding = bool(self.cache.decoding_owners())
        match self.scheduler.next_step():
            case PrefillStep() as step:
                self.prefill(step, others_wait=decoding)
            case DecodeStep() as step:
                self.decode(step)
            case ForkStep() as step:
                self.forks += 1
                assert step.logits[0] == ending_mark(step.work)
                self.take_token(step.work)

    def prefill(self, step: PrefillStep, *, others_wait: bool) -> None:
        work, request = step.work, self.requests[step.work.id - 1]
        assert step.count >= 2 or work.prompt_length == 1, "a chunk of one token"
        assert step.start == self.cache.length_of(work.id)
        if request.scores:
            assert step.count <= max(3, self.machine.chunk // 2)
        if others_wait:
            self.credit += step.count
            assert self.credit <= max(self.machine.chunk, 3), "the others wait too long"
        self.prefilled += step.count
        tokens = work.tokens[step.start : step.start + step.count]
        row = self.cache.row_of(work.id)
        kind = "lone" if step.count == 1 else "prefill"
        self.store.write(row, step.start, [(work.salt, kind, t) for t in tokens])
        logits = np.array([ending_mark(work)], np.float32)
        self.scheduler.prefilled(step, logits, np.float32(0))
        if step.is_last and len(work.tokens) == work.prompt_length:
            self.take_token(work)

    def decode(self, step: DecodeStep) -> None:
        self.credit = 0
        ready = []
        for row, work in enumerate(step.works):
            assert self.cache.row_of(work.id) == row, "decoding rows are not in order"
            length = self.cache.length_of(work.id)
            self.store.write(row, length, [(work.salt, "decode", work.tokens[length])])
            if self.scheduler.needs_logits(work):
                ready.append(work)
        self.scheduler.decoded(step)
        for work in ready:
            self.take_token(work)

    def take_token(self, work: Work) -> None:
        generated = len(work.tokens) - work.prompt_length
        if generated < self.requests[work.id - 1].wants:
            work.tokens.append(answer(work.id, generated))
        if generated + 1 >= self.requests[work.id - 1].wants:
            self.end(work.id)

    def check(self) -> None:
        """Compare what the cache claims with what the store holds."""
        assert self.cache.used_tokens <= self.cache.budget_tokens
        assert self.scheduler.running <= self.machine.slots
        owners = self.cache.decoding_owners()
        assert len(owners) == self.cache.decoding_rows
        assert [self.cache.row_of(owner) for owner in owners] == list(range(len(owners)))
        waiting_or_ended = set(self.works) - self.running_ids()
        assert not waiting_or_ended & set(owners)
        for id in self.running_ids():
            work, length = self.works[id], self.cache.length_of(id)
            kind = "lone" if work.prompt_length == 1 else "prefill"
            kinds = [kind] * work.prompt_length + ["decode"] * length
            wanted = list(zip(itertools.repeat(work.salt), kinds, work.tokens[:length]))
            assert self.store.rows[self.cache.row_of(id)][:length] == wanted

    def running_ids(self) -> set[int]:
        live = [work.id for work in self.scheduler.works()]
        return {id for id in live if self.has_row(id)}

    def has_row(self, id: int) -> bool:
        try:
            self.cache.row_of(id)
        except KeyError:
            return False
        return True


prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    # Beginnings of one text, and continuations of it.
    st.builds(lambda n, m: [7] * n + [8] * m, st.integers(1, 16), st.integers(0, 4)),
).map(tuple)
requests = st.builds(
    Request,
    arrives=st.integers(0, 30),
    prompt=prompts,
    wants=st.integers(1, CONTEXT - 20),
    salt=st.sampled_from(["", "", "", "tenant"]),
    scores=st.sampled_from([False, False, False, True]),
    cancelled_after=st.one_of(st.none(), st.none(), st.integers(0, 40)),
)
machines = st.builds(
    Machine,
    slots=st.integers(1, 4),
    chunk=st.sampled_from([2, 3, 4, 5, 8, 16]),
    budget=st.sampled_from([CONTEXT, CONTEXT + 5, 48, 64, 100, 1000]),
)


@settings(max_examples=200)
@given(machine=machines, arrivals=st.lists(requests, min_size=1, max_size=8))
@example(
    machine=Machine(slots=4, chunk=4, budget=CONTEXT),
    arrivals=[Request(0, (1, 2, 3), 12) for _ in range(4)],
)
@example(
    machine=Machine(slots=2, chunk=2, budget=CONTEXT),
    arrivals=[Request(0, tuple(range(20)), 12), Request(1, (5,), 12), Request(2, (5, 6, 7), 12)],
)
@example(
    machine=Machine(slots=4, chunk=4, budget=1000),
    arrivals=[Request(0, (1,), 12), Request(2, (2, 3), 2), Request(2, (4, 5, 6), 2)],
)
def test_every_sequence_ends_with_its_own_tokens_and_nothing_is_left_behind(
    machine: Machine, arrivals: list[Request]
) -> None:
    run = Run(machine, arrivals)
    run.play()
    assert sorted(run.ended) == sorted(run.works)
    for id, work in run.works.items():
        generated = work.tokens[work.prompt_length :]
        assert generated == [answer(id, position) for position in range(len(generated))]
        if arrivals[id - 1].cancelled_after is None:
            assert len(generated) == arrivals[id - 1].wants
    assert run.cache.decoding_rows == 0
    assert run.cache.used_tokens == run.cache.cached_tokens
    assert run.scheduler.running == run.scheduler.waiting == 0


@settings(max_examples=40)
@given(
    count=st.integers(2, 6),
    length=st.integers(1, 20),
    chunk=st.sampled_from([2, 5, 16]),
    slots=st.integers(1, 4),
)
def test_equal_prompts_that_come_together_are_prefilled_once(
    count: int, length: int, chunk: int, slots: int
) -> None:
    prompt = tuple(range(100, 100 + length))
    run = Run(Machine(slots, chunk, 1000), [Request(0, prompt, 6) for _ in range(count)])
    run.play()
    assert run.prefilled == length
    assert run.forks == count - 1


def test_equal_prompts_of_two_tenants_are_prefilled_twice() -> None:
    prompt = tuple(range(10))
    arrivals = [Request(0, prompt, 3, salt="a"), Request(0, prompt, 3, salt="b")]
    run = Run(Machine(budget=1000), arrivals)
    run.play()
    assert run.prefilled == 20
    assert run.forks == 0


def test_a_prompt_that_is_scored_is_prefilled_whole() -> None:
    prompt = tuple(range(10))
    arrivals = [Request(0, prompt, 3), Request(0, prompt, 3, scores=True)]
    run = Run(Machine(budget=1000), arrivals)
    run.play()
    assert run.prefilled == 20


def test_a_longer_prompt_waits_for_the_beginning_that_another_is_prefilling() -> None:
    run = Run(
        Machine(chunk=4, budget=1000),
        [Request(0, tuple(range(16)), 3), Request(1, tuple(range(20)), 3)],
    )
    run.play()
    assert run.prefilled == 16 + 4


@settings(max_examples=40)
@given(chunk=st.sampled_from([4, 8, 16]), wants=st.integers(4, 12))
def test_sequences_that_outgrow_the_memory_are_preempted_and_all_end(
    chunk: int, wants: int
) -> None:
    arrivals = [Request(0, (i, i + 1, i + 2), wants) for i in range(4)]
    run = Run(Machine(slots=4, chunk=chunk, budget=CONTEXT), arrivals)
    run.play()
    assert sorted(run.ended) == [1, 2, 3, 4]


def test_the_oldest_sequence_is_never_preempted() -> None:
    arrivals = [Request(0, tuple(range(10 * i, 10 * i + 9)), 12) for i in range(4)]
    run = Run(Machine(slots=4, chunk=16, budget=40), arrivals)
    run.play()
    assert run.ended[0] == 1
