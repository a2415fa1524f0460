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
        return self._linear(layer, self.decoder.names.down, self._inner(layer, x))

    def _inner(self, layer: int, x: ir.Value) -> ir.Value:
        """Emit what the last layer of the MLP reads: gate and up, or up alone.

        Gate and up are two products: to split one for both costs a copy of all that it gives.
        """
        names = self.decoder.names
        if names.gate is None:
            return self._activated(self._linear(layer, names.up, x))
        gated = self._activated(self._linear(layer, names.gate, x))
        return self.graph.op("Mul", gated, self._linear(layer, names.up, x))

    def _linear(self, layer: int, name: str, x: ir.Value) -> ir.Value:
        module = self.decoder.module(layer, name)
        return self.linears.linear(module, x, [module])

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
