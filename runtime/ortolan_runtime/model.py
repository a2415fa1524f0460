"""The ONNX Runtime session, its KV buffers and its bindings.

Past and present of a step are the same memory, so a step writes only the new tokens. The buffers
are as long as the context, but memory is taken page by page as tokens are written, and given back.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ortolan_runtime.bundle import Bundle, Manifest
from ortolan_runtime.errors import BundleError
from ortolan_runtime.providers import Device, open_session, session_options

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Linux's value; Python names it from 3.13 on. Rows as long as the context are mostly never written.
_MAP_NORESERVE = 0x4000

# Tokens of a row that are exchanged at once, so that the copy between them stays small.
_SWAP_TOKENS = 1024

_DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
}


@dataclass(slots=True, frozen=True)
class Output:
    """Logits of one step, float32 ``[positions, vocab]``, and their log-sum-exp ``[positions]``.

    Views of buffers that the next step overwrites.
    """

    logits: Logits
    logsumexp: npt.NDArray[np.float32]


class KVBuffers:
    """The keys and values of all layers, each ``[rows, kv_heads, length, head_size]``.

    Anonymous memory outside the heap, so that rows can be given back to the system one by one.
    """

    def __init__(self, manifest: Manifest, *, rows: int, length: int) -> None:
        shape = (rows, manifest.kv_heads, length, manifest.head_size)
        dtype = _DTYPES[manifest.kv_dtype]
        self._maps: list[mmap.mmap] = []
        self.arrays = [self._allocate(shape, dtype) for _ in range(2 * manifest.layers)]
        self._token_bytes = manifest.head_size * np.dtype(dtype).itemsize
        self._heads, self._length = manifest.kv_heads, length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row to another."""
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        common, longest = sorted((one_length, other_length))
        longer, shorter = (one, other) if one_length == longest else (other, one)
        for array in self.arrays:
            for start in range(0, common, _SWAP_TOKENS):
                part = slice(start, min(start + _SWAP_TOKENS, common))
                kept = array[one, :, part].copy()
                array[one, :, part] = array[other, :, part]
                array[other, :, part] = kept
            array[shorter, :, common:longest] = array[longer, :, common:longest]
        self.release(longer, common)

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        page = mmap.PAGESIZE
        head_bytes = self._length * self._token_bytes
        for memory in self._maps:
            for head in range(self._heads):
                start = (row * self._heads + head) * head_bytes
                first = -(-(start + length * self._token_bytes) // page) * page
                last = (start + head_bytes) // page * page
                if last > first:
                    memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _allocate(self, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        memory = mmap.mmap(-1, size, flags=flags)
        # A huge page would take 2 MB for the first token of every head of every layer.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._maps.append(memory)
        return np.frombuffer(memory, dtype).reshape(shape)


class Model:
    """A bundle's graph with room for ``rows`` sequences of up to ``length`` tokens.

    Some bundles have a second graph, which computes prompts over the same KV buffers.

    Where one row alone would round differently from that row in a batch, a lone row is decoded
    beside a spare one (row 0 of the buffers), so that its bits do not depend on company;
    ``relaxed`` does without.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        rows: int,
        length: int,
        threads: int,
        device: Device = "cpu",
        spin: bool = False,
        relaxed: bool = False,
        provider_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spare = 0 if bundle.manifest.single_row_exact or relaxed else 1
        self._buffers = KVBuffers(bundle.manifest, rows=rows + self._spare, length=length)

        def load(path: Path) -> _Graph:
            options = session_options(threads=threads, spin=spin)
            try:
                session = open_session(str(path), device, options, provider_options)
            except ort_errors() as exc:
                raise BundleError(f"{path} cannot be loaded: {first_line(exc)}") from exc
            return _Graph(session, bundle.manifest, self._buffers)

        self._decoding = load(bundle.graph_path)
        prefill = bundle.prefill_graph_path
        self._prefilling = self._decoding if prefill is None else load(prefill)
        self.length = length
        self.vocab_size = bundle.manifest.vocab_size

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        """Run int64 ``[n]`` tokens of one row on top of ``past`` ones; logits at ``positions``.

        ``positions`` count from the first of ``tokens``, int64 ``[r]``.
        """
        wanted = positions
        if self._spare and len(positions) == 1:
            wanted = np.repeat(positions, 2)  # the head must not see a single row either
        first, count = row + self._spare, len(positions)
        output = self._prefilling.run(first, tokens[None, :], np.array([past], np.int32), wanted)
        return Output(output.logits[:count], output.logsumexp[:count])

    def verify(self, tokens: Ids, past: int) -> Output:
        """Run int64 ``[n]`` tokens of the first row as decode steps would; logits at each."""
        past_lengths = np.array([past], np.int32)
        return self._decoding.run(
            self._spare, tokens[None, :], past_lengths, np.arange(len(tokens))
        )

    def decode(self, tokens: Ids, past: npt.NDArray[np.int32]) -> Output:
        """Run one token of each of the first rows; ``tokens`` int64, ``past`` int32 ``[n]``."""
        count = len(tokens)
        if self._spare and count == 1:
            twice, lengths = np.repeat(tokens, 2)[:, None], np.append(np.int32(0), past)
            both = self._decoding.run(0, twice, lengths, np.arange(2))
            return Output(both.logits[1:], both.logsumexp[1:])
        return self._decoding.run(self._spare, tokens[:, None], past, np.arange(count))

    @property
    def binding_count(self) -> int:
        """Return how many views of the buffers are bound; bounded by the rows, not by the steps."""
        graphs = {id(graph): graph for graph in (self._decoding, self._prefilling)}
        return sum(len(graph.bindings) for graph in graphs.values())

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""
        self._buffers.copy(source + self._spare, target + self._spare, length)

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        spare = self._spare
        self._buffers.swap(one + spare, one_length, other + spare, other_length)

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        self._buffers.release(row + self._spare, length)


class _Graph:
    """One session over the KV buffers, with a binding for each view of them."""

    def __init__(
        self, session: ort.InferenceSession, manifest: Manifest, buffers: KVBuffers
    ) -> None:
        self._session = session
        self._manifest = manifest
        self._buffers = buffers
        self.bindings: dict[tuple[int, int], _Binding] = {}

    def run(self, first_row: int, ids: Ids, past: npt.NDArray[np.int32], positions: Ids) -> Output:
        """Run ``ids`` int64 ``[rows, tokens]`` on rows from ``first_row`` on.

        Logits come at flat ``positions``. A batch or a sequence of size 0 would end the process
        inside onnxruntime.
        """
        assert ids.size > 0, "a step runs at least one token"
        rows = len(ids)
        binding = self.bindings.get((first_row, rows))
        if binding is None:
            binding = self._bind(first_row, rows)
        return binding.run(self._session, ids, past, positions)

    def _bind(self, first_row: int, rows: int) -> _Binding:
        # Made once for each view of the buffers: onnxruntime leaks what is bound anew every step.
        views = [array[first_row : first_row + rows] for array in self._buffers.arrays]
        binding = _Binding(self._session.io_binding(), self._manifest, views)
        self.bindings[first_row, rows] = binding
        return binding


class _Binding:
    """One view of the KV buffers, bound as past and present, with a step's small arrays."""

    def __init__(
        self, binding: ort.IOBinding, manifest: Manifest, views: Sequence[npt.NDArray[Any]]
    ) -> None:
        self._io = binding
        self._graph = manifest.graph
        self._vocab = manifest.vocab_size
        self._shape: tuple[int, ...] = ()
        names = [(layer, kind) for layer in range(manifest.layers) for kind in ("key", "value")]
        for (layer, kind), view in zip(names, views, strict=True):
            self._bind_input(self._graph.past.format(layer=layer, kind=kind), view)
            self._bind_output(self._graph.present.format(layer=layer, kind=kind), view)

    def run(
        self, session: ort.InferenceSession, ids: Ids, past: npt.NDArray[np.int32], positions: Ids
    ) -> Output:
        rows, count = ids.shape
        self._prepare(rows, count, len(positions))
        self._ids[:] = ids
        np.add(past, count - 1, out=self._seqlens_k)
        self._total[...] = self._seqlens_k.max() + 1
        self._positions[:] = positions
        session.run_with_iobinding(self._io)
        if self._graph.logsumexp is None:
            self._logsumexp[:] = row_logsumexp(self._logits)
        return Output(self._logits, self._logsumexp)

    def _prepare(self, rows: int, count: int, wanted: int) -> None:
        """Bind arrays of these sizes, unless those of the last step fit."""
        if self._shape == (rows, count, wanted):
            return
        self._shape = (rows, count, wanted)
        self._ids = np.empty((rows, count), np.int64)
        self._seqlens_k = np.empty(rows, np.int32)
        self._total = np.empty((), np.int32)
        self._positions = np.empty(wanted, np.int64)
        self._logits = np.empty((wanted, self._vocab), np.float32)
        self._logsumexp = np.empty(wanted, np.float32)
        graph = self._graph
        self._bind_input(graph.input_ids, self._ids)
        self._bind_input(graph.seqlens_k, self._seqlens_k)
        self._bind_input(graph.total_sequence_length, self._total)
        self._bind_input(graph.logit_positions, self._positions)
        self._bind_output(graph.logits, self._logits)
        if graph.logsumexp is not None:
            self._bind_output(graph.logsumexp, self._logsumexp)

    def _bind_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self._io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: npt.NDArray[Any]) -> None:
        self._io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def row_logsumexp(logits: Logits) -> npt.NDArray[np.float32]:
    """Return the log of the sum of the exponentials of each row of float32 ``[rows, vocab]``."""
    top = logits.max(axis=1, keepdims=True)
    mass = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    result: npt.NDArray[np.float32] = (top[:, 0] + np.log(mass)).astype(np.float32)
    return result


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
