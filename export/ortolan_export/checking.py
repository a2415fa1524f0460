"""Checks a bundle by running it: digests, golden prompts, and every row alone against company."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ortolan_export.progress import Report, counting
from ortolan_export.running import Runner
from ortolan_export.source import Float32
from ortolan_export.verify import open_runner, row_tolerance
from ortolan_runtime.bundle import Golden, Manifest, open_bundle

_ROW_LENGTHS = (7, 2, 30, 16, 3)
_DECODE_STEPS = 4
_CHUNK = 7
# As in the runtime: other processors round otherwise, damage is off by whole units.
_GOLDEN_TOLERANCE = 1.0

Rows = list[list[int]]


class Check(msgspec.Struct, frozen=True):
    """One check: its name, what was found, and whether that is as it must be."""

    name: str
    finding: str
    has_passed: bool


def check_bundle(path: Path, report: Report) -> Iterator[Check]:
    """Give the checks of the bundle at ``path``, one by one as they are done.

    ``report`` is told (stage, units done, units in all). Raises BundleError for what cannot run.
    """
    manifest = _check_digests(path, report)
    size = sum(record.size for record in manifest.files) / 1e6
    yield Check("digests", f"{len(manifest.files)} files, {size:.1f} MB", True)
    for name, check in _RUNS.items():
        report(f"checking {name}", 0, 1)
        check_done = check(path, manifest)
        report(f"checking {name}", 1, 1)
        yield check_done


def _check_digests(path: Path, report: Report) -> Manifest:
    total = sum(file.stat().st_size for file in path.glob("*") if file.is_file())
    count = counting(report, "checking digests", total)
    return open_bundle(path, always_verify=True, progress=count).manifest


def _check_golden(path: Path, manifest: Manifest) -> Check:
    deviations, agreeing = [], 0
    for golden in manifest.golden:
        length = len(golden.prompt_tokens) + len(golden.tokens)
        runner = open_runner(path, manifest, rows=1, length=length)
        difference, equal = _replay(runner, golden)
        deviations.append(difference)
        agreeing += equal
    count = sum(len(golden.tokens) for golden in manifest.golden)
    finding = f"{agreeing} of {count} tokens as recorded"
    if not deviations:
        return Check("golden prompts", "the bundle has none", True)
    finding += f", logprobs off by {max(deviations):.2g} on average at most"
    return Check("golden prompts", finding, statistics.median(deviations) <= _GOLDEN_TOLERANCE)


def _replay(runner: Runner, golden: Golden) -> tuple[float, int]:
    """Return the mean difference of the logprobs, and how many tokens are still the likeliest."""
    row, past = list(golden.prompt_tokens), 0
    differences, agreeing = [], 0
    for token, logprob in zip(golden.tokens, golden.logprobs, strict=True):
        logits, logsumexp = runner.last([row], [past])
        differences.append(abs(float(logits[0, token] - logsumexp[0]) - logprob))
        agreeing += int(logits[0].argmax()) == token
        past, row = past + len(row), [token]
    mean = statistics.fmean(differences)
    return (mean if np.isfinite(mean) else float("inf")), agreeing


def _check_rows(path: Path, manifest: Manifest) -> Check:
    rows = _random_rows(manifest, _ROW_LENGTHS)
    runner = open_runner(path, manifest, rows=len(rows), length=max(map(len, rows)))
    together = _run_rows(runner, rows)
    alone = [_run_alone(runner, row, needs_spare=not manifest.single_row_exact) for row in rows]
    difference = max(_difference(a, b) for a, b in zip(alone, together, strict=True))
    return _compared("rows", f"{len(rows)} rows alone and in a batch", difference, manifest)


def _check_chunks(path: Path, manifest: Manifest) -> Check:
    (row,) = _random_rows(manifest, (max(_ROW_LENGTHS),))
    runner = open_runner(path, manifest, rows=1, length=len(row))
    whole, _ = runner.run([row], [0], list(range(len(row))))
    parts = []
    for past in range(0, len(row), _CHUNK):
        chunk = row[past : past + _CHUNK]
        parts.append(runner.run([chunk], [past], list(range(len(chunk))))[0])
    difference = _difference(np.concatenate(parts), whole)
    what = f"{len(row)} tokens at once and by {_CHUNK}"
    return _compared("chunks", what, difference, manifest)


_RUNS: dict[str, Callable[[Path, Manifest], Check]] = {
    "golden prompts": _check_golden,
    "rows": _check_rows,
    "chunks": _check_chunks,
}


def _random_rows(manifest: Manifest, lengths: Sequence[int]) -> Rows:
    """Return rows of random tokens; the last steps of each are decoded, one token at a time."""
    rng = np.random.default_rng(0)
    room = manifest.context_length
    longest = [min(length + _DECODE_STEPS, room) for length in lengths]
    return [rng.integers(0, manifest.vocab_size, length).tolist() for length in longest]


def _run_rows(runner: Runner, rows: Rows) -> list[Float32]:
    """Return each row's logits at the end of its prompt and after each decoded token."""
    prompts = [row[: len(row) - _DECODE_STEPS] or row[:1] for row in rows]
    pasts = [0] * len(rows)
    found: list[list[Float32]] = [[] for _ in rows]
    steps = prompts
    for _ in range(1 + _DECODE_STEPS):
        logits, _ = runner.last(steps, pasts)
        for index, row_logits in enumerate(logits):
            found[index].append(row_logits)
        pasts = [past + len(step) for past, step in zip(pasts, steps, strict=True)]
        if any(past >= len(row) for past, row in zip(pasts, rows, strict=True)):
            break
        steps = [[row[past]] for past, row in zip(pasts, rows, strict=True)]
    return [np.stack(row) for row in found]


def _run_alone(runner: Runner, row: list[int], *, needs_spare: bool) -> Float32:
    """Return one row's logits by itself, or beside a spare one where the server runs it so."""
    return _run_rows(runner, [row, row] if needs_spare else [row])[0]


def _compared(name: str, what: str, difference: float, manifest: Manifest) -> Check:
    if difference == 0:
        return Check(name, f"{what}: the same bits", True)
    finding = f"{what}: logits differ by {difference:.2g}"
    return Check(name, finding, difference <= row_tolerance(manifest))


def _difference(one: Float32, other: Float32) -> float:
    largest = float(np.abs(one - other).max())
    return largest if np.isfinite(largest) else float("inf")
