"""Builds one layer by itself, so that its arithmetic can be checked number by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import onnx_ir as ir
import onnxruntime

from ortolan_export.operators import FusedGraph
from ortolan_export.quantize import Linears
from ortolan_export.source import SourceRows
from ortolan_export.weightfile import WeightFile

MakeLinears = Callable[[FusedGraph, Any], Linears]
Layer = Callable[[Any], Any]


class ArrayTensors:
    """Tensors that are arrays; those of ``kind`` stand for a file of that GGUF type."""

    def __init__(self, arrays: Mapping[str, Any], kind: str | None = None) -> None:
        self._arrays = dict(arrays)
        self._kind = kind
        self.shapes = {name: array.shape for name, array in arrays.items()}
        if kind is not None:
            for name in arrays:
                self._arrays[name] = gguf.quants.dequantize(self._raw(name), self._type)

    @property
    def _type(self) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[self._kind or "F32"]

    def _raw(self, name: str) -> Any:
        return gguf.quants.quantize(self._arrays[name], self._type)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Any:
        return self._arrays[name][start:stop]

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        return None if self._kind is None else SourceRows(self._kind, self._raw(name)[start:stop])


def linear_layer(folder: Path, make: MakeLinears, tensors: Any, modules: list[str]) -> Layer:
    """Return a function that runs ``modules``, which share an input, as one linear layer.

    It takes and gives float32 ``[1, rows, width]``.
    """
    columns = tensors.shapes[f"{modules[0]}.weight"][1]
    with WeightFile(folder / "layer.onnx.data") as weights:
        graph = FusedGraph(weights)
        x = graph.input("x", ir.DataType.FLOAT, ["B", "S", columns])
        linears = make(graph, tensors)
        product = linears.linear("layer", x, modules)
        rows = sum(tensors.shapes[f"{module}.weight"][0] for module in modules)
        graph.output(product, "y", ir.DataType.FLOAT, ["B", "S", rows])
    graph.save(folder / "layer.onnx")
    session = onnxruntime.InferenceSession(folder / "layer.onnx")
    return lambda values: session.run(None, {"x": values})[0]


def tied_layers(folder: Path, make: MakeLinears, table: Any) -> Layer:
    """Return a function that gives the rows and the logits of token ids, int64 ``[N]``."""
    vocab_size, width = table.shape
    with WeightFile(folder / "tied.onnx.data") as weights:
        graph = FusedGraph(weights)
        token_ids = graph.input("ids", ir.DataType.INT64, ["N"])
        linears = make(graph, ArrayTensors({"table.weight": table}))
        rows = linears.tied_embedding("table", token_ids)
        logits = linears.tied_head("table", rows)
        graph.output(rows, "rows", ir.DataType.FLOAT, ["N", width])
        graph.output(logits, "logits", ir.DataType.FLOAT, ["N", vocab_size])
    graph.save(folder / "tied.onnx")
    session = onnxruntime.InferenceSession(folder / "tied.onnx")
    return lambda ids: session.run(None, {"ids": ids})
