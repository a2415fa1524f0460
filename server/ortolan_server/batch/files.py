"""A batch from file to file, which may be killed at any time and go on.

What the output holds is not done again: it is appended to, line by line, and a half-written line at
its end is cut off when the work goes on. Lines are answered in the order of their prompts, so that
the prefix cache serves those that begin alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from ortolan_runtime.errors import OrtolanError
from ortolan_server.batch.answering import Answer
from ortolan_server.batch.lines import Document, Line, LineError, error_of, prefix_key, read_line
from ortolan_server.responses import encode

Report = Callable[["Progress"], None]


class BatchError(OrtolanError):
    """A file of the batch cannot be used; the message says which and why."""


class LineAnswerer(Protocol):
    """What answers lines: one engine here, or those of a cluster."""

    def answer(self, lines: Iterable[Line]) -> Iterator[Answer]:
        """Yield the answer of each line, as they end. Raises EngineClosed."""


class _Answered(msgspec.Struct):
    """What of an answer tells that its line is done."""

    custom_id: str | None
    response: _Response | None
    error: _Error | None


class _Response(msgspec.Struct):
    status_code: int


class _Error(msgspec.Struct):
    line: int


@dataclass(slots=True)
class Progress:
    """How far a batch is: lines in all, answered, of these failed and there from before."""

    lines: int = 0
    answered: int = 0
    failed: int = 0
    from_before: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class _Output:
    """The file of answers, locked, and what it holds."""

    path: Path
    file: int
    ids: set[str] = field(default_factory=set)
    bad_lines: set[int] = field(default_factory=set)
    failed: int = 0

    def write(self, document: Document) -> None:
        """Append one answer. Raises BatchError."""
        left = memoryview(encode(document) + b"\n")
        try:
            while left:
                left = left[os.write(self.file, left) :]
        except OSError as exc:
            raise BatchError(f"{self.path} cannot be written: {exc.strerror}") from exc


@dataclass(slots=True, frozen=True)
class _Place:
    """Where a line stands in the input."""

    number: int
    offset: int
    length: int


def run_file(answerer: LineAnswerer, source: Path, target: Path, report: Report) -> Progress:
    """Answer every line of ``source`` in ``target``; ``report`` hears of each step.

    Raises BatchError, and EngineClosed when the engine dies.
    """
    with _opened(source) as file, _output(target, source) as output:
        progress = Progress(failed=output.failed)
        todo = _plan(file, output, progress, report)
        for answer in answerer.answer(_lines(file, todo)):
            output.write(answer.document)
            progress.generated_tokens += answer.generated_tokens
            _count(progress, answer.has_failed, report)
        os.fsync(output.file)
    return progress


def _plan(file: BinaryIO, output: _Output, progress: Progress, report: Report) -> list[_Place]:
    """Answer lines that are no requests; return the places of those to be done, by prompt."""
    keyed: list[tuple[str, _Place]] = []
    seen: set[str] = set()
    for place, raw in _places(file):
        progress.lines += 1
        try:
            line = read_line(raw, place.number)
            if line.custom_id in seen:
                message = "`custom_id` must be another one than that of an earlier line"
                raise LineError(place.number, "duplicate_custom_id", message, line.custom_id)
        except LineError as error:
            if place.number in output.bad_lines:
                progress.answered += 1
                progress.from_before += 1
            else:
                output.write(error_of(error))
                _count(progress, True, report)
            continue
        seen.add(line.custom_id)
        if line.custom_id in output.ids:
            progress.answered += 1
            progress.from_before += 1
        else:
            keyed.append((prefix_key(line), place))
    keyed.sort(key=lambda pair: pair[0])
    report(progress)
    return [place for _, place in keyed]


def _count(progress: Progress, has_failed: bool, report: Report) -> None:
    progress.answered += 1
    progress.failed += has_failed
    report(progress)


def _places(file: BinaryIO) -> Iterator[tuple[_Place, bytes]]:
    """Yield each line that is not blank, with its place."""
    offset = 0
    for number, raw in enumerate(file, 1):
        if raw.strip():
            yield _Place(number, offset, len(raw)), raw
        offset += len(raw)


def _lines(file: BinaryIO, places: list[_Place]) -> Iterator[Line]:
    for place in places:
        file.seek(place.offset)
        yield read_line(file.read(place.length), place.number)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as exc:
        raise BatchError(f"{path} cannot be read: {exc.strerror}") from exc
    with file:
        yield file


@contextlib.contextmanager
def _output(path: Path, source: Path) -> Iterator[_Output]:
    """Give the file of answers, for this process alone. Raises BatchError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        raise BatchError(f"{path} cannot be written: {exc.strerror}") from exc
    try:
        if path.samefile(source):
            raise BatchError(f"the answers must go to another file than {source}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise BatchError(f"{path} is being written by another process") from exc
        output = _Output(path, descriptor)
        _read_answers(output)
        yield output
    finally:
        os.close(descriptor)


def _read_answers(output: _Output) -> None:
    """Note what is done, and cut off a line that is not whole. Raises BatchError."""
    whole = 0
    with output.path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                os.ftruncate(output.file, whole)
                return
            whole += len(raw)
            try:
                answered = _decoder.decode(raw)
            except msgspec.MsgspecError as exc:
                raise BatchError(
                    f"line {number} of {output.path} is no answer of a batch ({exc}); name another "
                    "file, or remove it to begin anew"
                ) from exc
            _note(output, answered)


def _note(output: _Output, answered: _Answered) -> None:
    if answered.error is not None:
        output.bad_lines.add(answered.error.line)
    elif answered.custom_id is not None:
        output.ids.add(answered.custom_id)
    output.failed += answered.response is None or answered.response.status_code != 200


_decoder = msgspec.json.Decoder(_Answered)
