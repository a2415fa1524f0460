"""From samples to medians, ratios and verdicts, as Markdown and as JSON.

A ratio is one of medians over rounds; beside it stand the least and the most that any round by
itself gave, which tell how noisy the machine was.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from peers.contenders import OUTSIDE, PREFILL, START, decode_metric

INT8, INT4, BOTH = "Ortolan int8", "Ortolan int4", "Ortolan int8+int4"
Q8, Q4 = "llama.cpp Q8_0", "llama.cpp Q4_0"
GENAI = "onnxruntime-genai int4"
SAMPLED = "Ortolan int8, sampled"
SERVER, LLAMA_SERVER = "ortolan serve, int8", "llama-server, Q8_0"
# Less is better for these; more for all others, which are tokens per second.
_COSTS = (START, OUTSIDE)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One number that one contender gave in one round."""

    round: int
    contender: str
    metric: str
    value: float


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of ``ours`` against the best of ``theirs``; alone when these are none.

    ``bound`` is the least ratio, or the most for a cost.
    """

    metric: str
    ours: str
    theirs: tuple[str, ...]
    bound: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A target and the ratio that was measured; ``least`` and ``most`` are of single rounds."""

    target: Target
    ratio: float | None
    least: float | None
    most: float | None
    is_met: bool | None


TARGETS = (
    Target(metric=PREFILL, ours=INT8, theirs=(Q8, Q4), bound=1.5),
    Target(metric=decode_metric(8), ours=INT8, theirs=(Q8, Q4), bound=1.3),
    Target(metric=decode_metric(16), ours=INT8, theirs=(Q8, Q4), bound=1.3),
    Target(metric=decode_metric(1), ours=INT4, theirs=(Q4,), bound=1.1),
    Target(metric=decode_metric(1), ours=INT4, theirs=(GENAI,), bound=1.0),
    Target(metric=decode_metric(8), ours=INT8, theirs=(GENAI,), bound=1.3),
    Target(metric=decode_metric(16), ours=INT8, theirs=(GENAI,), bound=1.3),
    Target(metric=PREFILL, ours=BOTH, theirs=(INT4,), bound=1.6),
    Target(metric=OUTSIDE, ours=SAMPLED, theirs=(), bound=0.05),
    Target(metric=START, ours=SERVER, theirs=(LLAMA_SERVER,), bound=1.2),
)


def judge(samples: Sequence[Sample], targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """Return a verdict on each target."""
    return [_verdict(samples, target) for target in targets]


def medians(samples: Iterable[Sample]) -> dict[str, dict[str, float]]:
    """Return the median over rounds of each contender's metrics."""
    values: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        values.setdefault(sample.contender, {}).setdefault(sample.metric, []).append(sample.value)
    return {
        contender: {metric: statistics.median(numbers) for metric, numbers in metrics.items()}
        for contender, metrics in values.items()
    }


def figures_table(samples: Sequence[Sample]) -> str:
    """Return the medians as a Markdown table, a row for each contender."""
    found = medians(samples)
    metrics = list(dict.fromkeys(sample.metric for sample in samples))
    rows = [
        [contender, *(_figure(metric, numbers.get(metric)) for metric in metrics)]
        for contender, numbers in found.items()
    ]
    return _table(["", *(_heading(metric) for metric in metrics)], rows)


def verdicts_table(verdicts: Iterable[Verdict]) -> str:
    """Return the targets, what was measured and whether it is enough, as a Markdown table."""
    rows = []
    for verdict in verdicts:
        target = verdict.target
        sign = "≤" if target.metric in _COSTS else "≥"
        rows.append(
            [
                target.metric,
                target.ours,
                _best_of(target.theirs),
                f"{sign} {_ratio(target, target.bound)}",
                _ratio(target, verdict.ratio),
                f"{_ratio(target, verdict.least)} to {_ratio(target, verdict.most)}",
                {True: "met", False: "**missed**", None: "not measured"}[verdict.is_met],
            ]
        )
    return _table(["", "ours", "against", "target", "measured", "single rounds", ""], rows)


def _verdict(samples: Sequence[Sample], target: Target) -> Verdict:
    ratio = _ratio_of(samples, target)
    rounds = sorted({sample.round for sample in samples})
    single = [
        found
        for number in rounds
        if (found := _ratio_of([s for s in samples if s.round == number], target)) is not None
    ]
    is_met = None
    if ratio is not None:
        is_met = ratio <= target.bound if target.metric in _COSTS else ratio >= target.bound
    return Verdict(
        target=target,
        ratio=ratio,
        least=min(single, default=None),
        most=max(single, default=None),
        is_met=is_met,
    )


def _ratio_of(samples: Iterable[Sample], target: Target) -> float | None:
    """Return ours over the best of theirs, or None when one of them was not measured."""
    found = medians(samples)
    ours = found.get(target.ours, {}).get(target.metric)
    theirs = [found.get(name, {}).get(target.metric) for name in target.theirs]
    measured = [value for value in theirs if value is not None]
    if ours is None or len(measured) < len(theirs):
        return None
    best = min if target.metric in _COSTS else max
    return ours / best(measured, default=1.0)


def _heading(metric: str) -> str:
    unit = {START: "s", OUTSIDE: "% of a step"}.get(metric, "tok/s")
    return f"{metric}, {unit}"


def _figure(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    if metric == OUTSIDE:
        return f"{100 * value:.1f}"
    return f"{value:.2f}" if metric == START else f"{value:.1f}"


def _ratio(target: Target, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}×" if target.theirs else f"{100 * value:.1f} %"


def _best_of(names: Sequence[str]) -> str:
    return " / ".join(names) + (", best" if len(names) > 1 else "")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are padded, so that it reads well unrendered too."""
    cells = [list(headings), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(headings))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"
