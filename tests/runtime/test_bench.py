"""The benchmark measures what it says, on a bundle so small that it takes a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortolan_runtime.bench import BenchOptions, as_table, measure
from ortolan_runtime.errors import InvalidParameter

QUICK = BenchOptions(
    batches=(1, 3),
    prompt_tokens=40,
    context_tokens=8,
    decode_tokens=6,
    repetitions=1,
    threads=1,
    temperature=0.8,
    top_p=0.9,
)


def test_every_figure_is_there_and_positive(glass_bundle: Path) -> None:
    figures = measure(glass_bundle, QUICK)
    assert figures.precision == "int8"
    assert figures.prefill_tokens_per_s > 0
    assert figures.first_token_ms > 0
    assert figures.peak_memory_mb > 10
    assert [d.batch for d in figures.decode] == [1, 3]
    for decode in figures.decode:
        assert 0 < decode.outside_model < 1
        # Every sequence decodes 5 tokens in 5 steps, so the two figures are one.
        assert decode.tokens_per_s == pytest.approx(1000 * decode.batch / decode.step_ms)


def test_the_table_holds_a_line_for_every_batch(glass_bundle: Path) -> None:
    lines = as_table(measure(glass_bundle, QUICK)).splitlines()
    assert [line.split()[0] for line in lines[4:6]] == ["1", "3"]


def test_a_context_that_is_too_short_is_refused_with_its_length(glass_bundle: Path) -> None:
    with pytest.raises(InvalidParameter, match="128"):
        measure(glass_bundle, BenchOptions(prompt_tokens=500, threads=1))


def test_a_count_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="`repetitions` must be >= 1, got 0"):
        BenchOptions(repetitions=0)
