"""The operators that a decoder is made of, in two flavours.

Fused operators are ONNX Runtime's own, for the CPU and CUDA. TensorRT knows none of them: a graph
for it has standard operators alone, so that it becomes one engine and not many pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortolan_export.graph import MICROSOFT, GraphBuilder


class DecoderGraph(GraphBuilder, ABC):
    """A graph under construction, with the operators of a decoder."""

    @abstractmethod
    def product(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """Emit ``x @ weight.T`` for a weight ``[out, in]``."""

    @abstractmethod
    def silu(self, x: ir.Value) -> ir.Value:
        """Emit ``x * sigmoid(x)``."""

    @abstractmethod
    def rms_norm(self, x: ir.Value, gain: ir.Value, epsilon: float) -> ir.Value:
        """Emit the RMS norm over the last axis."""

    @abstractmethod
    def added_rms_norm(
        self, residual: ir.Value, written: ir.Value, gain: ir.Value, epsilon: float
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the RMS norm of a sum; return it and the sum."""

    @abstractmethod
    def added_layer_norm(
        self,
        residual: ir.Value,
        written: ir.Value,
        gain: ir.Value,
        bias: ir.Value | None,
        epsilon: float,
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the layer norm of a sum; return it and the sum."""

    def layer_norm(
        self, x: ir.Value, gain: ir.Value, bias: ir.Value | None, epsilon: float
    ) -> ir.Value:
        """Emit the layer norm over the last axis."""
        return self.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=epsilon)

    def as_float32(self, x: ir.Value) -> ir.Value:
        """Emit ``x``, of the element type, in float32."""
        return x if self.element is np.float32 else self.op("Cast", x, to=ir.DataType.FLOAT)

    def from_float32(self, x: ir.Value) -> ir.Value:
        """Emit ``x``, of float32, in the element type."""
        return x if self.element is np.float32 else self.op("Cast", x, to=self.element_type)


class FusedGraph(DecoderGraph):
    """Operators of ONNX Runtime's own, each several standard ones in one pass over memory."""

    def product(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """Emit a product that reads the weight as it lies."""
        return self.op("FusedMatMul", x, weight, domain=MICROSOFT, transB=1)

    def silu(self, x: ir.Value) -> ir.Value:
        """Emit x * sigmoid(1.0 * x)."""
        return self.op("QuickGelu", x, domain=MICROSOFT, alpha=1.0)

    def rms_norm(self, x: ir.Value, gain: ir.Value, epsilon: float) -> ir.Value:
        """Emit the RMS norm, computed in float32."""
        return self.op(
            "SimplifiedLayerNormalization", x, gain, axis=-1, epsilon=epsilon, stash_type=1
        )

    def added_rms_norm(
        self, residual: ir.Value, written: ir.Value, gain: ir.Value, epsilon: float
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the sum and its norm as one operator."""
        operator = "SkipSimplifiedLayerNormalization"
        outputs = self._skip(operator, residual, written, gain, epsilon=epsilon)
        return outputs[0], outputs[3]

    def added_layer_norm(
        self,
        residual: ir.Value,
        written: ir.Value,
        gain: ir.Value,
        bias: ir.Value | None,
        epsilon: float,
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the sum and its norm as one operator."""
        operator = "SkipLayerNormalization"
        outputs = self._skip(operator, residual, written, gain, bias, epsilon=epsilon)
        return outputs[0], outputs[3]

    def _skip(self, operator: str, *inputs: ir.Value | None, epsilon: float) -> list[ir.Value]:
        return list(self.op_with(4, operator, *inputs, domain=MICROSOFT, epsilon=epsilon))


class StandardGraph(DecoderGraph):
    """Operators of ONNX alone, of the opset that brought the KV cache's."""

    opset = 24
    ir_version = 11
    domains: Mapping[str, int] = {}

    def product(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """Emit a product with the weight turned, which is done once while a session is made."""
        return self.op("MatMul", x, self.op("Transpose", weight, perm=[1, 0]))

    def silu(self, x: ir.Value) -> ir.Value:
        """Emit the product."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def rms_norm(self, x: ir.Value, gain: ir.Value, epsilon: float) -> ir.Value:
        """Emit the RMS norm, computed in float32."""
        return self.op("RMSNormalization", x, gain, axis=-1, epsilon=epsilon, stash_type=1)

    def added_rms_norm(
        self, residual: ir.Value, written: ir.Value, gain: ir.Value, epsilon: float
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the sum, then its norm."""
        total = self.op("Add", residual, written)
        return self.rms_norm(total, gain, epsilon), total

    def added_layer_norm(
        self,
        residual: ir.Value,
        written: ir.Value,
        gain: ir.Value,
        bias: ir.Value | None,
        epsilon: float,
    ) -> tuple[ir.Value, ir.Value]:
        """Emit the sum, then its norm."""
        total = self.op("Add", residual, written)
        return self.layer_norm(total, gain, bias, epsilon), total
