"""Measures a bundle on this machine through the same engine that serves it.

Figures are medians over repetitions. On a shared machine only ratios of figures taken in one run
mean anything.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ortolan_runtime.bundle import Device
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import BundleError, InvalidParameter
from ortolan_runtime.events import Event
from ortolan_runtime.params import GenerationRequest, SamplingParams
from ortolan_runtime.sinks import CollectingSink
from ortolan_runtime.stepper import Statistics


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: prompts of ``prompt_tokens``, ``decode_tokens`` each at every batch size.

    ``context_tokens`` precede the decoding; ``temperature`` and ``top_p`` make sampling part of a
    step. Raises InvalidParameter.
    """

    batches: tuple[int, ...] = (1, 4, 8, 16)
    prompt_tokens: int = 512
    context_tokens: int = 128
    decode_tokens: int = 24
    repetitions: int = 3
    device: Device | None = None
    threads: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    speculate: bool = False

    def __post_init__(self) -> None:
        for field in ("prompt_tokens", "context_tokens", "decode_tokens", "repetitions"):
            if getattr(self, field) < 1:
                raise InvalidParameter(field, "must be >= 1", getattr(self, field))


class DecodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding at one batch size; ``outside_model`` is the share of a step beside the model."""

    batch: int
    tokens_per_s: float
    step_ms: float
    outside_model: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; ``first_token_ms`` is from the request to its first token."""

    bundle: str
    precision: str
    device: Device
    threads: int | None
    load_s: float
    prompt_tokens: int
    prefill_tokens_per_s: float
    first_token_ms: float
    context_tokens: int
    decode: tuple[DecodeFigures, ...]
    peak_memory_mb: float


Report = Callable[[int, int, str], None]


def measure(path: Path, options: BenchOptions, report: Report | None = None) -> Figures:
    """Return the figures of the bundle at ``path``.

    ``report`` hears how many runs are done, of how many, and what the last one was.
    Raises BundleError, and InvalidParameter when the context is too short for what was asked.
    """
    started = time.perf_counter()
    slots = max(options.batches)
    engine_options = EngineOptions(
        slots=slots,
        threads=options.threads,
        device=options.device,
        speculate=options.speculate,
    )
    with Engine.open(path, engine_options) as engine:
        load_s = time.perf_counter() - started
        _check_room(engine, options)
        bench = _Bench(engine, options, report)
        bench.prefill()  # the first runs also allocate
        first_token_s = [bench.prefill() for _ in range(options.repetitions)]
        decode = tuple(bench.decode(batch) for batch in options.batches)
        manifest, device = engine.manifest, engine.device
    return Figures(
        bundle=manifest.name,
        precision=manifest.precision,
        device=device,
        threads=options.threads,
        load_s=load_s,
        prompt_tokens=options.prompt_tokens,
        prefill_tokens_per_s=options.prompt_tokens / statistics.median(first_token_s),
        first_token_ms=1000 * statistics.median(first_token_s),
        context_tokens=options.context_tokens,
        decode=decode,
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def as_table(figures: Figures) -> str:
    """Return the figures as lines for a terminal."""
    lines = [
        f"{figures.bundle} ({figures.precision}) on {figures.device}, "
        f"loaded in {figures.load_s:.2f} s",
        f"prefill {figures.prompt_tokens} tokens: {figures.prefill_tokens_per_s:.0f} tok/s, "
        f"first token after {figures.first_token_ms:.0f} ms",
        f"decode after {figures.context_tokens} tokens:",
        "  batch   tok/s   step ms   outside the model",
    ]
    lines += [
        f"  {d.batch:5d} {d.tokens_per_s:7.1f} {d.step_ms:9.2f} {100 * d.outside_model:12.1f} %"
        for d in figures.decode
    ]
    lines.append(f"peak memory: {figures.peak_memory_mb:.0f} MB")
    return "\n".join(lines) + "\n"


class _Bench:
    """One engine under measurement. Prompts are random and never repeat, so nothing is reused."""

    def __init__(self, engine: Engine, options: BenchOptions, report: Report | None) -> None:
        self._engine = engine
        self._options = options
        self._report = report
        self._runs = 0
        self._random = np.random.default_rng(0)

    def prefill(self) -> float:
        """Return the seconds from a long prompt to its first token."""
        started = time.perf_counter()
        self._run([self._request(self._options.prompt_tokens, 1)])
        seconds = time.perf_counter() - started
        self._tell("prefill")
        return seconds

    def decode(self, batch: int) -> DecodeFigures:
        """Return what decoding ``batch`` sequences at once gives."""
        runs = [self._decode_once(batch) for _ in range(self._options.repetitions)]
        step_s = statistics.median(seconds / steps for steps, seconds, _ in runs)
        outside = statistics.median(1 - model_s / seconds for _, seconds, model_s in runs)
        tokens = statistics.median(self._tokens_per_s(batch, steps, s) for steps, s, _ in runs)
        return DecodeFigures(
            batch=batch, tokens_per_s=tokens, step_ms=1000 * step_s, outside_model=outside
        )

    def _decode_once(self, batch: int) -> tuple[int, float, float]:
        """Return the steps, the seconds in them, and the seconds of these in the model."""
        options = self._options
        requests = [
            self._request(options.context_tokens, options.decode_tokens) for _ in range(batch)
        ]
        # All prompts are prefilled first: one token each, which leaves them in the cache.
        self._run([msgspec.structs.replace(request, max_tokens=1) for request in requests])
        before = _snapshot(self._engine)
        self._run(requests)
        after = _snapshot(self._engine)
        self._tell(f"batch {batch}")
        return (
            after.decode_steps - before.decode_steps,
            after.decode_s - before.decode_s,
            after.decode_model_s - before.decode_model_s,
        )

    def _tell(self, what: str) -> None:
        self._runs += 1
        if self._report is not None:
            options = self._options
            runs = 1 + options.repetitions * (1 + len(options.batches))
            self._report(self._runs, runs, what)

    def _tokens_per_s(self, batch: int, steps: int, seconds: float) -> float:
        # The first token of each comes from its prefill, the others from decode steps.
        return batch * (self._options.decode_tokens - 1) / seconds if steps else 0.0

    def _request(self, prompt_tokens: int, max_tokens: int) -> GenerationRequest:
        ids = self._random.integers(0, self._engine.tokenizer.vocab_size, prompt_tokens)
        options = self._options
        return GenerationRequest(
            prompt=tuple(ids.tolist()),
            sampling=SamplingParams(
                temperature=options.temperature, top_p=options.top_p, seed=prompt_tokens
            ),
            max_tokens=max_tokens,
            ignore_eos=True,
        )

    def _run(self, requests: Sequence[GenerationRequest]) -> None:
        sink = CollectingSink()
        ids = self._engine.submit_all(requests, sink)
        for event in _until_ended(sink, len(ids)):
            if event.ending is not None and event.ending.error is not None:
                raise BundleError(f"the bundle failed under load: {event.ending.error}")


def _until_ended(sink: CollectingSink, count: int) -> Iterator[Event]:
    ended = 0
    while ended < count:
        _, event = sink.events.get()
        ended += event.ending is not None
        yield event


def _snapshot(engine: Engine) -> Statistics:
    return msgspec.structs.replace(engine.statistics())


def _check_room(engine: Engine, options: BenchOptions) -> None:
    needed = max(options.prompt_tokens + 1, options.context_tokens + options.decode_tokens)
    if needed > engine.context_length:
        raise InvalidParameter(
            "prompt", f"and what follows must be <= {engine.context_length} tokens", needed
        )
