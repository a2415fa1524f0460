"""Writes a decoder's graph and weights at the precision asked for."""

from __future__ import annotations

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
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored and multiplied."""

    precision: NativePrecision
    int4_accuracy_level: AccuracyLevel = 4

    @property
    def has_int4(self) -> bool:
        """Return whether any layer is in 4 bits."""
        return self.precision == "int4"


def write_graph(folder: Path, tensors: Tensors, decoder: Decoder, stored: Storage) -> None:
    """Write the graph and its weights into ``folder``, from a checkpoint's own tensors."""
    arranged = ArrangedTensors(tensors, decoder)
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        graph = GraphBuilder(weights)
        Blocks(graph, _linears(graph, arranged, stored), arranged, decoder).build()
    graph.save(folder / GRAPH_NAME)


def _linears(graph: GraphBuilder, tensors: Tensors, stored: Storage) -> Linears:
    if stored.precision == "fp32":
        return Float32Linears(graph, tensors)
    if stored.precision == "int8":
        return Int8Linears(graph, tensors)
    return Int4Linears(graph, tensors, stored.int4_accuracy_level)
