"""Runs requests on real engines and tells what came of them, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.events import Ending, Event, TokenScore
from ortolan_runtime.params import GenerationRequest, SamplingParams

TIMEOUT_S = 60.0


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
        """Return everything that must not depend on company: text, tokens, scores, ending."""
        return (self.text, self.tokens, self.prompt, self.ending)


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
    """Give an engine on one thread, unless told otherwise."""
    with Engine.start(open_bundle(bundle), EngineOptions(**{"threads": 1, **options})) as engine:
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


def alone(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run one request after the other."""
    return [together(engine, [one])[0] for one in requests]
