"""Writes a decoder's graphs and weights at the precision asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from ortolan_export.architectures.arrangement import ArrangedTensors
from ortolan_export.architectures.family import Decoder
from ortolan_export.balance import Activity, BalancedTensors
from ortolan_export.blocks import Blocks
from ortolan_export.calibration import measure_activity
from ortolan_export.int4 import Int4Linears
from ortolan_export.kvscales import measure_scales, quantise_cache
from ortolan_export.operators import DecoderGraph, FusedGraph, StandardGraph
from ortolan_export.progress import Report
from ortolan_export.quantize import FloatLinears, Int8Linears, Linears
from ortolan_export.rotation import Prepared, flatten_activations
from ortolan_export.rows import write_rows_graph
from ortolan_export.source import (
    INT4_PRECISIONS,
    AccuracyLevel,
    BlockSize,
    Element,
    NativePrecision,
    Tensors,
)
from ortolan_export.weightfile import WeightFile
from ortolan_runtime.bundle import (
    GRAPH_NAME,
    PREFILL_GRAPH_NAME,
    ROWS_GRAPH_NAME,
    WEIGHTS_NAME,
    Device,
    KVDtype,
    Manifest,
)

MakeLinears = Callable[[DecoderGraph, Tensors], Linears]


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored and multiplied, and by the operators of which device."""

    precision: NativePrecision
    target: Device = "cpu"
    int4_accuracy_level: AccuracyLevel = 4
    int4_block_size: BlockSize = 32
    has_int8_cache: bool = False

    @property
    def element(self) -> Element:
        """Return the type of activations, of the KV cache and of weights in floating point."""
        return np.float16 if self.precision == "fp16" or self.target == "cuda" else np.float32

    @property
    def kv_dtype(self) -> KVDtype:
        """Return the type of the KV cache."""
        if self.has_int8_cache:
            return "int8"
        return "float16" if self.element is np.float16 else "float32"

    @property
    def has_int4(self) -> bool:
        """Return whether any layer is in 4 bits."""
        return self.precision in INT4_PRECISIONS

    @property
    def has_int8(self) -> bool:
        """Return whether the layers of any graph are in int8."""
        return self.precision in ("int8", "int8+int4")

    @property
    def prefill_graph(self) -> str | None:
        """Return the name of the graph that computes prompts alone, None where one does all."""
        return PREFILL_GRAPH_NAME if self.precision == "int8+int4" else None

    @property
    def rows_graph(self) -> str | None:
        """Return the name of the graph that copies rows of a KV cache, None on the CPU."""
        return None if self.target == "cpu" else ROWS_GRAPH_NAME


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with all that the int8 precisions ask of it.

    ``open`` gives the checkpoint's own tensors, reporting under the name of a stage; ``manifest``
    tells the size of the KV cache and the names of inputs and outputs; ``calibration`` are the
    token ids of a text of many kinds.
    """

    open: Callable[[str], Tensors]
    decoder: Decoder
    manifest: Manifest
    calibration: Sequence[int]
    report: Report


def write_graphs(folder: Path, source: Source, stored: Storage) -> None:
    """Write the graphs and their weights into ``folder``.

    int8+int4 makes two graphs over one KV cache: model.onnx decodes by 4-bit layers, prefill.onnx
    computes prompts by int8 layers. Embedding, head and rotary tables are stored once.
    """
    activity = _activity(folder, source, stored)
    arranged = ArrangedTensors(source.open("writing weights"), source.decoder)
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        if stored.has_int4:
            make = partial(_int4_linears, stored)
            _write(folder / GRAPH_NAME, weights, source, stored, arranged, make)
        if stored.has_int8:
            name = stored.prefill_graph or GRAPH_NAME
            prepared = _flattened(arranged, source, stored)
            balanced = BalancedTensors(prepared.tensors, source.decoder, activity)
            linears = partial(Int8Linears, flat=prepared.flat)
            _write(folder / name, weights, source, stored, balanced, linears)
        if not (stored.has_int4 or stored.has_int8):
            _write(folder / GRAPH_NAME, weights, source, stored, arranged, FloatLinears)
        if stored.rows_graph is not None:
            path = folder / stored.rows_graph
            write_rows_graph(path, weights, source.decoder, stored.element)
    if stored.has_int8_cache:
        _quantise_caches(folder, source)


def _quantise_caches(folder: Path, source: Source) -> None:
    """Give the graphs in ``folder`` a KV cache in int8 in the place of theirs in float32."""
    scales = measure_scales(
        folder,
        source.decoder,
        manifest=source.manifest,
        token_ids=source.calibration,
        report=source.report,
    )
    for name in (GRAPH_NAME, source.manifest.prefill_graph):
        if name is not None:
            quantise_cache(folder / name, scales)


def _int4_linears(stored: Storage, graph: DecoderGraph, tensors: Tensors) -> Linears:
    """Return 4-bit layers with embedding and head in int8, or, where that has no kernel, fp16."""
    outer = None if stored.target == "cpu" else FloatLinears(graph, tensors)
    return Int4Linears(
        graph,
        tensors,
        outer=outer,
        accuracy_level=stored.int4_accuracy_level,
        block_size=stored.int4_block_size,
    )


def _flattened(tensors: Tensors, source: Source, stored: Storage) -> Prepared:
    is_shared = stored.prefill_graph is not None
    return flatten_activations(tensors, source.decoder, is_shared=is_shared)


def _activity(folder: Path, source: Source, stored: Storage) -> Activity:
    """Return the activities to balance by, measured on a graph that is written for nothing else."""
    if not stored.has_int8:
        return {}
    decoder = source.decoder
    arranged = ArrangedTensors(source.open("preparing"), decoder)
    place = folder / "calibration"
    try:
        activity = measure_activity(
            place,
            _flattened(arranged, source, stored),
            decoder,
            manifest=msgspec.structs.replace(
                source.manifest, prefill_graph=None, kv_dtype="float32"
            ),
            token_ids=source.calibration,
            report=source.report,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if stored.prefill_graph is None:
        return activity
    values = {decoder.module(i, decoder.names.attention_output) for i in range(decoder.layers)}
    return {module: measured for module, measured in activity.items() if module not in values}


def _write(
    path: Path,
    weights: WeightFile,
    source: Source,
    stored: Storage,
    tensors: Tensors,
    make: MakeLinears,
) -> None:
    flavour = StandardGraph if stored.target == "tensorrt" else FusedGraph
    graph = flavour(weights, stored.element)
    linears = make(graph, tensors)
    Blocks(graph, linears, tensors, source.decoder, source.manifest.graph).build()
    graph.save(path)
