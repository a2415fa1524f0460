"""The layouts ``shared`` and ``static``: past and present of a step are the same memory, written in
place. The rows of a static cache are as long as the context, whatever length is asked for.

A step writes only the new tokens, and binds the rows that it runs as one view of the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ortolan_runtime.bundle import Manifest
from ortolan_runtime.kvbuffers import KVBuffers
from ortolan_runtime.kvmemory import Allocate, KVMemory, View
from ortolan_runtime.layouts.masked import LogitsBuffer, MaskedBinding
from ortolan_runtime.logits import Ids, Lengths, Output, row_logsumexp


class SharedLayout:
    """One graph that does all, or a second one that computes prompts over the same KV buffers.

    Where one row alone may round differently from that row in a batch (``may_need_company``), and
    does so with this processor's kernels, a lone row is decoded beside a spare one, row 0 of the
    buffers, so that its bits do not depend on company.
    """

    def __init__(
        self,
        decoding: ort.InferenceSession,
        prefilling: ort.InferenceSession | None,
        manifest: Manifest,
        *,
        rows: int,
        length: int,
        may_need_company: bool,
        allocate: Allocate = KVBuffers,
    ) -> None:
        self._spare = 1 if may_need_company else 0
        # An attention over all of a static row multiplies what it masks by 0. So what a sequence
        # that overflowed has left there must go, once there was one, before the row is used again.
        self._is_static, self._clears = manifest.kv_layout == "static", False
        buffer_length = manifest.cache_length(length)
        self.buffers = allocate(manifest, rows=rows + self._spare, length=buffer_length)
        self._decoding = _Graph(decoding, manifest, self.buffers)
        self._prefilling = self._decoding
        if prefilling is not None:
            self._prefilling = _Graph(prefilling, manifest, self.buffers)
        self.needs_company = may_need_company and not (
            _is_on_cpu(decoding) and self._is_lone_row_exact(manifest.vocab_size)
        )

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        """Run int64 ``[n]`` tokens of one row on top of ``past`` ones; logits at ``positions``.

        ``positions`` count from the first of ``tokens``, int64 ``[r]``.
        """
        if self._clears:
            self.buffers.clear(row + self._spare, past)
        wanted = positions
        if self.needs_company and len(positions) == 1:
            wanted = np.repeat(positions, 2)  # the head must not see a single row either
        first, count = row + self._spare, len(positions)
        output = self._prefilling.run(first, tokens[None, :], np.array([past], np.int32), wanted)
        return self._seen(Output(output.logits[:count], output.logsumexp[:count]))

    def verify(self, tokens: Ids, past: int) -> Output:
        """Run int64 ``[n]`` tokens of the first row as decode steps would; logits at each."""
        past_lengths = np.array([past], np.int32)
        output = self._decoding.run(
            self._spare, tokens[None, :], past_lengths, np.arange(len(tokens))
        )
        return self._seen(output)

    def decode(self, tokens: Ids, past: Lengths) -> Output:
        """Run one token of each of the first rows; ``tokens`` int64, ``past`` int32 ``[n]``."""
        count = len(tokens)
        if self.needs_company and count == 1:
            return self._seen(self._decode_in_company(tokens, past))
        output = self._decoding.run(self._spare, tokens[:, None], past, np.arange(count))
        return self._seen(output)

    @property
    def binding_count(self) -> int:
        """Return how many views of the buffers are bound; bounded by the rows, not by the steps."""
        graphs = {id(graph): graph for graph in (self._decoding, self._prefilling)}
        return sum(len(graph.bindings) for graph in graphs.values())

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""
        self.buffers.copy(source + self._spare, target + self._spare, length)
        if self._clears:
            self.buffers.clear(target + self._spare, length)

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        spare = self._spare
        self.buffers.swap(one + spare, one_length, other + spare, other_length)
        if self._clears:
            self.buffers.clear(one + spare, other_length)
            self.buffers.clear(other + spare, one_length)

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        self.buffers.release(row + self._spare, length)

    def _seen(self, output: Output) -> Output:
        """Return a step's output, after a look for values that are no numbers."""
        if self._is_static and not np.isfinite(output.logsumexp).all():
            self._clears = True
        return output

    def _decode_in_company(self, tokens: Ids, past: Lengths) -> Output:
        """Run one token of the first row beside the spare one."""
        twice, lengths = np.repeat(tokens, 2)[:, None], np.append(np.int32(0), past)
        both = self._decoding.run(0, twice, lengths, np.arange(2))
        return Output(both.logits[1:], both.logsumexp[1:])

    def _is_lone_row_exact(self, vocab_size: int) -> bool:
        """Return whether a row has the same bits alone and in company, tried on two tokens.

        The processor decides which kernels run, so the exporting machine cannot know. Other kernels
        would round otherwise somewhere among all the logits of a step.
        """
        try:
            for place, token in enumerate((vocab_size // 3, vocab_size // 2)):
                tokens, past = np.array([token]), np.array([place], np.int32)
                alone = self._decoding.run(1, tokens[:, None], past, np.arange(1))
                bits = alone.logits.tobytes(), alone.logsumexp.tobytes()
                both = self._decode_in_company(tokens, past)
                if bits != (both.logits.tobytes(), both.logsumexp.tobytes()):
                    return False
            return True
        finally:
            self._decoding.bindings.clear()
            for row in (0, 1):
                self.buffers.release(row, 0)


def _is_on_cpu(session: ort.InferenceSession) -> bool:
    # A GPU's libraries choose kernels by more than what two steps show.
    return bool(session.get_providers()[0] == "CPUExecutionProvider")


class _Graph:
    """One session over the KV buffers, with a binding for each view of them."""

    def __init__(
        self, session: ort.InferenceSession, manifest: Manifest, buffers: KVMemory
    ) -> None:
        self._session = session
        self._manifest = manifest
        self._buffers = buffers
        is_masked = manifest.masked_graph is not None
        self._logits = LogitsBuffer(session, manifest) if is_masked else None
        self.bindings: dict[tuple[int, int], _Binding | MaskedBinding] = {}

    def run(self, first_row: int, ids: Ids, past: Lengths, positions: Ids) -> Output:
        """Run ``ids`` int64 ``[rows, tokens]`` on rows from ``first_row`` on.

        Logits come at flat ``positions``. A batch or a sequence of size 0 would end the process
        inside onnxruntime.
        """
        assert ids.size > 0, "a step runs at least one token"
        rows = len(ids)
        binding = self.bindings.get((first_row, rows))
        if binding is None:
            binding = self._bind(first_row, rows)
            self.bindings[first_row, rows] = binding
        return binding.run(self._session, ids, past, positions)

    def _bind(self, first_row: int, rows: int) -> _Binding | MaskedBinding:
        # Made once for each view of the buffers: onnxruntime leaks what is bound anew every step.
        views = self._buffers.views(first_row, rows)
        if self._logits is None:
            return _Binding(self._session, self._manifest, views)
        return MaskedBinding(self._session, self._manifest, views, self._logits)


class _Binding:
    """One view of the KV buffers, bound as past and present, with a step's small arrays.

    The small arrays and the logits lie in the CPU's memory, wherever the KV cache is.
    """

    def __init__(
        self, session: ort.InferenceSession, manifest: Manifest, views: Sequence[View]
    ) -> None:
        self._io = session.io_binding()
        self._graph = manifest.graph
        self._vocab = manifest.vocab_size
        self._shape: tuple[int, ...] = ()
        names = [(layer, kind) for layer in range(manifest.layers) for kind in ("key", "value")]
        for (layer, kind), view in zip(names, views, strict=True):
            place = (view.device, 0, view.element, view.shape, view.address)
            self._io.bind_input(self._graph.past.format(layer=layer, kind=kind), *place)
            self._io.bind_output(self._graph.present.format(layer=layer, kind=kind), *place)

    def run(self, session: ort.InferenceSession, ids: Ids, past: Lengths, positions: Ids) -> Output:
        rows, count = ids.shape
        self._prepare(rows, count, len(positions))
        self._ids[:] = ids
        np.add(past[:, None], np.arange(count), out=self._position_ids)
        np.add(past, count - 1, out=self._seqlens_k)
        self._total[...] = self._seqlens_k.max() + 1
        self._write_indices[:] = past
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
        self._position_ids = np.empty((rows, count), np.int64)
        self._seqlens_k = np.empty(rows, np.int32)
        self._total = np.empty((), np.int32)
        self._write_indices = np.empty(rows, np.int64)
        self._positions = np.empty(wanted, np.int64)
        self._logits = np.empty((wanted, self._vocab), np.float32)
        self._logsumexp = np.empty(wanted, np.float32)
        graph = self._graph
        self._bind_input(graph.input_ids, self._ids)
        for name, array in (
            (graph.position_ids, self._position_ids),
            (graph.seqlens_k, self._seqlens_k),
            (graph.total_sequence_length, self._total),
            (graph.write_indices, self._write_indices),
        ):
            if name is not None:
                self._bind_input(name, array)
        self._bind_input(graph.logit_positions, self._positions)
        self._bind_output(graph.logits, self._logits)
        if graph.logsumexp is not None:
            self._bind_output(graph.logsumexp, self._logsumexp)

    def _bind_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self._io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: npt.NDArray[Any]) -> None:
        self._io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
