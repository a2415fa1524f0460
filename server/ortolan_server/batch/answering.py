"""Answers the lines of a batch with an engine: as many at once as keep it busy, without HTTP.

Bodies are checked and answers are written as the server does it. What a line gets depends on the
line alone: not on the others, nor on their order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ortolan_runtime.errors import EngineClosed, OrtolanError
from ortolan_runtime.events import Event
from ortolan_runtime.sinks import CollectingSink
from ortolan_runtime.stepper import Statistics
from ortolan_server.batch.lines import (
    DIALECTS,
    Document,
    Line,
    LineError,
    answer_of,
    error_of,
    prefix_key,
    read_line,
    seed_of,
)
from ortolan_server.bridge import SequenceEngine
from ortolan_server.candidates import Candidates
from ortolan_server.errors import ApiError, from_runtime, invalid_value
from ortolan_server.facts import Loaded, facts_of, fingerprint_of
from ortolan_server.prompts import Limits, limits_of, prepare, read_request
from ortolan_server.reply import Frame
from ortolan_server.request import CompletionRequest
from ortolan_server.responses import encode
from ortolan_server.settings import ServerSettings

DEFAULT_LIMITS = limits_of(ServerSettings())


class BatchEngine(SequenceEngine, Loaded, Protocol):
    """What of the engine a batch needs."""

    @property
    def is_alive(self) -> bool:
        """Return whether the step thread runs."""

    def statistics(self) -> Statistics:
        """Return counters and gauges, as of the last step."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line's answer: the line's number, the document, tokens generated."""

    number: int
    document: Document
    generated_tokens: int = 0

    @property
    def has_failed(self) -> bool:
        """Return whether the document tells of a failure."""
        response = self.document["response"]
        return response is None or response["status_code"] != 200


@dataclass(slots=True)
class _Job:
    """One line that the engine works at."""

    line: Line
    frame: Frame
    candidates: Candidates
    ids: Sequence[int]


class Answerer:
    """Answers lines with one engine; ``name`` is the model's name in the lines."""

    def __init__(
        self, engine: BatchEngine, *, name: str | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._engine = engine
        self._facts = facts_of(engine, name)
        self._fingerprint = fingerprint_of(engine.bundle.manifest, engine.device, engine.liberties)
        self._limits = limits
        self._tables = {path: dialect.table(is_strict=False) for path, dialect in DIALECTS.items()}
        # One sequence waits for each that runs, so that no slot is ever free for long.
        self._at_once = 2 * engine.statistics().slots

    def answer(self, lines: Iterable[Line]) -> Iterator[Answer]:
        """Yield the answer of each line, as they end. Raises EngineClosed when the engine dies."""
        sink = CollectingSink()
        running: dict[int, tuple[_Job, int]] = {}
        try:
            for line in lines:
                try:
                    job = self._begin(line, sink)
                except ApiError as error:
                    yield _refusal(line, error)
                    continue
                running |= {id: (job, position) for position, id in enumerate(job.ids)}
                while len(running) >= self._at_once:
                    yield from self._take(sink, running)
            while running:
                yield from self._take(sink, running)
        finally:
            for id in running:
                self._engine.cancel(id)

    def _begin(self, line: Line, sink: CollectingSink) -> _Job:
        """Hand a line's sequences to the engine. Raises ApiError and EngineClosed."""
        request, _ = read_request(
            line.body,
            line.dialect,
            self._tables[line.dialect.path],
            facts=self._facts,
            names=[self._facts.model],
            limits=self._limits,
        )
        if request.stream:
            raise invalid_value("stream", "`stream` must be false in a batch")
        frame = self._frame(line, request)
        try:
            prompts, sequences = prepare(
                request, seed=frame.seed, facts=self._facts, limits=self._limits
            )
            ids = self._engine.submit_all(sequences, sink)
        except EngineClosed:
            raise
        except OrtolanError as error:
            raise from_runtime(error) from error
        return _Job(line, frame, Candidates(request, prompts), ids)

    def _frame(self, line: Line, request: CompletionRequest) -> Frame:
        return Frame(
            id=f"{line.dialect.id_prefix}{secrets.token_hex(12)}",
            created_s=time.time(),
            model=self._facts.model,
            fingerprint=self._fingerprint,
            seed=seed_of(line.custom_id) if request.seed is None else request.seed,
            request=request,
            tokenizer=self._facts.tokenizer,
        )

    def _take(self, sink: CollectingSink, running: dict[int, tuple[_Job, int]]) -> Iterator[Answer]:
        """Wait for one event; yield the answer that it ends, if any. Raises EngineClosed."""
        id, event = sink.events.get()
        if id not in running:  # of a line that has failed already
            return
        job, position = running[id]
        if event.ending is not None:
            del running[id]
        try:
            if (answer := self._collected(job, position, event)) is not None:
                yield answer
        except ApiError as error:
            if not self._engine.is_alive:
                raise EngineClosed("the engine has failed; what is answered is kept") from error
            for other in job.ids:
                if running.pop(other, None) is not None:
                    self._engine.cancel(other)
            yield _refusal(job.line, error)

    def _collected(self, job: _Job, position: int, event: Event) -> Answer | None:
        """Note an event; return the line's answer when it was the last. Raises ApiError."""
        candidates = job.candidates
        candidates.collect([(position, event)])
        if not candidates.have_ended:
            return None
        usage = candidates.usage()
        reply = job.line.dialect.renderer.reply(job.frame, candidates.choices(), usage)
        return Answer(
            number=job.line.number,
            document=answer_of(job.line, 200, reply),
            generated_tokens=usage.completion_tokens,
        )


def answer_block(engine: BatchEngine, lines: Sequence[str], name: str | None = None) -> list[str]:
    """Return the answers of ``lines``, each a line of JSON, in their order.

    For work that is spread over many machines: a block of lines, an engine on each machine. Lines
    that are no requests get answers with an error, blank ones none. Raises EngineClosed.
    """
    requests: list[Line] = []
    answers: dict[int, Document] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            requests.append(read_line(text.encode("utf-8", "surrogatepass"), number))
        except LineError as error:
            answers[number] = error_of(error)
    requests.sort(key=prefix_key)
    for answer in Answerer(engine, name=name).answer(requests):
        answers[answer.number] = answer.document
    return [encode(answers[number]).decode() for number in sorted(answers)]


def _refusal(line: Line, error: ApiError) -> Answer:
    document = answer_of(line, line.dialect.status(error), line.dialect.error(error))
    return Answer(number=line.number, document=document)
