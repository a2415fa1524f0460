"""Writes a decoder's graphs and weights at the precision asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from ortolan_export.architectures.arrangement import ArrangedTensors
from ortolan_export.architectures.family import Decoder
from ortolan_export.blocks import Blocks
from ortolan_export.graph import GraphBuilder
from ortolan_export.int4 import Int4Linears
from ortolan_export.quantize import Float32Linears, Int8Linears, Linears
from ortolan_export.source import AccuracyLevel, NativePrecision, Tensors
from ortolan_export.weightfile import WeightFile
from ortolan_runtime.bundle import GRAPH_NAME, PREFILL_GRAPH_NAME, WEIGHTS_NAME

MakeLinears = Callable[[GraphBuilder, Tensors], Linears]


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored and multiplied."""

    precision: NativePrecision
    int4_accuracy_level: AccuracyLevel = 4

    @property
    def has_int4(self) -> bool:
        """Return whether any layer is in 4 bits."""
        return self.precision in ("int4", "int8+int4")

    @property
    def prefill_graph(self) -> str | None:
        """Return the name of the graph that computes prompts alone, None where one does all."""
        return PREFILL_GRAPH_NAME if self.precision == "int8+int4" else None


def write_graphs(folder: Path, tensors: Tensors, decoder: Decoder, stored: Storage) -> None:
    """Write the graphs and their weights into ``folder``, from a checkpoint's own tensors.

    int8+int4 makes two graphs over one KV cache: model.onnx decodes by 4-bit layers, prefill.onnx
    computes prompts by int8 layers. Embedding, head, norms and rotary tables are stored once.
    """
    arranged = ArrangedTensors(tensors, decoder)
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        for name, make in _graphs(stored):
            graph = GraphBuilder(weights)
            Blocks(graph, make(graph, arranged), arranged, decoder).build()
            graph.save(folder / name)


def _graphs(stored: Storage) -> Iterator[tuple[str, MakeLinears]]:
    """Give the name of each graph, and what its linear layers are made by."""
    if stored.precision == "fp32":
        yield GRAPH_NAME, Float32Linears
    if stored.has_int4:
        yield GRAPH_NAME, partial(Int4Linears, accuracy_level=stored.int4_accuracy_level)
    if stored.precision == "int8":
        yield GRAPH_NAME, Int8Linears
    if stored.prefill_graph is not None:
        yield stored.prefill_graph, Int8Linears
