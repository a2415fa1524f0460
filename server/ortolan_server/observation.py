"""What is known of a completion request while it runs, for the metrics and the usage records.

A request is over when its response has ended and each of its sequences too: a client may leave
before the engine has told how many tokens it had generated.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from ortolan_runtime.events import Event
from ortolan_server.body import ClientDisconnected
from ortolan_server.errors import ApiError
from ortolan_server.reply import Usage

ResponseEnding = Literal["complete", "refused", "failed", "client_left"]
Clock = Callable[[], float]


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it is accounted for; times in seconds, ``time`` since 1970.

    ``model`` is "" where the request was refused before a model was chosen. ``prompt_tokens`` and
    ``cached_tokens`` are those of the reply's usage, in which a prompt counts once. What the engine
    did for it is counted apart, candidates that are not returned and work that was abandoned
    included: ``prefilled_tokens``, ``reused_tokens`` and ``generated_tokens`` add up to its
    counters. ``delivered_tokens`` are those that were handed to the connection.
    """

    time: float
    request_id: str
    key_id: str | None
    dialect: str
    model: str
    is_stream: bool
    status: int
    ending: ResponseEnding
    finish_reasons: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    reused_tokens: int
    generated_tokens: int
    delivered_tokens: int
    first_token_s: float | None
    duration_s: float


class TokenTimes(msgspec.Struct, frozen=True):
    """Who is told how long the clients of a model wait for tokens, in seconds."""

    first: Callable[[str, float], None]
    next: Callable[[str, float], None]


class Observation:
    """One request: fed by its endpoint and, with its events, by the bridge."""

    def __init__(self, observer: Observer, *, request_id: str, key_id: str | None, dialect: str):
        self._observer = observer
        self.request_id = request_id
        self._key_id = key_id
        self._dialect = dialect
        self._time = observer.clock()
        self._started = observer.timer()
        self._first: float | None = None
        self._last_by_id: dict[int, float] = {}
        self._reasons: Counter[str] = Counter()
        self._prefilled = self._reused = self._generated = 0
        self._is_submitted = self._is_settled = self._is_over = False
        self._ending: ResponseEnding = "client_left"
        self._status = 200
        self._duration_s: float | None = None
        self.usage: Callable[[], Usage] = Usage
        self.model = ""
        self.is_stream = False
        self.delivered_tokens = 0

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Note how the response ends; what is raised passes through."""
        try:
            yield
        except ApiError as error:
            self.fail(error)
            raise
        except ClientDisconnected:
            raise
        except Exception:
            self._status, self._ending = 500, "failed"
            raise
        finally:
            self._duration_s = self._observer.timer() - self._started
            self._finish_if_over()

    def submitted(self) -> None:
        """Note that the engine has the request's sequences, and will end them."""
        self._is_submitted = True

    def fail(self, error: ApiError) -> None:
        """Note that the client is told of an error."""
        self._status = error.status
        self._ending = "failed" if self._is_submitted else "refused"

    def complete(self) -> None:
        """Note that the whole response has been sent."""
        self._ending = "complete"

    def take(self, id: int, event: Event) -> None:
        """Count an event of a sequence; called for those after the client has left, too."""
        if event.new_tokens:
            self._time_tokens(id, event.new_tokens)
        if event.ending is not None:
            self._prefilled += event.ending.prefilled_tokens
            self._reused += event.ending.reused_tokens
            self._generated += event.ending.completion_tokens
            self._reasons[event.ending.reason] += 1

    def settle(self) -> None:
        """Note that every sequence has ended."""
        self._is_settled = True
        self._finish_if_over()

    def finish(self) -> None:
        """Account for the request now, whatever is still to come."""
        if self._is_over:
            return
        self._is_over = True
        self._observer.forget(self)
        self._observer.record(self._record())

    def _time_tokens(self, id: int, count: int) -> None:
        now = self._observer.timer()
        if self._first is None:
            self._first = now - self._started
            self._observer.times.first(self.model, self._first)
        if (last := self._last_by_id.get(id)) is not None:
            self._observer.times.next(self.model, (now - last) / count)
        self._last_by_id[id] = now

    def _finish_if_over(self) -> None:
        has_answered = self._duration_s is not None
        if has_answered and (self._is_settled or not self._is_submitted):
            self.finish()

    def _record(self) -> UsageRecord:
        usage = self.usage()
        return UsageRecord(
            time=self._time,
            request_id=self.request_id,
            key_id=self._key_id,
            dialect=self._dialect,
            model=self.model,
            is_stream=self.is_stream,
            status=self._status,
            ending=self._ending,
            finish_reasons=dict(self._reasons),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            prefilled_tokens=self._prefilled,
            reused_tokens=self._reused,
            generated_tokens=self._generated,
            delivered_tokens=self.delivered_tokens,
            first_token_s=self._first,
            duration_s=self._duration_s or self._observer.timer() - self._started,
        )


class Observer:
    """Begins observations, and hands the record of each request to all who listen."""

    def __init__(
        self,
        times: TokenTimes,
        *,
        clock: Clock = time.time,
        timer: Clock = time.perf_counter,
    ) -> None:
        self.times = times
        self.clock = clock
        self.timer = timer
        self._listeners: list[Callable[[UsageRecord], None]] = []
        self._running: set[Observation] = set()

    def listen(self, listener: Callable[[UsageRecord], None]) -> None:
        """Tell ``listener`` of each request that is over; it must not block or raise."""
        self._listeners.append(listener)

    def begin(self, *, request_id: str, key_id: str | None, dialect: str) -> Observation:
        """Return the observation of a request that has just come."""
        observation = Observation(self, request_id=request_id, key_id=key_id, dialect=dialect)
        self._running.add(observation)
        return observation

    def finish_all(self) -> None:
        """Account for the requests whose sequences will not end any more; the server is ending."""
        for observation in list(self._running):
            observation.finish()

    def forget(self, observation: Observation) -> None:
        """Stop holding an observation that is over."""
        self._running.discard(observation)

    def record(self, record: UsageRecord) -> None:
        """Tell all listeners of one request."""
        for listener in self._listeners:
            listener(record)
