"""MLPs as ONNX nodes, with a gate or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortolan_export.architectures.family import Activation, Decoder
from ortolan_export.operators import DecoderGraph
from ortolan_export.quantize import Linears


@dataclass(slots=True)
class MLP:
    """Emits the MLPs of one decoder."""

    graph: DecoderGraph
    linears: Linears
    decoder: Decoder

    def build(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit what one layer's MLP writes for its input ``x``."""
        names, linears = self.decoder.names, self.linears
        inner = self._plain(layer, x) if names.gate is None else self._gated(layer, names.gate, x)
        down = self.decoder.module(layer, names.down)
        return linears.linear(down, inner, [down])

    def _plain(self, layer: int, x: ir.Value) -> ir.Value:
        up = self.decoder.module(layer, self.decoder.names.up)
        return self._activated(self.linears.linear(up, x, [up]))

    def _gated(self, layer: int, gate_name: str, x: ir.Value) -> ir.Value:
        """Emit gate and up layers packed into one, and their product."""
        decoder, graph = self.decoder, self.graph
        modules = [decoder.module(layer, name) for name in (gate_name, decoder.names.up)]
        name = decoder.module(layer, "gate_up")
        packed = self.linears.linear(name, x, modules)
        gated, raised = graph.op_with(2, "Split", packed, axis=-1, num_outputs=2)
        return graph.op("Mul", self._activated(gated), raised)

    def _activated(self, x: ir.Value) -> ir.Value:
        return _ACTIVATIONS[self.decoder.activation](self.graph, x)


def _silu(graph: DecoderGraph, x: ir.Value) -> ir.Value:
    return graph.silu(x)


def _gelu(graph: DecoderGraph, x: ir.Value) -> ir.Value:
    return graph.op("Gelu", x, approximate="none")


def _gelu_tanh(graph: DecoderGraph, x: ir.Value) -> ir.Value:
    return graph.op("Gelu", x, approximate="tanh")


def _relu(graph: DecoderGraph, x: ir.Value) -> ir.Value:
    return graph.op("Relu", x)


_ACTIVATIONS: Mapping[Activation, Callable[[DecoderGraph, ir.Value], ir.Value]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
