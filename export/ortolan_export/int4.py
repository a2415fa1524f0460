"""Weights in 4 bits by blocks, on the CPU with activations in 8 bits by the same blocks.

Embedding and head stay int8, or fp16 on CUDA, which has no kernel for our int8: they decide the
tokens, and a small model's are a third of its weight.
The operator's kernel for one row rounds otherwise than the one for many, which the manifest tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortolan_export.fourbits import (
    OWN_BLOCK_SIZE,
    FourBits,
    nearest_blocks,
    packed_zero_points,
    read_four_bits,
    side_by_side,
)
from ortolan_export.graph import MICROSOFT
from ortolan_export.operators import DecoderGraph
from ortolan_export.quantize import ExpertWeights, Int8Linears, Linears, add_bias
from ortolan_export.source import BlockSize, Tensors


class Int4Linears:
    """4-bit layers between an embedding and a head that are ``outer``'s, by default in int8."""

    def __init__(
        self,
        graph: DecoderGraph,
        tensors: Tensors,
        *,
        outer: Linears | None = None,
        accuracy_level: int = 4,
        block_size: BlockSize = OWN_BLOCK_SIZE,
    ) -> None:
        """``accuracy_level`` 4 multiplies whole numbers, twice as fast as the float32 of 0."""
        self.experts = ExpertWeights(4, block_size)
        self._graph = graph
        self._tensors = tensors
        self._accuracy_level = accuracy_level
        self._block_size = block_size
        self._outer = outer or Int8Linears(graph, tensors)
        self._with_sums: dict[str | None, ir.Value] = {}

    def linear(self, name: str, x: ir.Value, modules: Sequence[str]) -> ir.Value:
        """Return the product with the packed weights, with the bias added after."""
        tensors, block_size = self._tensors, self._block_size
        weight = side_by_side([read_four_bits(tensors, module, block_size) for module in modules])
        columns = self._tensors.shapes[f"{modules[0]}.weight"][1]
        if weight.has_rests:
            x, weight = self._beside_sums(x, columns), _beside_rests(weight)
            columns += columns // block_size
        product = self._product(name, x, weight, columns)
        return add_bias(self._graph, self._tensors, name, product, modules)

    def embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of the outer table."""
        return self._outer.embedding(module, token_ids)

    def tied_embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of the outer table that is the head's too."""
        return self._outer.tied_embedding(module, token_ids)

    def head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits by the outer head."""
        return self._outer.head(module, x)

    def tied_head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits by the embedding's own table."""
        return self._outer.tied_head(module, x)

    def _product(self, name: str, x: ir.Value, weight: FourBits, columns: int) -> ir.Value:
        graph = self._graph
        zero_points = None
        if not weight.is_symmetric:
            packed = packed_zero_points(weight.zero_points)
            zero_points = graph.tensor(f"{name}.zero_points", packed)
        return graph.op(
            "MatMulNBits",
            x,
            graph.tensor(f"{name}.codes", weight.codes),
            graph.weight(f"{name}.scales", weight.scales),
            zero_points,
            domain=MICROSOFT,
            K=columns,
            N=len(weight.scales),
            bits=4,
            block_size=weight.block_size,
            accuracy_level=self._accuracy_level,
        )

    def _beside_sums(self, x: ir.Value, columns: int) -> ir.Value:
        """Return ``x`` with the sums of its blocks as further columns."""
        if x.name not in self._with_sums:
            graph, size = self._graph, self._block_size
            shape = graph.constant([0, 0, columns // size, size], np.int64)
            apart = graph.op("Reshape", x, shape)
            sums = graph.op("ReduceSum", apart, graph.constant([-1], np.int64), keepdims=0)
            self._with_sums[x.name] = graph.op("Concat", x, sums, axis=-1)
        return self._with_sums[x.name]


def _beside_rests(weight: FourBits) -> FourBits:
    """Return the weights with the rests as further columns, which meet the sums of the blocks.

    Rests are at most half a step, so that 4 bits of them are as good as 9 bits of the whole.
    """
    rests = nearest_blocks(weight.rests, weight.block_size)
    return FourBits(
        codes=np.concatenate([weight.codes, rests.codes], axis=1),
        scales=np.concatenate([weight.scales, rests.scales], axis=1),
        zero_points=np.concatenate([weight.zero_points, rests.zero_points], axis=1),
        rests=np.zeros_like(weight.rests),
    )
