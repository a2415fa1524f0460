"""Attention as ONNX nodes: packed QKV, the fused operator with its KV cache, the output linear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.graph import MICROSOFT, GraphBuilder
from ortolan_export.norms import Norms
from ortolan_export.quantize import Linears
from ortolan_export.rope import Rope, rope_tables
from ortolan_runtime.bundle import GraphNames

NAMES = GraphNames(logsumexp="logsumexp")

Tables = tuple[ir.Value, ir.Value]


@dataclass(slots=True)
class Inputs:
    """The graph's inputs, as GraphNames lists them, and the rotary tables that layers share."""

    token_ids: ir.Value
    seqlens_k: ir.Value
    total_sequence_length: ir.Value
    logit_positions: ir.Value
    rope_tables: Mapping[Rope, Tables]


@dataclass(slots=True)
class Attention:
    """Emits the attention of one decoder."""

    graph: GraphBuilder
    linears: Linears
    norms: Norms
    decoder: Decoder

    def build(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit one layer's attention up to, without, its output linear."""
        rope = self.decoder.ropes[layer]
        cos, sin = (None, None) if rope is None else inputs.rope_tables[rope]
        outputs = self.graph.op_with(
            3,
            "GroupQueryAttention",
            *self._query_key_value(layer, x),
            *(self._past(layer, kind) for kind in ("key", "value")),
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
        for kind, present in zip(("key", "value"), outputs[1:], strict=True):
            name = NAMES.present.format(layer=layer, kind=kind)
            self.graph.output(present, name, ir.DataType.FLOAT, self._cache_shape())
        return outputs[0]

    def output(self, layer: int, attended: ir.Value) -> ir.Value:
        """Emit the linear layer that writes attention's result to the residual stream."""
        module = self.decoder.module(layer, self.decoder.names.attention_output)
        return self.linears.linear(module, attended, [module])

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
        decoder, names, norms = self.decoder, self.decoder.names, self.norms
        modules = [decoder.module(layer, n) for n in (names.query, names.key, names.value)]
        packed = self.linears.linear(decoder.module(layer, "qkv"), x, modules)
        if decoder.architecture.qk_norm == "none":
            return packed, None, None
        heads = (decoder.heads, decoder.kv_heads, decoder.kv_heads)
        widths = self.graph.constant([n * decoder.head_size for n in heads], np.int64)
        query, key, value = self.graph.op_with(3, "Split", packed, widths, axis=-1)
        query = norms.query_or_key(decoder.module(layer, names.query_norm), query, decoder.heads)
        key = norms.query_or_key(decoder.module(layer, names.key_norm), key, decoder.kv_heads)
        return query, key, value

    def _sinks(self, layer: int) -> ir.Value | None:
        if self.decoder.names.sinks is None:
            return None
        name = self.decoder.module(layer, self.decoder.names.sinks)
        return self.graph.tensor(name, self.norms.tensors.read(name))

    def _past(self, layer: int, kind: str) -> ir.Value:
        name = NAMES.past.format(layer=layer, kind=kind)
        return self.graph.input(name, ir.DataType.FLOAT, self._cache_shape())

    def _cache_shape(self) -> list[int | str]:
        return ["B", self.decoder.kv_heads, "max_len", self.decoder.head_size]


def declare_inputs(graph: GraphBuilder, decoder: Decoder) -> Inputs:
    """Declare the graph's inputs, its KV cache aside, and store its rotary tables."""
    return Inputs(
        token_ids=graph.input(NAMES.input_ids, ir.DataType.INT64, ["B", "S"]),
        seqlens_k=graph.input(NAMES.seqlens_k, ir.DataType.INT32, ["B"]),
        total_sequence_length=graph.input(NAMES.total_sequence_length, ir.DataType.INT32, []),
        logit_positions=graph.input(NAMES.logit_positions, ir.DataType.INT64, ["R"]),
        rope_tables=_store_rope_tables(graph, decoder),
    )


def _store_rope_tables(graph: GraphBuilder, decoder: Decoder) -> dict[Rope, Tables]:
    tables: dict[Rope, Tables] = {}
    for rope in dict.fromkeys(rope for rope in decoder.ropes if rope is not None):
        name = f"rope.{len(tables)}" if tables else "rope"
        cos, sin = rope_tables(rope, decoder.context_length, decoder.head_size)
        tables[rope] = graph.tensor(f"{name}.cos", cos), graph.tensor(f"{name}.sin", sin)
    return tables
