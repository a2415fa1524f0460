"""MLPs made of experts as ONNX nodes: a router, and one operator for all experts of a layer.

The operator multiplies the rows that an expert gets together, and one row alone rounds otherwise
than that row among others; so every row is given twice, and no expert ever gets one alone. Its cost
is small where weights are read for few rows, and it keeps a row's bits the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder, Mixture
from ortolan_export.fourbits import nearest_blocks
from ortolan_export.graph import MICROSOFT, Attribute
from ortolan_export.operators import DecoderGraph
from ortolan_export.quantize import ExpertWeights, quantize_rows
from ortolan_export.source import BLOCK_SIZES, Array, BlockSize, Float32, Tensors

_WEIGHT_LIMIT = 127  # the operator turns weights back into floats, where nothing saturates
_ZERO = 128


@dataclass(slots=True)
class Experts:
    """Emits the MLPs of a decoder whose layers are mixtures of experts."""

    graph: DecoderGraph
    tensors: Tensors
    decoder: Decoder
    mixture: Mixture
    stored: ExpertWeights

    @property
    def _bits(self) -> int:
        """Return the bits of a weight: 8 where 4 are asked for and rows are no whole blocks."""
        return 8 if self.stored.bits == 4 and self._block_size is None else self.stored.bits

    @property
    def _block_size(self) -> BlockSize | None:
        """Return the largest size of 4-bit blocks, up to the one asked for, that divides all rows.

        The operator takes whole blocks alone; None stands for 4 bits that are not asked for, too.
        """
        if self.stored.bits != 4:
            return None
        widths = (self.decoder.hidden_size, self.mixture.inner_size)
        sizes = (size for size in BLOCK_SIZES if size <= self.stored.block_size)
        whole = [size for size in sizes if not any(width % size for width in widths)]
        return max(whole, default=None)

    def build(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit what one layer's experts write for their input ``x``."""
        graph = self.graph
        twice = graph.op("Concat", x, x, axis=0)
        inputs = [twice, self._router(layer, twice), *self._weights(layer)]
        operator = "MoE" if self._bits == 32 else "QMoE"
        written = graph.op(operator, *inputs, domain=MICROSOFT, **self._attributes())
        return graph.op_with(2, "Split", written, axis=0, num_outputs=2)[0]

    def _router(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit the logits of all experts, ``[rows, experts]``, always computed in float32.

        The experts chosen decide more than a rounding of their weights does.
        """
        graph, names = self.graph, self.decoder.names
        assert names.router is not None
        module = self.decoder.module(layer, names.router)
        rows = graph.op("Reshape", x, graph.constant([-1, self.decoder.hidden_size], np.int64))
        weight = graph.tensor(f"{module}.weight", self.tensors.read(f"{module}.weight"))
        logits = graph.product(graph.as_float32(rows), weight)
        if f"{module}.bias" in self.tensors.shapes:
            bias = graph.tensor(f"{module}.bias", self.tensors.read(f"{module}.bias"))
            logits = graph.op("Add", logits, bias)
        return graph.from_float32(logits)

    def _attributes(self) -> dict[str, Attribute]:
        mixture = self.mixture
        attributes: dict[str, Attribute] = {
            "k": mixture.per_token,
            "activation_type": "swiglu",
            "swiglu_fusion": 1,  # rows of gate and up take turns, the only order on the CPU
            "activation_alpha": mixture.alpha,
            "activation_beta": mixture.beta,
            "normalize_routing_weights": int(mixture.is_normalised),
        }
        if mixture.limit is not None:
            attributes["swiglu_limit"] = mixture.limit
        if self._bits != 32:
            attributes["expert_weight_bits"] = self._bits
        if self._block_size is not None:
            attributes["block_size"] = self._block_size
        return attributes

    def _weights(self, layer: int) -> Iterator[ir.Value | None]:
        """Give the operator's weights, scales and biases, in its order."""
        hidden, inner = self.decoder.hidden_size, self.mixture.inner_size
        prefix = self.decoder.module(layer, "experts")
        yield from self._stored(f"{prefix}.gate_up", self._gate_up(layer), (2 * inner, hidden))
        yield self._bias(layer, self.decoder.names.stacked_gate_up)
        yield from self._stored(f"{prefix}.down", self._down(layer), (hidden, inner))
        yield self._bias(layer, self.decoder.names.stacked_down)

    def _stored(
        self, name: str, matrices: Iterator[Float32], shape: tuple[int, int]
    ) -> Iterator[ir.Value]:
        """Give the stored matrices of all experts, and their scales where they have any."""
        rows, columns = shape
        if self._bits == 32:
            whole = (self.mixture.experts, rows, columns)
            elements = (self.graph.as_elements(name, matrix) for matrix in matrices)
            yield self.graph.streamed(f"{name}.weight", self.graph.element, whole, elements)
            return
        scales: list[Float32] = []

        def parts() -> Iterator[Array]:
            for matrix in matrices:
                codes, of_matrix = self._codes(matrix)
                scales.append(of_matrix)
                yield codes

        whole = (self.mixture.experts, rows, columns * self._bits // 8)
        yield self.graph.streamed(f"{name}.weight", np.uint8, whole, parts())
        yield self.graph.tensor(f"{name}.scale", np.stack(scales))

    def _codes(self, matrix: Float32) -> tuple[Array, Float32]:
        """Return a matrix as codes, uint8, and the scales of its rows or of its blocks."""
        if self._block_size is not None:
            blocks = nearest_blocks(matrix, self._block_size)
            return blocks.codes.reshape(len(matrix), -1), blocks.scales
        quantised, scales = quantize_rows(matrix, _WEIGHT_LIMIT)
        return (quantised.astype(np.int16) + _ZERO).astype(np.uint8), scales

    def _gate_up(self, layer: int) -> Iterator[Float32]:
        """Give each expert's gate and up, row by row in turns, ``[2 inner, hidden]``."""
        names = self.decoder.names
        if names.stacked_gate_up is not None:  # where they already take turns
            yield from self._turned(layer, names.stacked_gate_up)
            return
        for expert in range(self.mixture.experts):
            gate, up = (
                self._of(layer, name, expert) for name in (names.expert_gate, names.expert_up)
            )
            yield np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])

    def _down(self, layer: int) -> Iterator[Float32]:
        names = self.decoder.names
        if names.stacked_down is not None:
            yield from self._turned(layer, names.stacked_down)
            return
        for expert in range(self.mixture.experts):
            yield self._of(layer, names.expert_down, expert)

    def _of(self, layer: int, name: str, expert: int) -> Float32:
        return self.tensors.read(f"{self.decoder.module(layer, name.format(expert=expert))}.weight")

    def _turned(self, layer: int, name: str) -> Iterator[Float32]:
        """Give each expert's ``[out, in]`` of a stacked tensor ``[experts, in, out]``."""
        for expert in range(self.mixture.experts):
            (matrix,) = self.tensors.read(self.decoder.module(layer, name), expert, expert + 1)
            yield np.ascontiguousarray(matrix.T)

    def _bias(self, layer: int, name: str | None) -> ir.Value | None:
        if name is None:
            return None
        whole = f"{self.decoder.module(layer, name)}_bias"
        return self.graph.weight(whole, self.tensors.read(whole))
