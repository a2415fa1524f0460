"""The pieces that every decoder is built from, as ONNX nodes: embedding, norms, attention, MLP,
head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Activation, Decoder
from ortolan_export.graph import MICROSOFT, GraphBuilder
from ortolan_export.quantize import Linears
from ortolan_export.rope import rope_tables
from ortolan_export.source import Tensors
from ortolan_runtime.bundle import GraphNames

NAMES = GraphNames(logsumexp="logsumexp")


@dataclass(slots=True)
class Inputs:
    """The graph's inputs, as GraphNames lists them, and the rotary tables that all layers share."""

    token_ids: ir.Value
    seqlens_k: ir.Value
    total_sequence_length: ir.Value
    logit_positions: ir.Value
    cos: ir.Value
    sin: ir.Value


@dataclass(slots=True)
class Blocks:
    """Emits the blocks of one decoder into ``graph``, at the precision of ``linears``."""

    graph: GraphBuilder
    linears: Linears
    tensors: Tensors
    decoder: Decoder

    def build(self) -> None:
        """Emit the whole decoder, from token ids to logits."""
        inputs = self._inputs()
        names, decoder = self.decoder.names, self.decoder
        look_up = self.linears.tied_embedding if decoder.is_tied else self.linears.embedding
        residual = look_up(names.embedding, inputs.token_ids)
        normed = self.norm(decoder.module(0, names.attention_norm), residual)
        for layer in range(decoder.layers):
            attended = self.attention(layer, normed, inputs)
            if layer == decoder.layers - 1:  # nothing mixes positions after this
                attended = self.wanted(attended, decoder.heads * decoder.head_size, inputs)
                residual = self.wanted(residual, decoder.hidden_size, inputs)
            written = self.attention_output(layer, attended)
            mlp_norm = decoder.module(layer, names.mlp_norm)
            normed, residual = self.skip_norm(mlp_norm, residual, written)
            written = self.mlp(layer, normed)
            normed, residual = self.skip_norm(self._norm_after(layer), residual, written)
        self.head(normed)

    def norm(self, module: str, x: ir.Value) -> ir.Value:
        """Emit an RMS norm."""
        return self.graph.op(
            "SimplifiedLayerNormalization",
            x,
            self._vector(module),
            axis=-1,
            epsilon=self.decoder.norm_epsilon,
            stash_type=1,
        )

    def skip_norm(
        self, module: str, residual: ir.Value, written: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Add ``written`` to the residual stream; return its RMS norm and the sum."""
        normed, _, _, total = self.graph.op_with(
            4,
            "SkipSimplifiedLayerNormalization",
            residual,
            written,
            self._vector(module),
            domain=MICROSOFT,
            epsilon=self.decoder.norm_epsilon,
        )
        return normed, total

    def attention(self, layer: int, x: ir.Value, inputs: Inputs) -> ir.Value:
        """Emit one layer's attention up to, without, its output linear."""
        graph, decoder = self.graph, self.decoder
        query, key, value = self._query_key_value(layer, x)
        outputs = graph.op_with(
            3,
            "GroupQueryAttention",
            query,
            key,
            value,
            *(self._past(layer, kind) for kind in ("key", "value")),
            inputs.seqlens_k,
            inputs.total_sequence_length,
            inputs.cos,
            inputs.sin,
            domain=MICROSOFT,
            num_heads=decoder.heads,
            kv_num_heads=decoder.kv_heads,
            scale=decoder.head_size**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
            local_window_size=decoder.windows[layer] or -1,
        )
        for kind, present in zip(("key", "value"), outputs[1:], strict=True):
            name = NAMES.present.format(layer=layer, kind=kind)
            graph.output(present, name, ir.DataType.FLOAT, self._cache_shape())
        return outputs[0]

    def attention_output(self, layer: int, attended: ir.Value) -> ir.Value:
        """Emit the linear layer that writes attention's result to the residual stream."""
        module = self.decoder.module(layer, self.decoder.names.attention_output)
        return self.linears.linear(module, self.linears.operand(attended), [module])

    def mlp(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit the gated MLP, its gate and up layers packed into one."""
        names, graph = self.decoder.names, self.graph
        gate, up, down = (
            self.decoder.module(layer, name) for name in (names.gate, names.up, names.down)
        )
        packed = self.linears.linear(
            self.decoder.module(layer, "gate_up"), self.linears.operand(x), [gate, up]
        )
        gated, raised = graph.op_with(2, "Split", packed, axis=-1, num_outputs=2)
        inner = graph.op("Mul", _ACTIVATIONS[self.decoder.activation](graph, gated), raised)
        return self.linears.linear(down, self.linears.operand(inner), [down])

    def wanted(self, x: ir.Value, width: int, inputs: Inputs) -> ir.Value:
        """Return the rows of ``x`` at the wanted positions, ``[R, width]``."""
        flat = self.graph.op("Reshape", x, self.graph.constant([-1, width], np.int64))
        return self.graph.op("Gather", flat, inputs.logit_positions, axis=0)

    def head(self, x: ir.Value) -> None:
        """Emit the logits of ``x`` and the log-sum-exp of each of their rows."""
        graph, names = self.graph, self.decoder.names
        operand = self.linears.operand(x)
        if self.decoder.is_tied:
            logits = self.linears.tied_head(names.embedding, operand)
        else:
            logits = self.linears.linear(names.head, operand, [names.head])
        last = graph.constant([-1], np.int64)
        # LogSoftmax works row by row, several times faster than ReduceLogSumExp. A Log of a column
        # would round its last elements otherwise than those in whole vectors, so that a row's bits
        # would depend on the batch's size.
        likeliest = graph.op("ReduceMax", graph.op("LogSoftmax", logits, axis=-1), last, keepdims=0)
        largest = graph.op("ReduceMax", logits, last, keepdims=0)
        logsumexp = graph.op("Sub", largest, likeliest)
        vocab_size = self.decoder.vocab_size
        graph.output(logits, NAMES.logits, ir.DataType.FLOAT, ["R", vocab_size])
        assert NAMES.logsumexp is not None
        graph.output(logsumexp, NAMES.logsumexp, ir.DataType.FLOAT, ["R"])

    def _inputs(self) -> Inputs:
        graph = self.graph
        cos, sin = rope_tables(self.decoder.rope, self.decoder.context_length)
        return Inputs(
            token_ids=graph.input(NAMES.input_ids, ir.DataType.INT64, ["B", "S"]),
            seqlens_k=graph.input(NAMES.seqlens_k, ir.DataType.INT32, ["B"]),
            total_sequence_length=graph.input(NAMES.total_sequence_length, ir.DataType.INT32, []),
            logit_positions=graph.input(NAMES.logit_positions, ir.DataType.INT64, ["R"]),
            cos=graph.tensor("rope.cos", cos),
            sin=graph.tensor("rope.sin", sin),
        )

    def _past(self, layer: int, kind: str) -> ir.Value:
        name = NAMES.past.format(layer=layer, kind=kind)
        return self.graph.input(name, ir.DataType.FLOAT, self._cache_shape())

    def _cache_shape(self) -> list[int | str]:
        return ["B", self.decoder.kv_heads, "max_len", self.decoder.head_size]

    def _query_key_value(
        self, layer: int, x: ir.Value
    ) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Return Q packed with K and V, or the three apart where Q and K have norms."""
        decoder, names = self.decoder, self.decoder.names
        modules = [decoder.module(layer, n) for n in (names.query, names.key, names.value)]
        packed = self.linears.linear(decoder.module(layer, "qkv"), self.linears.operand(x), modules)
        if not decoder.architecture.has_qk_norm:
            return packed, None, None
        heads = (decoder.heads, decoder.kv_heads, decoder.kv_heads)
        widths = self.graph.constant([n * decoder.head_size for n in heads], np.int64)
        query, key, value = self.graph.op_with(3, "Split", packed, widths, axis=-1)
        query = self._head_norm(layer, names.query_norm, query, decoder.heads)
        key = self._head_norm(layer, names.key_norm, key, decoder.kv_heads)
        return query, key, value

    def _head_norm(self, layer: int, name: str, x: ir.Value, heads: int) -> ir.Value:
        """Emit an RMS norm over each head by itself."""
        graph, size = self.graph, self.decoder.head_size
        apart = graph.op("Reshape", x, graph.constant([0, 0, heads, size], np.int64))
        normed = self.norm(self.decoder.module(layer, name), apart)
        return graph.op("Reshape", normed, graph.constant([0, 0, heads * size], np.int64))

    def _norm_after(self, layer: int) -> str:
        names = self.decoder.names
        if layer == self.decoder.layers - 1:
            return names.last_norm
        return self.decoder.module(layer + 1, names.attention_norm)

    def _vector(self, module: str) -> ir.Value:
        name = f"{module}.weight"
        return self.graph.tensor(name, self.tensors.read(name))


def _silu(graph: GraphBuilder, x: ir.Value) -> ir.Value:
    # x * sigmoid(1.0 * x) in one pass over memory.
    return graph.op("QuickGelu", x, domain=MICROSOFT, alpha=1.0)


def _gelu(graph: GraphBuilder, x: ir.Value) -> ir.Value:
    return graph.op("Gelu", x, approximate="none")


def _gelu_tanh(graph: GraphBuilder, x: ir.Value) -> ir.Value:
    return graph.op("Gelu", x, approximate="tanh")


def _relu(graph: GraphBuilder, x: ir.Value) -> ir.Value:
    return graph.op("Relu", x)


_ACTIVATIONS: Mapping[Activation, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
