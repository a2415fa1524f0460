"""The engine: a thread that turns requests into events, one step of the model after another.

Callers talk to it through a mailbox and hear of it through sinks; everything else belongs to the
thread alone. Each sequence gets exactly one ending, whatever happens, the death of the thread
included.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Self

import msgspec

from ortolan_runtime.bundle import Bundle, Device, Manifest, cache_directory, open_bundle
from ortolan_runtime.capacity import plan_capacity
from ortolan_runtime.errors import (
    ContextLengthExceeded,
    EngineBusy,
    EngineClosed,
    InvalidParameter,
)
from ortolan_runtime.events import Ending, Event, EventSink, FinishReason
from ortolan_runtime.golden import check_golden
from ortolan_runtime.kvcache import MIN_PREFILL, KVCache
from ortolan_runtime.model import Model
from ortolan_runtime.params import GenerationRequest, SamplingParams
from ortolan_runtime.providers import default_threads, ready_device
from ortolan_runtime.scheduler import Scheduler
from ortolan_runtime.sinks import CollectingSink
from ortolan_runtime.speculation import SpeculationPolicy
from ortolan_runtime.stepper import Statistics, Stepper
from ortolan_runtime.tensorrt import check_steps, engine_folder, tensorrt_options
from ortolan_runtime.text import Tokenizer, open_tokenizer

logger = logging.getLogger("ortolan.engine")

_JOIN_S = 10.0
_HEAD_START_S = 0.05
# ONNX Runtime starts every thread that is asked for: with 1,000,000 it never comes to an end.
_MOST_THREADS = 1024


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine uses its machine.

    ``slots`` sequences run at once; ``threads`` defaults to the cores at hand; ``prefill_chunk`` is
    how many prompt tokens go between two decode steps; ``queue_limit`` bounds sequences that wait;
    ``speculate`` guesses tokens ahead while one sequence decodes: faster on text that repeats
    itself, but no longer the same bits in any company; ``relaxed`` gives these up to decode a lone
    row without a spare one beside it. ``kv_memory_bytes`` bounds the KV cache, by default room for
    every slot at the full context but at most half of the memory that is available. ``device``
    defaults to the one that the bundle was made for. Raises InvalidParameter.
    """

    slots: int = 16
    threads: int | None = None
    prefill_chunk: int = 256
    queue_limit: int = 1024
    kv_memory_bytes: int | None = None
    device: Device | None = None
    spin: bool = False
    speculate: bool = False
    relaxed: bool = False

    def __post_init__(self) -> None:
        for field, least in (("slots", 1), ("prefill_chunk", 1), ("queue_limit", 0)):
            if getattr(self, field) < least:
                raise InvalidParameter(field, f"must be >= {least}", getattr(self, field))
        if self.threads is not None and not 1 <= self.threads <= _MOST_THREADS:
            raise InvalidParameter("threads", f"must be within 1..{_MOST_THREADS}", self.threads)

    @property
    def liberties(self) -> tuple[str, ...]:
        """Return what was switched on that lets a sequence's bits depend on its company."""
        return tuple(name for name in ("speculate", "relaxed") if getattr(self, name))


