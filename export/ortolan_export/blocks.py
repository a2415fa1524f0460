"""The whole decoder as ONNX nodes: embedding, layers, head."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.attention import FusedAttention, Inputs
from ortolan_export.experts import Experts
from ortolan_export.mlp import MLP
from ortolan_export.norms import Norms
from ortolan_export.operators import DecoderGraph, StandardGraph
from ortolan_export.quantize import Linears
from ortolan_export.rotation import turn_name
from ortolan_export.source import Tensors
from ortolan_export.standard import StandardAttention
from ortolan_runtime.bundle import GraphNames


class Blocks:
    """Emits one decoder into ``graph``, at the precision of ``linears``.

    ``names`` are those of the graph's inputs and outputs. Between layers go the residual stream and
    what was written last, which the next norm adds to it.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        linears: Linears,
        tensors: Tensors,
        decoder: Decoder,
        names: GraphNames,
    ) -> None:
        self.graph = graph
        self.linears = linears
        self.tensors = tensors
        self.decoder = decoder
        self.norms = Norms(graph, tensors, decoder)
        self.names = names
        flavour = StandardAttention if isinstance(graph, StandardGraph) else FusedAttention
        self.attention = flavour(graph, linears, self.norms, decoder, names)
        self.mlp = (
            MLP(graph, linears, decoder)
            if decoder.mixture is None
            else Experts(graph, tensors, decoder, decoder.mixture, linears.experts)
        )

    def build(self) -> None:
        """Emit the whole decoder, from token ids to logits."""
        decoder = self.decoder
        inputs = self.attention.declare_inputs()
        residual, written = self.embedding(inputs), None
        step = self._parallel if decoder.architecture.is_parallel else self._sequential
        for layer in range(decoder.layers):
            residual, written = step(layer, residual, written, inputs)
        normed, _ = self.norms.added(decoder.names.last_norm, residual, written)
        self.head(normed)

    def embedding(self, inputs: Inputs) -> ir.Value:
        """Emit the residual stream's beginning: tokens, scaled, and learned positions."""
        names, decoder = self.decoder.names, self.decoder
        look_up = self.linears.tied_embedding if decoder.is_tied else self.linears.embedding
        rows = self._turned(names.embedding, look_up(names.embedding, inputs.token_ids))
        x = self._scaled(rows, decoder.scales.embedding)
        if names.positions is None:
            return x
        name = f"{names.positions}.weight"
        table = self.graph.weight(name, self.tensors.read(name))
        return self.graph.op("Add", x, self.graph.op("Gather", table, self._positions(inputs)))

    def head(self, x: ir.Value) -> None:
        """Emit the logits of ``x`` and the log-sum-exp of each of their rows."""
        graph, names, scales = self.graph, self.decoder.names, self.decoder.scales
        # Logits are linear in x, which is much smaller.
        x = self._turned(names.last_norm, self._scaled(x, scales.logits))
        x = graph.op("Reshape", x, graph.constant([-1, self.decoder.hidden_size], np.int64))
        if self.decoder.is_tied:
            logits = self.linears.tied_head(names.embedding, x)
        else:
            logits = self.linears.head(names.head, x)
        logits = graph.as_float32(logits)
        if scales.logits_softcap:
            cap = graph.constant(scales.logits_softcap, np.float32)
            logits = graph.op("Mul", graph.op("Tanh", graph.op("Div", logits, cap)), cap)
        self._outputs(logits)

    def _outputs(self, logits: ir.Value) -> None:
        graph = self.graph
        last = graph.constant([-1], np.int64)
        # LogSoftmax works row by row, several times faster than ReduceLogSumExp. A Log of a column
        # would round its last elements otherwise than those in whole vectors, so that a row's bits
        # would depend on the batch's size.
        likeliest = graph.op("ReduceMax", graph.op("LogSoftmax", logits, axis=-1), last, keepdims=0)
        largest = graph.op("ReduceMax", logits, last, keepdims=0)
        logsumexp = graph.op("Sub", largest, likeliest)
        graph.output(logits, self.names.logits, ir.DataType.FLOAT, ["R", self.decoder.vocab_size])
        assert self.names.logsumexp is not None
        graph.output(logsumexp, self.names.logsumexp, ir.DataType.FLOAT, ["R"])

    def _sequential(
        self, layer: int, residual: ir.Value, written: ir.Value | None, inputs: Inputs
    ) -> tuple[ir.Value, ir.Value]:
        """Emit a layer whose MLP reads what its attention has written."""
        names = self.decoder.names
        normed, residual = self._enter(layer, names.attention_norm, residual, written)
        attended = self.attention.build(layer, normed, inputs)
        attended, residual = self._wanted(layer, inputs, attended, residual)
        written = self.attention.output(layer, attended)
        written = self._leave(layer, names.attention_post_norm, written)
        normed, residual = self._enter(layer, names.mlp_norm, residual, written)
        return residual, self._leave(layer, names.mlp_post_norm, self.mlp.build(layer, normed))

    def _parallel(
        self, layer: int, residual: ir.Value, written: ir.Value | None, inputs: Inputs
    ) -> tuple[ir.Value, ir.Value]:
        """Emit a layer whose attention and MLP read the same residual."""
        names = self.decoder.names
        normed, residual = self._enter(layer, names.attention_norm, residual, written)
        attended = self.attention.build(layer, normed, inputs)
        attended, residual, normed = self._wanted(layer, inputs, attended, residual, normed)
        if names.mlp_norm is not None:
            normed, _ = self._enter(layer, names.mlp_norm, residual, None)
        written = self.attention.output(layer, attended)
        return residual, self.graph.op("Add", written, self.mlp.build(layer, normed))

    def _enter(
        self, layer: int, norm: str | None, residual: ir.Value, written: ir.Value | None
    ) -> tuple[ir.Value, ir.Value]:
        """Return what a block reads, and the residual stream with all that was written."""
        module = None if norm is None else self.decoder.module(layer, norm)
        return self.norms.added(module, residual, written)

    def _leave(self, layer: int, norm: str | None, written: ir.Value) -> ir.Value:
        """Return what a block writes to the residual stream."""
        if norm is not None:
            written = self.norms.norm(self.decoder.module(layer, norm), written)
        return self._scaled(written, self.decoder.scales.residual)

    def _wanted(
        self, layer: int, inputs: Inputs, attended: ir.Value, *others: ir.Value
    ) -> tuple[ir.Value, ...]:
        """Return the rows ``[R, 1, width]`` at the wanted positions, once nothing mixes positions.

        They stay of rank 3, as everything before the head is.
        """
        decoder = self.decoder
        if layer < decoder.layers - 1:
            return attended, *others
        return (
            self._rows(attended, decoder.heads * decoder.head_size, inputs),
            *(self._rows(other, decoder.hidden_size, inputs) for other in others),
        )

    def _rows(self, x: ir.Value, width: int, inputs: Inputs) -> ir.Value:
        flat = self.graph.op("Reshape", x, self.graph.constant([-1, 1, width], np.int64))
        return self.graph.op("Gather", flat, inputs.logit_positions, axis=0)

    def _positions(self, inputs: Inputs) -> ir.Value:
        """Return the position of each new token, int64 ``[B, S]``.

        Where they are no input, a row's new tokens are the last of its ``seqlens_k + 1``, unless it
        is padded on the right, which is allowed from an empty cache alone: there it has fewer
        tokens than are given, and the first is at 0.
        """
        if inputs.position_ids is not None:
            return inputs.position_ids
        assert inputs.seqlens_k is not None
        graph = self.graph
        zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
        count = graph.op("Shape", inputs.token_ids, start=1, end=2)
        length = graph.op("Add", graph.op("Cast", inputs.seqlens_k, to=ir.DataType.INT64), one)
        first = graph.op("Max", graph.op("Sub", length, count), zero)
        steps = graph.op("Range", zero, graph.op("Squeeze", count), one)
        return graph.op("Add", graph.op("Unsqueeze", first, graph.constant([1], np.int64)), steps)

    def _turned(self, module: str, x: ir.Value) -> ir.Value:
        """Emit the matrix that a rotation leaves behind ``module``, if any."""
        name = turn_name(module)
        if name not in self.tensors.shapes:
            return x
        return self.graph.op("MatMul", x, self.graph.weight(name, self.tensors.read(name)))

    def _scaled(self, x: ir.Value, factor: float) -> ir.Value:
        if factor == 1.0:
            return x
        return self.graph.op("Mul", x, self.graph.number(factor))
