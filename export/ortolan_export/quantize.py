"""Decides what a linear layer, the embedding and the head become at each precision.

int8: weights carry one scale per output channel and activations one per row, found at run time.
The product is a sum of integers, which does not depend on order, so a row's result has the same
bits in any batch. On CPUs without VNNI the u8 x s8 kernel adds pairs of products in 16 bits, which
the ranges of both must leave room for: ``Limits``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan_export.graph import MICROSOFT
from ortolan_export.operators import DecoderGraph
from ortolan_export.source import Array, BlockSize, Float32, Tensors, row_slices

_LOOKUP_LIMIT = 127  # a table that is only looked up meets no integer product
_SMALLEST_SCALE = 1e-30  # a row of zeros, or nearly, would divide by zero
_BLOCK_ELEMENTS = 1 << 16  # how much is quantised at once: what a CPU's cache holds

Int8 = NDArray[np.int8]


class Limits(msgspec.Struct, frozen=True):
    """The largest whole numbers of activations and weights; both go as far down as up.

    Activations are stored with their limit added, so that a pair of products is at most
    ``2 * (2 * activation) * weight``, which must fit into 16 bits.
    """

    activation: int
    weight: int

    def __post_init__(self) -> None:
        assert 4 * self.activation * self.weight < 1 << 15


# Activations with outliers need the finer steps; where they are as flat as weights, both the same.
UNEVEN = Limits(127, 64)
FLAT = Limits(90, 91)


class ExpertWeights(msgspec.Struct, frozen=True):
    """In how many bits the weights of experts are kept; those of 4 in blocks of ``block_size``."""

    bits: Literal[4, 8, 32]
    block_size: BlockSize = 32


class Linears(Protocol):
    """How weights are stored and multiplied at one precision."""

    @property
    def experts(self) -> ExpertWeights:
        """Return how the weights of experts are kept."""

    def linear(self, name: str, x: ir.Value, modules: Sequence[str]) -> ir.Value:
        """Return the outputs of ``modules`` for ``x``, packed side by side."""

    def embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of a table that ``token_ids`` name."""

    def tied_embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of a table that ``tied_head`` will use again."""

    def head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits of ``x`` by a table of the head's own."""

    def tied_head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits of ``x`` by the table that ``tied_embedding`` has stored."""


class FloatLinears:
    """Weights as they are, in the graph's element type and the checkpoint's own orientation
    ``[out, in]``."""

    experts = ExpertWeights(32)

    def __init__(self, graph: DecoderGraph, tensors: Tensors) -> None:
        self._graph = graph
        self._tensors = tensors
        self._tables: dict[str, ir.Value] = {}

    def linear(self, name: str, x: ir.Value, modules: Sequence[str]) -> ir.Value:
        """Return ``x @ weight.T + bias`` for the packed weights."""
        rows, columns = _packed_shape(self._tensors, modules)
        parts = (part for module in modules for part in self._parts(module))
        element = self._graph.element
        weight = self._graph.streamed(f"{name}.weight", element, (rows, columns), parts)
        product = self._graph.product(x, weight)
        return add_bias(self._graph, self._tensors, name, product, modules)

    def embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of the table."""
        shape = self._tensors.shapes[f"{module}.weight"]
        element, parts = self._graph.element, self._parts(module)
        table = self._graph.streamed(f"{module}.weight", element, shape, parts)
        self._tables[module] = table
        return self._graph.op("Gather", table, token_ids, axis=0)

    def tied_embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of the table."""
        return self.embedding(module, token_ids)

    def head(self, module: str, x: ir.Value) -> ir.Value:
        """Return ``x @ weight.T + bias``."""
        return self.linear(module, x, [module])

    def tied_head(self, module: str, x: ir.Value) -> ir.Value:
        """Return ``x @ table.T``."""
        return self._graph.product(x, self._tables[module])

    def _parts(self, module: str) -> Iterator[Array]:
        for part in _row_slices(self._tensors, module):
            yield self._graph.as_elements(f"{module}.weight", part)


class Int8Linears:
    """Weights by output channel and activations by row, in 16 bits together.

    ``flat`` are the modules whose inputs have no outliers.
    """

    experts = ExpertWeights(8)

    def __init__(
        self, graph: DecoderGraph, tensors: Tensors, flat: Collection[str] = frozenset()
    ) -> None:
        self._graph = graph
        self._tensors = tensors
        self._flat = flat
        self._tables: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._quantised: dict[tuple[str | None, int], tuple[ir.Value, ir.Value]] = {}

    def linear(self, name: str, x: ir.Value, modules: Sequence[str]) -> ir.Value:
        """Return the rescaled integer product, with the bias added after."""
        limits = self._limits(modules[0])
        rows, columns = _packed_shape(self._tensors, modules)
        weight = np.empty((columns, rows), np.int8)
        scales = np.empty(rows, np.float32)
        start = 0
        for part in (part for module in modules for part in _row_slices(self._tensors, module)):
            stop = start + len(part)
            quantised, scales[start:stop] = quantize_rows(part, limits.weight)
            weight[:, start:stop] = quantised.T
            start = stop
        stored = self._graph.tensor(f"{name}.weight", weight)
        scale = self._graph.tensor(f"{name}.scale", scales)
        product = self._product(x, limits.activation, stored, scale)
        return add_bias(self._graph, self._tensors, name, product, modules)

    def embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of a table in 8 bits, each times its scale."""
        return self._lookup(self._table(module, _LOOKUP_LIMIT), token_ids)

    def tied_embedding(self, module: str, token_ids: ir.Value) -> ir.Value:
        """Return the rows of a table in the range that the head's product needs."""
        self._tables[module] = self._table(module, self._limits(module).weight)
        return self._lookup(self._tables[module], token_ids)

    def head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits by a layer like any other."""
        return self.linear(module, x, [module])

    def tied_head(self, module: str, x: ir.Value) -> ir.Value:
        """Return the logits by the embedding's own table.

        The table lies row by token, for the lookup. ONNX Runtime turns it once, while it loads, and
        packs the result for the product; the table itself stays mapped and is read where looked up.
        """
        table, scales = self._tables[module]
        turned = self._graph.op("Transpose", table, perm=[1, 0])
        return self._product(x, self._limits(module).activation, turned, scales)

    def _lookup(self, stored: tuple[ir.Value, ir.Value], token_ids: ir.Value) -> ir.Value:
        graph = self._graph
        table, scales = stored
        rows = graph.op("Cast", graph.op("Gather", table, token_ids, axis=0), to=ir.DataType.FLOAT)
        row_scales = graph.op("Gather", scales, token_ids, axis=0)
        row_scales = graph.op("Unsqueeze", row_scales, graph.constant([-1], np.int64))
        return graph.op("Mul", rows, row_scales)

    def _table(self, module: str, limit: int) -> tuple[ir.Value, ir.Value]:
        shape = self._tensors.shapes[f"{module}.weight"]
        scales: list[Float32] = []

        def parts() -> Iterator[Int8]:
            for part in _row_slices(self._tensors, module):
                quantised, part_scales = quantize_rows(part, limit)
                scales.append(part_scales)
                yield quantised

        table = self._graph.streamed(f"{module}.weight", np.int8, shape, parts())
        scale = self._graph.tensor(f"{module}.scale", np.concatenate(scales))
        return table, scale

    def _limits(self, module: str) -> Limits:
        return FLAT if module in self._flat else UNEVEN

    def _product(
        self, x: ir.Value, activation_limit: int, weight: ir.Value, scales: ir.Value
    ) -> ir.Value:
        graph = self._graph
        values, row_scale = self._quantise(x, activation_limit)
        product = graph.op(
            "MatMulIntegerToFloat",
            values,
            weight,
            graph.constant(1, np.float32),
            scales,
            graph.constant(activation_limit, np.uint8),
            domain=MICROSOFT,
        )
        return graph.op("Mul", product, row_scale)

    def _quantise(self, x: ir.Value, limit: int) -> tuple[ir.Value, ir.Value]:
        """Quantise each row of ``x`` by its largest magnitude; return values and scales."""
        if (x.name, limit) not in self._quantised:
            graph = self._graph
            last = graph.constant([-1], np.int64)
            largest = graph.op("ReduceMax", graph.op("Abs", x), last, keepdims=1)
            scale = graph.op("Mul", largest, graph.constant(1 / limit, np.float32))
            scale = graph.op("Max", scale, graph.constant(_SMALLEST_SCALE, np.float32))
            one, zero = graph.constant(1, np.float32), graph.constant(limit, np.uint8)
            # The scale differs by row, which QuantizeLinear does not know: so divide first.
            values = graph.op("QuantizeLinear", graph.op("Div", x, scale), one, zero)
            self._quantised[x.name, limit] = values, scale
        return self._quantised[x.name, limit]


def quantize_rows(matrix: Float32, limit: int) -> tuple[Int8, Float32]:
    """Return ``matrix`` as whole numbers within ±``limit`` and the scale of each row.

    ``matrix`` is float32 ``[rows, columns]``; the result int8 ``[rows, columns]`` and float32
    ``[rows]``, whose product approximates it.
    """
    quantised = np.empty(matrix.shape, np.int8)
    scales = np.empty(len(matrix), np.float32)
    step = max(1, _BLOCK_ELEMENTS // matrix.shape[1])
    for start in range(0, len(matrix), step):
        rows = matrix[start : start + step]
        largest = np.abs(rows).max(axis=1)
        scale = np.where(largest > _SMALLEST_SCALE, largest / np.float32(limit), np.float32(1))
        scaled = rows / scale[:, None]
        np.rint(scaled, out=scaled)
        quantised[start : start + step] = np.clip(scaled, -limit, limit, out=scaled)
        scales[start : start + step] = scale
    return quantised, scales


def _row_slices(tensors: Tensors, module: str) -> Iterator[Float32]:
    """Give a matrix in slices of rows small enough to be held."""
    for start, stop in row_slices(tensors, module):
        yield tensors.read(f"{module}.weight", start, stop)


def _packed_shape(tensors: Tensors, modules: Sequence[str]) -> tuple[int, int]:
    shapes = [tensors.shapes[f"{module}.weight"] for module in modules]
    return sum(shape[0] for shape in shapes), shapes[0][1]


def add_bias(
    graph: DecoderGraph,
    tensors: Tensors,
    name: str,
    product: ir.Value,
    modules: Sequence[str],
) -> ir.Value:
    """Add the packed biases; a module without one among modules with one counts as zeros."""
    if not any(f"{module}.bias" in tensors.shapes for module in modules):
        return product
    biases = [
        tensors.read(f"{module}.bias")
        if f"{module}.bias" in tensors.shapes
        else np.zeros(tensors.shapes[f"{module}.weight"][0], np.float32)
        for module in modules
    ]
    return graph.op("Add", product, graph.weight(f"{name}.bias", np.concatenate(biases)))