class Engine:
    """A running bundle. Make one with ``Engine.open``; it is a context manager."""

    def __init__(
        self,
        bundle: Bundle,
        model: Model,
        tokenizer: Tokenizer,
        stepper: Stepper,
        options: EngineOptions,
    ) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.tokenizer = tokenizer
        self.device = model.device
        self.context_length = model.length
        self.options = options
        self.liberties = options.liberties
        self.failure: str | None = None
        self._stepper = stepper
        self._queue_limit = options.queue_limit
        self._ids = itertools.count(1)
        self._mailbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Guards _live and _is_open, which callers and the thread touch.
        self._lock = threading.Lock()
        self._live: dict[int, EventSink] = {}
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="ortolan-engine", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path | str,
        options: EngineOptions | None = None,
        *,
        verify: bool = False,
    ) -> Self:
        """Check and load the bundle at ``path`` and start decoding.

        ``verify`` checks every digest even if nothing changed since the last time. Raises
        BundleError, and as ``start``.
        """
        options = options or EngineOptions()
        cache = cache_directory(os.environ)
        return cls.start(open_bundle(Path(path), cache=cache, always_verify=verify), options)

    @classmethod
    def start(cls, bundle: Bundle, options: EngineOptions) -> Self:
        """Load a bundle that was checked, replay its golden prompts and start decoding.

        Raises BundleError, ProviderError, MemoryRefused, and InvalidParameter where an option does
        not fit the bundle or the memory.
        """
        manifest = bundle.manifest
        device = ready_device(manifest, options.device)
        provider_options = _provider_options(manifest, device, options)
        capacity = plan_capacity(
            manifest, device, slots=options.slots, kv_memory_bytes=options.kv_memory_bytes
        )
        with ThreadPoolExecutor(1, "ortolan-load") as beside:
            loading = beside.submit(
                Model,
                bundle,
                rows=capacity.rows,
                length=capacity.length,
                threads=options.threads or default_threads(),
                device=device,
                spin=options.spin,
                relaxed=options.relaxed,
                provider_options=provider_options,
            )
            # The tokenizer's loader keeps the GIL all the while: the session has to begin first.
            wait([loading], timeout=_HEAD_START_S)
            tokenizer = open_tokenizer(bundle)
            model = loading.result()
        check_golden(model, manifest, rows=options.slots)
        cache = KVCache(model, rows=capacity.rows, budget_tokens=capacity.tokens)
        scheduler = Scheduler(
            cache,
            slots=options.slots,
            prefill_chunk=options.prefill_chunk,
            scoring_chunk=_scoring_chunk(manifest.vocab_size, options.prefill_chunk),
        )
        speculation = SpeculationPolicy() if options.speculate else None
        stepper = Stepper(model, tokenizer, cache, scheduler, speculation)
        return cls(bundle, model, tokenizer, stepper, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs and takes requests or ends them."""
        return self._thread.is_alive() and self.failure is None

    @property
    def most_sequences(self) -> int:
        """Return how many sequences there may be at once, those that wait included."""
        return self._stepper.slots + self._queue_limit

    def check(self, request: GenerationRequest) -> None:
        """Raise ContextLengthExceeded or InvalidParameter when ``request`` can never run here."""
        total = len(request.prompt) + request.max_tokens
        if total > self.context_length:
            raise ContextLengthExceeded(
                context_length=self.context_length,
                prompt_tokens=len(request.prompt),
                max_tokens=request.max_tokens,
            )
        self._check_ids("prompt", request.prompt)
        sampling = request.sampling
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("allowed_token_ids", sampling.allowed_token_ids)
        self._check_ids("stop_token_ids", request.stop_token_ids)
        for word in sampling.bad_words:
            self._check_ids("bad_words", word)

    def _check_ids(self, field: str, ids: Collection[int]) -> None:
        """Raise InvalidParameter when an id is outside the vocabulary.

        To onnxruntime -1 would silently mean the last row.
        """
        last = self.manifest.vocab_size - 1
        for extreme in (min(ids), max(ids)) if ids else ():
            if not 0 <= extreme <= last:
                raise InvalidParameter(field, f"must hold token ids within 0..{last}", extreme)

    def submit(self, request: GenerationRequest, sink: EventSink) -> int:
        """Queue one sequence and return its id; its events go to ``sink``.

        Raises InvalidParameter, ContextLengthExceeded, EngineBusy and EngineClosed.
        """
        return self.submit_all([request], sink)[0]

    def submit_all(self, requests: Sequence[GenerationRequest], sink: EventSink) -> list[int]:
        """Queue several sequences, or none of them when one is refused; raises as ``submit``."""
        seen: GenerationRequest | None = None
        for request in requests:
            # The choices of one prompt share its tuple, and need its check once.
            if seen is None or not _differ_in_choice_alone(seen, request):
                self.check(request)
            seen = request
        with self._lock:
            self._require_open()
            waiting = len(self._live) + len(requests) - self._stepper.slots
            if waiting > self._queue_limit:
                raise EngineBusy(
                    f"the queue must hold <= {self._queue_limit} sequences, got {waiting}; "
                    "try again later"
                )
            ids = [next(self._ids) for _ in requests]
            self._live.update((id, sink) for id in ids)
        arrivals = list(zip(ids, requests, strict=True))
        self._mailbox.put(lambda: self._stepper.add_all(arrivals))
        return ids

    def cancel(self, sequence_id: int) -> None:
        """End a sequence within one step; nothing happens when it has ended already."""
        self._mailbox.put(lambda: self._stepper.cancel(sequence_id))

    def generate(self, prompt: str | Sequence[int], **fields: Any) -> Iterator[Event]:
        """Yield the events of one sequence; leaving the loop early cancels it.

        ``fields`` are those of GenerationRequest and SamplingParams by name. Raises as ``submit``.
        """
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        names = set(SamplingParams.__struct_fields__)
        sampling = SamplingParams(**{k: v for k, v in fields.items() if k in names})
        rest = {k: v for k, v in fields.items() if k not in names}
        request = GenerationRequest(prompt=tuple(ids), sampling=sampling, **rest)
        sink = CollectingSink()
        sequence_id = self.submit(request, sink)
        try:
            while True:
                _, event = sink.events.get()
                yield event
                if event.ending is not None:
                    return
        finally:
            self.cancel(sequence_id)

    def complete(self, prompt: str | Sequence[int], **fields: Any) -> str:
        """Return the text of one sequence; arguments and errors as for ``generate``."""
        return "".join(event.text for event in self.generate(prompt, **fields))

    def statistics(self) -> Statistics:
        """Return counters and gauges, as of the last step."""
        return self._stepper.statistics

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests; return whether all running ones ended in time."""
        with self._lock:
            self._is_open = False
        deadline = time.monotonic() + timeout_s
        while self._live and time.monotonic() < deadline and self.is_alive:
            time.sleep(0.01)
        return not self._live

    def close(self) -> None:
        """Cancel what runs and stop the thread."""
        with self._lock:
            self._is_open = False
        self._mailbox.put(self._stepper.cancel_all)
        self._mailbox.put(None)
        self._thread.join(_JOIN_S)

    def _require_open(self) -> None:
        if self.failure is not None:
            raise EngineClosed(f"the engine has failed ({self.failure}); restart the server")
        if not self._is_open:
            raise EngineClosed("the engine takes no more requests; it is shutting down")

    def _run(self) -> None:
        try:
            while self._take_mail():
                self._deliver(self._stepper.take_events())  # of cancels: not after one more step
                self._stepper.step()
                self._deliver(self._stepper.take_events())
            self._deliver(self._stepper.take_events())
        except BaseException as exc:
            logger.exception("the engine's thread died")
            self.failure = type(exc).__name__
        finally:
            self._end_all()

    def _take_mail(self) -> bool:
        """Carry out what callers asked for, waiting when idle; return whether to go on."""
        is_idle = self._stepper.is_idle
        while True:
            try:
                order = self._mailbox.get(block=is_idle)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()
            is_idle = False

    def _deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        by_sink: dict[int, tuple[EventSink, list[tuple[int, Event]]]] = {}
        with self._lock:
            for sequence_id, event in events:
                sink = self._live[sequence_id]
                by_sink.setdefault(id(sink), (sink, []))[1].append((sequence_id, event))
                if event.ending is not None:
                    del self._live[sequence_id]
        for sink, batch in by_sink.values():
            try:
                sink.deliver(batch)
            except Exception:
                # One caller's broken sink must not end everybody's streams.
                logger.exception("a sink failed")

    def _end_all(self) -> None:
        """Give every sequence that is left its ending."""
        reason: FinishReason = "cancelled" if self.failure is None else "error"
        error = None if self.failure is None else "the engine has failed"
        ending = Ending(reason=reason, completion_tokens=0, error=error)
        with self._lock:
            self._is_open = False
            left = list(self._live)
        self._deliver([(id, Event(ending=ending)) for id in left])


def _differ_in_choice_alone(one: GenerationRequest, other: GenerationRequest) -> bool:
    if one.prompt is not other.prompt:
        return False
    sampling = msgspec.structs.replace(other.sampling, choice=one.sampling.choice)
    return msgspec.structs.replace(other, sampling=sampling) == one


def _provider_options(manifest: Manifest, device: Device, options: EngineOptions) -> dict[str, str]:
    """Return what the device's execution provider must know of the steps to come.

    Raises InvalidParameter where the steps would not fit the engines.
    """
    if device != "tensorrt" or manifest.engines is None:
        return {}
    check_steps(manifest.engines, rows=options.slots, chunk=options.prefill_chunk)
    return tensorrt_options(manifest, manifest.engines, engine_folder(os.environ))


def _scoring_chunk(vocab_size: int, prefill_chunk: int) -> int:
    """Return how many positions are scored at once: their logits take at most 64 MiB."""
    return max(MIN_PREFILL, min(prefill_chunk, (64 << 20) // (4 * vocab_size)))
