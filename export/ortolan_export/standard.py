"""Attention in standard operators over a KV cache of static length, for TensorRT.

TensorRT wants each cache to be an input of the network with a static length, and the updated one an
output at the same address. Where new tokens go and what is their position are inputs, so that no
shape is ever computed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortolan_export.attention import KINDS, Attention, Inputs

_MASKED = -3e4  # within float16, and far below every score that is not masked


class StandardAttention(Attention):
    """Rotation, writing to the cache and attention, each by itself."""

    __slots__ = ("_masks",)

    _masks: dict[int, ir.Value]

    @property
    def cache_length(self) -> int:
        """Return the context's length."""
        return self.decoder.context_length

    def declare_inputs(self) -> Inputs:
        """Declare the graph's inputs, and emit the masks that layers share."""
        inputs = super().declare_inputs()
        self._masks = {
            window: self._mask(window, inputs) for window in dict.fromkeys(self.decoder.windows)
        }
        return inputs

    def build(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit one layer's attention up to, without, its output linear."""
        graph, decoder = self.graph, self.decoder
        query, key, value = self._apart(layer, self._packed(layer, x))
        query = self._rotated(layer, self._heads(query, decoder.heads), inputs)
        new = (
            self._rotated(layer, self._heads(key, decoder.kv_heads), inputs),
            self._heads(value, decoder.kv_heads),
        )
        keys, values = (
            self._written(layer, kind, update, inputs)
            for kind, update in zip(KINDS, new, strict=True)
        )
        attend = self._attended if not decoder.scales.attention_softcap else self._capped
        attended = attend(query, keys, values, self._masks[decoder.windows[layer]])
        rows = graph.op("Transpose", attended, perm=[0, 2, 1, 3])
        width = decoder.heads * decoder.head_size
        return graph.op("Reshape", rows, graph.constant([0, 0, width], np.int64))

    def _heads(self, x: ir.Value, heads: int) -> ir.Value:
        """Emit ``[B, S, heads x size]`` as ``[B, heads, S, size]``."""
        graph = self.graph
        shape = graph.constant([0, 0, heads, self.decoder.head_size], np.int64)
        return graph.op("Transpose", graph.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def _rotated(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        rope = self.decoder.ropes[layer]
        if rope is None:
            return x
        cos, sin = inputs.rope_tables[rope]
        return self.graph.op("RotaryEmbedding", x, cos, sin, inputs.position_ids)

    def _written(self, layer: int, kind: str, update: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit the cache with what is new in it, the graph's output."""
        past = self._past(layer, kind)
        indices = inputs.write_indices
        present = self.graph.op("TensorScatter", past, update, indices, axis=-2, mode="linear")
        self._present(layer, kind, present)
        return present

    def _attended(
        self, query: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value
    ) -> ir.Value:
        scale = self.decoder.scales.attention
        return self.graph.op("Attention", query, keys, values, mask, is_causal=0, scale=scale)

    def _capped(
        self, query: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value
    ) -> ir.Value:
        """Emit attention whose scores are capped, which TensorRT's operator does not know."""
        graph, decoder = self.graph, self.decoder
        scaled = graph.op("Mul", query, graph.number(decoder.scales.attention))
        turned = graph.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = graph.op("MatMul", self._grouped(scaled, decoder.head_size), turned)
        scores = self._ungrouped(scores, self.cache_length)
        cap = graph.number(decoder.scales.attention_softcap)
        scores = graph.op("Mul", graph.op("Tanh", graph.op("Div", scores, cap)), cap)
        scores = graph.op("Where", mask, scores, graph.number(_MASKED))
        weights = self._grouped(graph.op("Softmax", scores, axis=-1), self.cache_length)
        return self._ungrouped(graph.op("MatMul", weights, values), decoder.head_size)

    def _grouped(self, x: ir.Value, width: int) -> ir.Value:
        """Emit ``[B, heads, S, width]`` by KV head: ``[B, kv_heads, heads per one x S, width]``."""
        shape = self.graph.constant([0, self.decoder.kv_heads, -1, width], np.int64)
        return self.graph.op("Reshape", x, shape)

    def _ungrouped(self, x: ir.Value, width: int) -> ir.Value:
        shape = self.graph.constant([0, self.decoder.heads, -1, width], np.int64)
        return self.graph.op("Reshape", x, shape)

    def _mask(self, window: int, inputs: Inputs) -> ir.Value:
        """Emit which places of the cache each new token sees, bool ``[B, 1, S, length]``."""
        graph = self.graph
        places = graph.tensor("cache.places", np.arange(self.cache_length, dtype=np.int64))
        axes = graph.constant([1, 3], np.int64)
        position = graph.op("Unsqueeze", inputs.position_ids, axes)
        mask = graph.op("LessOrEqual", places, position)
        if not window:
            return mask
        first = graph.op("Sub", position, graph.constant(window, np.int64))
        return graph.op("And", mask, graph.op("Greater", places, first))
