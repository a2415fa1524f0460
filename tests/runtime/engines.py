"""Runs requests on real engines and tells what came of them, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.events import Ending, Event, TokenScore
from ortolan_runtime.kvcache import KVCache
from ortolan_runtime.kvmemory import Allocate
from ortolan_runtime.logits import Ids, Output
from ortolan_runtime.model import Model
from ortolan_runtime.params import GenerationRequest, SamplingParams
from ortolan_runtime.scheduler import Scheduler
from ortolan_runtime.stepper import Stepper
from ortolan_runtime.text import Tokenizer

TIMEOUT_S = 180.0  # only a fault reaches it: a busy machine must not
GREEDY: dict[str, Any] = {"temperature": 0.0}


@dataclass
class Outcome:
    """What one sequence's events say together."""

    events: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def tokens(self) -> list[TokenScore]:
        return [token for event in self.events for token in event.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def prompt(self) -> tuple[TokenScore, ...]:
        return tuple(token for event in self.events for token in event.prompt)

    @property
    def cached_tokens(self) -> int:
        return max(event.cached_tokens for event in self.events)

    @property
    def ending(self) -> Ending:
        endings = [event.ending for event in self.events if event.ending is not None]
        assert len(endings) == 1, "a sequence ends exactly once"
        assert self.events[-1].ending is not None, "an ending is the last event"
        return endings[0]

    def bits(self) -> tuple[Any, ...]:
        """Return everything that must not depend on company: text, tokens, scores, ending.

        How much of the prompt was computed and how much reused does depend on it.
        """
        ending = msgspec.structs.replace(self.ending, prefilled_tokens=0, reused_tokens=0)
        return (self.text, self.tokens, self.prompt, ending)


class Sink:
    """Collects the events of any number of sequences."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._changed = threading.Condition()

    def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        with self._changed:
            for id, event in events:
                self.outcomes.setdefault(id, Outcome()).events.append(event)
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, TIMEOUT_S), "the engine did not get there"

    def has_ended(self, id: int) -> bool:
        return id in self.outcomes and self.outcomes[id].events[-1].ending is not None

    def wait_for(self, ids: Sequence[int]) -> list[Outcome]:
        """Wait until all of these have ended, and return what came of them."""
        self.wait_until(lambda: all(self.has_ended(id) for id in ids))
        return [self.outcomes[id] for id in ids]


@contextmanager
def engine_on(bundle: Path, **options: Any) -> Iterator[Engine]:
    """Give an engine on one thread of the CPU, unless told otherwise."""
    usual = {"threads": 1, "device": "cpu"}
    with Engine.start(open_bundle(bundle), EngineOptions(**{**usual, **options})) as engine:
        yield engine


def request(prompt: Sequence[int], **fields: Any) -> GenerationRequest:
    """Return a request from fields of GenerationRequest and SamplingParams alike."""
    names = set(SamplingParams.__struct_fields__)
    sampling = SamplingParams(**{k: v for k, v in fields.items() if k in names})
    rest = {k: v for k, v in fields.items() if k not in names}
    return GenerationRequest(prompt=tuple(prompt), sampling=sampling, **rest)


def together(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run all requests at once."""
    sink = Sink()
    return sink.wait_for(engine.submit_all(requests, sink))


def ids_of(engine: Engine, text: str) -> list[int]:
    """Return the tokens of ``text``."""
    return engine.tokenizer.encode(text)


def run(engine: Engine, text: str, **fields: Any) -> Outcome:
    """Run one greedy request."""
    (outcome,) = together(engine, [request(ids_of(engine, text), **GREEDY, **fields)])
    return outcome


def alone(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run one request after the other."""
    return [together(engine, [one])[0] for one in requests]


def apart(bundle: Path, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run each request on an engine of its own, without cache or company, in one prefill chunk."""
    outcomes = []
    for one in requests:
        with engine_on(bundle, slots=1) as engine:
            outcomes += together(engine, [one])
    return outcomes


def assert_same(outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    """Assert that outcomes do not differ by a bit."""
    for index, (outcome, right) in enumerate(zip(outcomes, expected, strict=True)):
        assert outcome.bits() == right.bits(), f"request {index} differs"


def bindings_made(model: Model) -> list[int]:
    """Return how many bindings a model has after each of 40 steps of changing sizes."""
    made = []
    for step in range(40):
        model.prefill(1, np.arange(40, 42 + step % 3), 0, np.array([1]))
        model.decode(np.array([50]), np.array([5 + step], np.int32))
        made.append(model.binding_count)
    return made


def mixed_requests(bundle: Path) -> list[GenerationRequest]:
    """Return a dozen requests that differ in length, parameters and what they ask for."""
    with engine_on(bundle, slots=1) as engine:
        encode = engine.tokenizer.encode
        first = engine.tokenizer.bos_token_id or 0
        story = encode("Alice was beginning to get very tired of sitting by her sister on the bank")
        other = encode("The Queen said nothing, and the King looked anxiously at the")
    common: dict[str, Any] = {"logprobs": 3, "ignore_eos": True}
    return [
        request(story, max_tokens=12, temperature=0.0, **common),
        request(story, max_tokens=20, seed=1, **common),
        request(story, max_tokens=20, seed=1, choice=1, **common),
        request(story[:9], max_tokens=70, seed=2, top_p=0.9, temperature=0.7, **common),
        request(other, max_tokens=25, seed=3, top_k=20, temperature=1.3, **common),
        request(other[:5], max_tokens=80, seed=-4, min_p=0.05, **common),
        request([*story[:12], *other], max_tokens=15, seed=5, frequency_penalty=0.7, **common),
        request(story[:1], max_tokens=70, seed=6, **common),
        request(story[:2], max_tokens=60, seed=7, repetition_penalty=1.3, **common),
        request([first], max_tokens=50, seed=8, **common),
        request(other, max_tokens=6, seed=9, prompt_logprobs=2, **common),
        request(story, max_tokens=10, seed=10, stop=("e",), stop_token_ids=(5,), logprobs=0),
        request(story[::-1] + other, max_tokens=10, temperature=0.0, **common),
    ]


class Seam:
    """A model as it is; what stands in for one overrides ``prefill`` or ``decode``."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.length = model.length

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        return self._model.prefill(row, tokens, past, positions)

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        return self._model.decode(tokens, past)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Gate(Seam):
    """Stops before every run of the model until the test lets it go on."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._passes = threading.Semaphore(0)
        self._reached = threading.Semaphore(0)

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        self._wait()
        return super().prefill(row, tokens, past, positions)

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        self._wait()
        return super().decode(tokens, past)

    def reach(self) -> None:
        """Wait until the engine is about to run the model."""
        assert self._reached.acquire(timeout=TIMEOUT_S)

    def go(self, steps: int = 1) -> None:
        """Let that many runs pass."""
        self._passes.release(steps)

    def open(self) -> None:
        """Let everything pass from now on."""
        self._passes.release(1 << 20)

    def _wait(self) -> None:
        self._reached.release()
        assert self._passes.acquire(timeout=TIMEOUT_S)


@contextmanager
def engine_around(
    bundle: Path,
    wrap: Callable[[Model], Any],
    *,
    slots: int = 4,
    prefill_chunk: int = 256,
    queue_limit: int = 1024,
    kind: type[Engine] = Engine,
    allocate: Allocate | None = None,
) -> Iterator[tuple[Engine, Any]]:
    """Give an engine whose model is ``wrap``'s, and that model."""
    opened = open_bundle(bundle)
    manifest = opened.manifest
    model = Model(
        opened,
        rows=2 * slots,
        length=manifest.context_length,
        threads=1,
        device="cpu",
        allocate=allocate,
    )
    wrapped = wrap(model)
    cache = KVCache(model, rows=2 * slots, budget_tokens=slots * manifest.context_length)
    scheduler = Scheduler(cache, slots=slots, prefill_chunk=prefill_chunk, scoring_chunk=64)
    tokenizer = Tokenizer(
        opened.tokenizer_path,
        bos_token_id=manifest.bos_token_id,
        eos_token_ids=manifest.eos_token_ids,
    )
    stepper = Stepper(wrapped, tokenizer, cache, scheduler)
    options = EngineOptions(slots=slots, queue_limit=queue_limit)
    with kind(opened, wrapped, tokenizer, stepper, options) as engine:
        yield engine, wrapped
