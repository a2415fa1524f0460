"""A bundle made ready to run: its sessions, and its KV cache in the layout that its graphs have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnxruntime as ort

from ortolan_runtime.bundle import Bundle, Device
from ortolan_runtime.devicememory import DeviceMemory
from ortolan_runtime.errors import BundleError
from ortolan_runtime.kvbuffers import KVBuffers
from ortolan_runtime.kvmemory import Allocate, KVMemory
from ortolan_runtime.layouts.concat import ConcatLayout
from ortolan_runtime.layouts.layout import Layout
from ortolan_runtime.layouts.shared import SharedLayout
from ortolan_runtime.logits import Ids, Lengths, Output
from ortolan_runtime.providers import open_session, ready_device, session_options

Load = Callable[[Path, Device], ort.InferenceSession]

LoadSession = Callable[[Path], ort.InferenceSession]


class Model:
    """A bundle's graph with room for ``rows`` sequences of up to ``length`` tokens.

    Some bundles have a second graph, which computes prompts over the same KV buffers. Where one row
    alone would round differently from that row in a batch, a lone row gets company, so that its
    bits do not depend on others; ``relaxed`` does without. ``device`` defaults to the one that the
    bundle was made for, ``allocate`` to memory of that device; ``spin`` is as in
    ``session_options``. Raises BundleError, ProviderError and MemoryRefused.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        rows: int,
        length: int,
        threads: int,
        device: Device | None = None,
        spin: bool = False,
        relaxed: bool = False,
        provider_options: Mapping[str, str] | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.device = ready_device(bundle.manifest, device)

        def load(path: Path, device: Device) -> ort.InferenceSession:
            options = session_options(threads=threads, spin=spin)
            given = provider_options if device == self.device else None
            try:
                return open_session(str(path), device, options, given)
            except ort_errors() as exc:
                raise BundleError(f"{path} cannot be loaded: {first_line(exc)}") from exc

        self._layout = _layout(
            bundle,
            lambda path: load(path, self.device),
            allocate or _memory_of(bundle, self.device, load),
            rows=rows,
            length=length,
            relaxed=relaxed,
        )
        self.length = length
        self.vocab_size = bundle.manifest.vocab_size

    @property
    def buffers(self) -> KVMemory:
        """Return the memory of the KV cache."""
        return self._layout.buffers

    @property
    def binding_count(self) -> int:
        """Return how many views of the buffers are bound; bounded by the rows, not by the steps."""
        return self._layout.binding_count

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        """Run int64 ``[n]`` tokens of one row on top of ``past`` ones; logits at ``positions``.

        ``positions`` count from the first of ``tokens``, int64 ``[r]``.
        """
        return self._layout.prefill(row, tokens, past, positions)

    def verify(self, tokens: Ids, past: int) -> Output:
        """Run int64 ``[n]`` tokens of the first row as decode steps would; logits at each."""
        return self._layout.verify(tokens, past)

    def decode(self, tokens: Ids, past: Lengths) -> Output:
        """Run one token of each of the first rows; ``tokens`` int64, ``past`` int32 ``[n]``."""
        return self._layout.decode(tokens, past)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""
        self._layout.copy(source, target, length)

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        self._layout.swap(one, one_length, other, other_length)

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        self._layout.release(row, length)


def _layout(
    bundle: Bundle,
    load: LoadSession,
    allocate: Allocate,
    *,
    rows: int,
    length: int,
    relaxed: bool,
) -> Layout:
    manifest, decoding = bundle.manifest, load(bundle.graph_path)
    if manifest.kv_layout == "concat":
        return ConcatLayout(decoding, manifest, rows=rows, length=length, relaxed=relaxed)
    prefill = bundle.prefill_graph_path
    return SharedLayout(
        decoding,
        None if prefill is None else load(prefill),
        manifest,
        rows=rows,
        length=length,
        may_need_company=not (manifest.single_row_exact or relaxed),
        allocate=allocate,
    )


def _memory_of(bundle: Bundle, device: Device, load: Load) -> Allocate:
    """Return what makes the KV cache in the memory of ``device``."""
    path = bundle.rows_graph_path
    if device == "cpu" or path is None:
        return KVBuffers
    # TensorRT computes in CUDA's memory; to copy rows there is nothing to build an engine for.
    return partial(DeviceMemory, device="cuda", copier=load(path, "cuda"))


def ort_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that onnxruntime raises, which share no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NoModel",
        "NoSuchFile",
        "NotImplemented",
        "RuntimeException",
        "EPFail",
    )
    return (*(getattr(state, name) for name in names), RuntimeError, ValueError)


def first_line(exc: BaseException) -> str:
    """Return an exception's message without what follows its first line."""
    text = str(exc).strip()
    return text.splitlines()[0] if text else type(exc).__name__
