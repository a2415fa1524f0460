"""Norms as ONNX nodes: alone, after an addition to the residual stream, and on Q and K."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.operators import DecoderGraph
from ortolan_export.source import Tensors


@dataclass(slots=True)
class Norms:
    """Emits the norms of one decoder, RMS or layer norms, as its family has them."""

    graph: DecoderGraph
    tensors: Tensors
    decoder: Decoder

    def norm(self, module: str, x: ir.Value) -> ir.Value:
        """Emit a norm over the last axis of ``x``."""
        if self.decoder.architecture.norm == "rms":
            return self._rms(module, x)
        gain, bias = self._gain(module), self._bias(module)
        return self.graph.layer_norm(x, gain, bias, self.decoder.norm_epsilon)

    def added(
        self, module: str | None, residual: ir.Value, written: ir.Value | None
    ) -> tuple[ir.Value, ir.Value]:
        """Add ``written`` to the residual stream; return its norm and the sum.

        Without a module the norm is the sum itself; without ``written`` nothing is added.
        """
        if written is None:
            return (residual if module is None else self.norm(module, residual)), residual
        if module is None:
            total = self.graph.op("Add", residual, written)
            return total, total
        return self._skip_norm(module, residual, written)

    def query_or_key(self, module: str, x: ir.Value, heads: int) -> ir.Value:
        """Emit the norm of Q or K, ``[B, S, heads x size]``: over each head, or over all."""
        if self.decoder.architecture.qk_norm == "full":
            return self._rms(module, x)
        graph, size = self.graph, self.decoder.head_size
        apart = graph.op("Reshape", x, graph.constant([0, 0, heads, size], np.int64))
        normed = self._rms(module, apart)
        return graph.op("Reshape", normed, graph.constant([0, 0, heads * size], np.int64))

    def _rms(self, module: str, x: ir.Value) -> ir.Value:
        return self.graph.rms_norm(x, self._gain(module), self.decoder.norm_epsilon)

    def _skip_norm(
        self, module: str, residual: ir.Value, written: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        gain, epsilon = self._gain(module), self.decoder.norm_epsilon
        if self.decoder.architecture.norm == "rms":
            return self.graph.added_rms_norm(residual, written, gain, epsilon)
        bias = self._bias(module)
        return self.graph.added_layer_norm(residual, written, gain, bias, epsilon)

    def _gain(self, module: str) -> ir.Value:
        name = f"{module}.weight"
        return self.graph.weight(name, self.tensors.read(name))

    def _bias(self, module: str) -> ir.Value | None:
        name = f"{module}.bias"
        if name not in self.tensors.shapes:
            return None
        return self.graph.weight(name, self.tensors.read(name))
