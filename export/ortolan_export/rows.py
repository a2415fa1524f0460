"""The graph that copies a row of the KV cache where Python cannot reach: in a GPU's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.operators import StandardGraph
from ortolan_export.source import Element
from ortolan_export.weightfile import WeightFile
from ortolan_runtime.bundle import RowsGraphNames

NAMES = RowsGraphNames()


def write_rows_graph(path: Path, weights: WeightFile, decoder: Decoder, element: Element) -> None:
    """Write a graph that puts the first tokens of one row into another, whose rest stays.

    A row is ``[1, kv_heads, length, head_size]``; nothing goes into ``weights``.
    """
    graph = StandardGraph(weights, element)
    shape: list[int | str] = [1, decoder.kv_heads, "length", decoder.head_size]
    source = graph.input(NAMES.source, graph.element_type, shape)
    target = graph.input(NAMES.target, graph.element_type, shape)
    count = graph.input(NAMES.count, ir.DataType.INT64, [1])
    first, axis = graph.constant([0], np.int64), graph.constant([2], np.int64)
    tokens = graph.op("Slice", source, first, count, axis)
    result = graph.op("TensorScatter", target, tokens, axis=-2, mode="linear")
    graph.output(result, NAMES.result, graph.element_type, shape)
    graph.save(path)
