"""Runs a graph that goes by an attention mask, as other exporters write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ortolan_runtime.bundle import Manifest
from ortolan_runtime.kvbuffers import Array
from ortolan_runtime.logits import Ids


class MaskedSession:
    """A session whose inputs are filled by name, those that the graph lacks left out."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        assert manifest.masked_graph is not None, "the graph must be one with a mask"
        self._session = session
        self._graph = manifest.masked_graph
        pairs = [(layer, kind) for layer in range(manifest.layers) for kind in ("key", "value")]
        self._pasts = [self._graph.past.format(layer=n, kind=kind) for n, kind in pairs]
        presents = [self._graph.present.format(layer=n, kind=kind) for n, kind in pairs]
        self._outputs = [self._graph.logits, *presents]
        self._ranks = {value.name: len(value.shape) for value in session.get_inputs()}

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
        feeds: dict[str, npt.NDArray[Any]] = {self._graph.input_ids: ids}
        feeds |= self._optional(ids, past, mask, first_logit)
        feeds |= zip(self._pasts, cached, strict=True)
        logits, *presents = self._session.run(self._outputs, feeds)
        if self._graph.num_logits_to_keep is None:
            logits = logits[:, first_logit:]
        return logits, presents

    def _optional(self, ids: Ids, past: Ids, mask: Ids, first_logit: int) -> Mapping[str, Array]:
        """Return what not every graph takes."""
        graph, count = self._graph, ids.shape[1]
        keep = count - first_logit
        values = {
            graph.attention_mask: mask,
            graph.position_ids: past[:, None] + np.arange(count),
            graph.num_logits_to_keep: np.array(keep, np.int64),
            graph.use_cache_branch: np.array([mask.shape[1] > count]),
        }
        given = {name: value for name, value in values.items() if name is not None}
        # A switch or a number may be declared as a scalar or as a list of one.
        return {
            name: value.reshape((1,) * self._ranks[name]) if value.size == 1 else value
            for name, value in given.items()
        }
