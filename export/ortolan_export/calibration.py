"""Measures how active the channels between two layers are, on a text of many kinds.

It runs on the int8 graph before ranges are shared: float32 would take four times the memory, and a
channel's root mean square needs no precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan_export.architectures.family import Decoder
from ortolan_export.balance import Activity, watched_modules
from ortolan_export.blocks import Blocks
from ortolan_export.errors import VerificationError
from ortolan_export.operators import DecoderGraph, FusedGraph
from ortolan_export.progress import Report
from ortolan_export.quantize import Int8Linears
from ortolan_export.rotation import Prepared
from ortolan_export.verify import GraphRunner
from ortolan_export.weightfile import WeightFile
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME, Manifest

_LIMIT = 512  # tokens; more change the activities by less than a step of the scales
_CHUNK = 128


def measure_activity(
    folder: Path,
    prepared: Prepared,
    decoder: Decoder,
    *,
    manifest: Manifest,
    token_ids: Sequence[int],
    report: Report,
) -> Activity:
    """Return the root mean square of each input of ``watched_modules``, float32 ``[in]``.

    ``folder`` is made for the graph, which stays there. ``manifest`` tells the size of the KV
    cache and the names of inputs and outputs. A text of less than 2 tokens tells nothing.
    ``report`` is told (stage, tokens done, tokens in all). Raises VerificationError for activations
    that are no numbers.
    """
    folder.mkdir()
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        graph = FusedGraph(weights)
        linears = _WatchingLinears(graph, prepared, watched_modules(decoder))
        Blocks(graph, linears, prepared.tensors, decoder, manifest.graph).build()
        graph.save(folder / GRAPH_NAME)
    runner = GraphRunner(folder, manifest, rows=1, length=_CHUNK)
    chunks = list(chunks_of(token_ids[:_LIMIT], min(_CHUNK, decoder.context_length)))
    if not chunks:
        return {}
    done, total = 0, sum(len(chunk) for chunk in chunks)
    powers = dict.fromkeys(linears.outputs, np.zeros(1, np.float64))
    for chunk in chunks:
        report("measuring activations", done, total)
        seen = runner.observe([chunk], [0], range(len(chunk)), list(linears.outputs.values()))
        for module, squares in zip(linears.outputs, seen, strict=True):
            powers[module] = powers[module] + squares.astype(np.float64) * (len(chunk) / total)
        done += len(chunk)
    report("measuring activations", total, total)
    return {module: _root(module, power) for module, power in powers.items()}


class _WatchingLinears(Int8Linears):
    """int8 layers that also give the mean square of each input of the modules watched."""

    def __init__(self, graph: DecoderGraph, prepared: Prepared, modules: Sequence[str]) -> None:
        super().__init__(graph, prepared.tensors, prepared.flat)
        self._modules = modules
        self.outputs: dict[str, str] = {}

    def linear(self, name: str, x: ir.Value, modules: Sequence[str]) -> ir.Value:
        """Return the outputs of ``modules``, and declare one for their inputs' squares."""
        if modules[0] in self._modules:
            self._watch(modules[0], x)
        return super().linear(name, x, modules)

    def _watch(self, module: str, x: ir.Value) -> None:
        axes = self._graph.constant([0, 1], np.int64)
        squares = self._graph.op("ReduceMean", self._graph.op("Mul", x, x), axes, keepdims=0)
        width = self._tensors.shapes[f"{module}.weight"][1]
        self.outputs[module] = f"{module}.squares"
        self._graph.output(squares, self.outputs[module], ir.DataType.FLOAT, [width])


def chunks_of(token_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Give pieces of ``size`` tokens; one of a single token would be decoding, and is left out."""
    for start in range(0, len(token_ids), size):
        chunk = token_ids[start : start + size]
        if len(chunk) > 1:
            yield chunk


def _root(module: str, power: NDArray[np.float64]) -> NDArray[np.float32]:
    if not np.isfinite(power).all():
        raise VerificationError(
            f"the inputs of {module} are no numbers; "
            "the checkpoint's weights overflow float32 or are damaged"
        )
    return np.sqrt(power).astype(np.float32)
