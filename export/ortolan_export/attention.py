"""Attention as ONNX nodes: packed QKV, the fused operator with its KV cache, the output linear."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.graph import MICROSOFT
from ortolan_export.norms import Norms
from ortolan_export.operators import DecoderGraph
from ortolan_export.quantize import Linears
from ortolan_export.rope import Rope, rope_tables
from ortolan_runtime.bundle import GraphNames

KINDS = ("key", "value")

Tables = tuple[ir.Value, ir.Value]
QueryKeyValue = tuple[ir.Value, ir.Value, ir.Value]


@dataclass(slots=True)
class Inputs:
    """The graph's inputs, as GraphNames lists them, and the rotary tables that layers share.

    Which of them a graph has is a matter of its flavour.
    """

    token_ids: ir.Value
    logit_positions: ir.Value
    rope_tables: Mapping[Rope, Tables]
    position_ids: ir.Value | None = None
    seqlens_k: ir.Value | None = None
    total_sequence_length: ir.Value | None = None
    write_indices: ir.Value | None = None


@dataclass(slots=True)
class Attention(ABC):
    """Emits the attention of one decoder; ``names`` are those of the graph's inputs and outputs."""

    graph: DecoderGraph
    linears: Linears
    norms: Norms
    decoder: Decoder
    names: GraphNames

    @abstractmethod
    def build(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit one layer's attention up to, without, its output linear."""

    @property
    @abstractmethod
    def cache_length(self) -> int | str:
        """Return the length of the KV cache, a symbol where any will do."""

    def declare_inputs(self) -> Inputs:
        """Declare the graph's inputs, its KV cache aside, and store its rotary tables."""
        names, int64 = self.names, ir.DataType.INT64
        return Inputs(
            token_ids=self.graph.input(names.input_ids, int64, ["B", "S"]),
            position_ids=self._input(names.position_ids, int64, ["B", "S"]),
            seqlens_k=self._input(names.seqlens_k, ir.DataType.INT32, ["B"]),
            total_sequence_length=self._input(names.total_sequence_length, ir.DataType.INT32, []),
            write_indices=self._input(names.write_indices, int64, ["B"]),
            logit_positions=self.graph.input(names.logit_positions, int64, ["R"]),
            rope_tables=_store_rope_tables(self.graph, self.decoder),
        )

    def output(self, layer: int, attended: ir.Value) -> ir.Value:
        """Emit the linear layer that writes attention's result to the residual stream."""
        module = self.decoder.module(layer, self.decoder.names.attention_output)
        return self.linears.linear(module, attended, [module])

    def _packed(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit Q, K and V side by side, ``[B, S, (heads + 2 kv_heads) x size]``."""
        names = self.decoder.names
        modules = [self.decoder.module(layer, n) for n in (names.query, names.key, names.value)]
        return self.linears.linear(self.decoder.module(layer, "qkv"), x, modules)

    def _apart(self, layer: int, packed: ir.Value) -> QueryKeyValue:
        """Emit Q, K and V each by itself, Q and K with their norms where they have any."""
        decoder, names, norms = self.decoder, self.decoder.names, self.norms
        heads = (decoder.heads, decoder.kv_heads, decoder.kv_heads)
        widths = self.graph.constant([n * decoder.head_size for n in heads], np.int64)
        query, key, value = self.graph.op_with(3, "Split", packed, widths, axis=-1)
        if decoder.architecture.qk_norm == "none":
            return query, key, value
        query = norms.query_or_key(decoder.module(layer, names.query_norm), query, decoder.heads)
        key = norms.query_or_key(decoder.module(layer, names.key_norm), key, decoder.kv_heads)
        return query, key, value

    def _past(self, layer: int, kind: str) -> ir.Value:
        name = self.names.past.format(layer=layer, kind=kind)
        return self.graph.input(name, self.graph.element_type, self._cache_shape())

    def _present(self, layer: int, kind: str, value: ir.Value) -> None:
        name = self.names.present.format(layer=layer, kind=kind)
        self.graph.output(value, name, self.graph.element_type, self._cache_shape())

    def _cache_shape(self) -> list[int | str]:
        return ["B", self.decoder.kv_heads, self.cache_length, self.decoder.head_size]

    def _input(
        self, name: str | None, dtype: ir.DataType, shape: list[int | str]
    ) -> ir.Value | None:
        return None if name is None else self.graph.input(name, dtype, shape)


class FusedAttention(Attention):
    """One operator a layer: it rotates, writes to the cache and attends to what is live in it."""

    @property
    def cache_length(self) -> str:
        """Return a symbol: the operator takes caches of any length."""
        return "max_len"

    def build(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit one layer's attention up to, without, its output linear."""
        rope = self.decoder.ropes[layer]
        cos, sin = (None, None) if rope is None else inputs.rope_tables[rope]
        outputs = self.graph.op_with(
            3,
            "GroupQueryAttention",
            *self._query_key_value(layer, x),
            *(self._past(layer, kind) for kind in KINDS),
            inputs.seqlens_k,
            inputs.total_sequence_length,
            cos,
            sin,
            None,
            None,
            self._sinks(layer),
            domain=MICROSOFT,
            **self._attributes(layer),
        )
        for kind, present in zip(KINDS, outputs[1:], strict=True):
            self._present(layer, kind, present)
        return outputs[0]

    def _attributes(self, layer: int) -> dict[str, int | float]:
        decoder = self.decoder
        return {
            "num_heads": decoder.heads,
            "kv_num_heads": decoder.kv_heads,
            "scale": decoder.scales.attention,
            "softcap": decoder.scales.attention_softcap,
            "do_rotary": int(decoder.ropes[layer] is not None),
            "rotary_interleaved": 0,
            "local_window_size": decoder.windows[layer] or -1,
        }

    def _query_key_value(
        self, layer: int, x: ir.Value
    ) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Return Q packed with K and V, or the three apart where Q and K have norms."""
        packed = self._packed(layer, x)
        if self.decoder.architecture.qk_norm == "none":
            return packed, None, None
        return self._apart(layer, packed)

    def _sinks(self, layer: int) -> ir.Value | None:
        if self.decoder.names.sinks is None:
            return None
        name = self.decoder.module(layer, self.decoder.names.sinks)
        return self.graph.weight(name, self.norms.tensors.read(name))


def _store_rope_tables(graph: DecoderGraph, decoder: Decoder) -> dict[Rope, Tables]:
    tables: dict[Rope, Tables] = {}
    for rope in dict.fromkeys(rope for rope in decoder.ropes if rope is not None):
        name = f"rope.{len(tables)}" if tables else "rope"
        cos, sin = rope_tables(rope, decoder.context_length, decoder.head_size)
        tables[rope] = graph.weight(f"{name}.cos", cos), graph.weight(f"{name}.sin", sin)
    return tables
