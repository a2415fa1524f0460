"""Runs a graph that goes by an attention mask, as other exporters write them.

``MaskedSession`` hands the cache over and takes the longer one back; ``MaskedBinding`` lets the
graph write its new tokens into the cache where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from ortolan_runtime.bundle import Manifest, MaskedGraph
from ortolan_runtime.kvbuffers import Array
from ortolan_runtime.kvmemory import View
from ortolan_runtime.logits import Ids, Lengths, Output, row_logsumexp

# The mask of a step in place grows by this many tokens at once, so that it is seldom bound anew.
_MASK_STEP = 64


class MaskedSession:
    """A session whose inputs are filled by name, those that the graph lacks left out."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        self._session = session
        self._inputs = _Inputs(session, manifest)
        self._outputs = [self._inputs.graph.logits, *(name for _, name in _cache_names(manifest))]
        self._pasts = [name for name, _ in _cache_names(manifest)]

    def run(
        self, ids: Ids, past: Ids, mask: Ids, cached: Sequence[Array], *, first_logit: int
    ) -> tuple[Array, Sequence[Array]]:
        """Run ``ids`` int64 ``[rows, tokens]`` on top of ``past`` int64 ``[rows]`` tokens each.

        ``cached`` are the keys and values of all layers, ``[rows, kv_heads, places, head]``, of
        which int64 ``mask`` ``[rows, places + tokens]`` tells which count. Returns logits from
        position ``first_logit`` on, of any float type ``[rows, positions, vocab]``, and the present
        keys and values, whose places are those of ``cached`` and the new ones behind. A batch or a
        sequence of size 0 would end the process inside onnxruntime.
        """
        assert ids.size > 0, "a step runs at least one token"
        keep = ids.shape[1] - first_logit
        feeds = self._inputs.fill(ids, past, mask, keep)
        feeds |= zip(self._pasts, cached, strict=True)
        logits, *presents = self._session.run(self._outputs, feeds)
        return logits[:, -keep:], presents


class LogitsBuffer:
    """Memory for any step's logits; one for all bindings of a graph, since steps take turns."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        assert manifest.masked_graph is not None, "the graph must be one with a mask"
        name = manifest.masked_graph.logits
        kind = next(value.type for value in session.get_outputs() if value.name == name)
        self._flat = np.empty(0, np.float16 if kind == "tensor(float16)" else np.float32)
        self._vocab = manifest.vocab_size

    def array(self, rows: int, positions: int) -> Array:
        """Return room for ``[rows, positions, vocab]``; what was there is overwritten."""
        size = rows * positions * self._vocab
        if size > self._flat.size:
            self._flat = np.empty(size, self._flat.dtype)
        return self._flat[:size].reshape(rows, positions, self._vocab)


class MaskedBinding:
    """One view of the KV buffers, bound as past and present of a graph that writes in place.

    Such graphs hold GroupQueryAttention, and count each row's tokens by its mask.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        views: Sequence[View],
        logits: LogitsBuffer,
    ) -> None:
        self._io = session.io_binding()
        self._logits = logits
        self._inputs = _Inputs(session, manifest)
        self._length = views[0].shape[2]
        self._bound: dict[str, Array] = {}
        self._logits_place: tuple[tuple[int, ...], int] = ((), 0)
        for (past, present), view in zip(_cache_names(manifest), views, strict=True):
            place = (view.device, 0, view.element, view.shape, view.address)
            self._io.bind_input(past, *place)
            self._io.bind_output(present, *place)

    def run(self, session: ort.InferenceSession, ids: Ids, past: Lengths, positions: Ids) -> Output:
        """Run ``ids`` int64 ``[rows, tokens]`` on top of ``past``; logits at flat ``positions``."""
        count = ids.shape[1]
        longest = int(past.max()) + count
        width = min(-(-longest // _MASK_STEP) * _MASK_STEP, self._length)
        mask = (np.arange(width) < past[:, None] + count).astype(np.int64)
        rows, places = np.divmod(positions, count)
        # The head must not see a single row.
        keep = max(count - int(places.min()), min(count, 2))
        for name, array in self._inputs.fill(ids, past.astype(np.int64), mask, keep).items():
            self._put(name, array)
        is_kept = self._inputs.graph.num_logits_to_keep is not None
        logits = self._logits.array(len(ids), keep if is_kept else count)
        self._bind_logits(logits)
        session.run_with_iobinding(self._io)
        wanted = logits[:, -keep:][rows, places - (count - keep)].astype(np.float32)
        return Output(wanted, row_logsumexp(wanted))

    def _bind_logits(self, logits: Array) -> None:
        place = logits.shape, logits.ctypes.data
        if place != self._logits_place:
            self._logits_place = place
            name = self._inputs.graph.logits
            self._io.bind_output(name, "cpu", 0, logits.dtype.type, *place)

    def _put(self, name: str, array: Array) -> None:
        """Write an input's values to where it is bound, or bind it anew at another size."""
        bound = self._bound.get(name)
        if bound is None or bound.shape != array.shape:
            bound = np.array(array, order="C")
            self._bound[name] = bound
            place = ("cpu", 0, bound.dtype.type, bound.shape, bound.ctypes.data)
            self._io.bind_input(name, *place)
        bound[...] = array


class _Inputs:
    """Fills the inputs that a graph has, its cache aside."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        assert manifest.masked_graph is not None, "the graph must be one with a mask"
        self.graph: MaskedGraph = manifest.masked_graph
        self._ranks = {value.name: len(value.shape) for value in session.get_inputs()}

    def fill(self, ids: Ids, past: Ids, mask: Ids, keep: int) -> dict[str, Array]:
        """Return arrays by name; ``keep`` is how many last positions get logits."""
        graph, count = self.graph, ids.shape[1]
        values: dict[str | None, Array] = {
            graph.input_ids: ids,
            graph.attention_mask: mask,
            graph.position_ids: past[:, None] + np.arange(count),
            graph.num_logits_to_keep: np.array(keep, np.int64),
            graph.use_cache_branch: np.array([mask.shape[1] > count]),
        }
        # A switch or a number may be declared as a scalar or as a list of one.
        return {
            name: value.reshape((1,) * self._ranks[name]) if value.size == 1 else value
            for name, value in values.items()
            if name is not None
        }


def _cache_names(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the names of past and present of all layers, each layer's key before its value."""
    graph = manifest.masked_graph
    assert graph is not None, "the graph must be one with a mask"
    pairs = [(layer, kind) for layer in range(manifest.layers) for kind in ("key", "value")]
    return [
        (graph.past.format(layer=n, kind=kind), graph.present.format(layer=n, kind=kind))
        for n, kind in pairs
    ]
