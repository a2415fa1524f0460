"""A thin emitter of ONNX nodes: names them, keeps constants once, and saves the model.

It knows no operators; those of a decoder are in ``operators``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortolan_export.errors import UnsupportedModel
from ortolan_export.source import Array, Element, Float32
from ortolan_export.weightfile import INLINE_BYTES, WeightFile
from ortolan_runtime.version import __version__

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators

Attribute = int | float | str | Sequence[int]
Dimension = int | str


class GraphBuilder:
    """A graph under construction, whose large tensors go straight to ``weights``.

    ``element`` is the type of activations, of the KV cache and of weights that are floating point.
    """

    opset = 21  # what the fused operators need, no newer than the oldest ONNX Runtime supported
    ir_version = 10
    domains: Mapping[str, int] = {MICROSOFT: 1}

    def __init__(self, weights: WeightFile, element: Element = np.float32) -> None:
        self.element = element
        self.element_type = ir.DataType.from_numpy(np.dtype(element))
        self._weights = weights
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._initializers: dict[str, ir.Value] = {}

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[Dimension]) -> ir.Value:
        """Declare an input of the graph."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._inputs.append(value)
        return value

    def output(
        self, value: ir.Value, name: str, dtype: ir.DataType, shape: Sequence[Dimension]
    ) -> None:
        """Declare ``value`` an output of the graph, under ``name``."""
        value.name = name
        value.type = ir.TensorType(dtype)
        value.shape = ir.Shape(shape)
        self._outputs.append(value)

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        **attributes: Attribute,
    ) -> ir.Value:
        """Emit a node with one output and return it."""
        return self.op_with(1, op_type, *inputs, domain=domain, **attributes)[0]

    def op_with(
        self,
        outputs: int,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """Emit a node with several outputs and return them; None stands for an absent input."""
        present = list(inputs)
        while present and present[-1] is None:
            present.pop()
        name = f"{op_type}_{len(self._nodes)}"
        node = ir.node(op_type, present, attributes, domain=domain, num_outputs=outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}.{index}"
        self._nodes.append(node)
        return node.outputs

    def constant(self, value: int | float | Sequence[int], dtype: type[np.generic]) -> ir.Value:
        """Return a small constant; the same value is kept once."""
        array = np.array(value, dtype)
        shown = "x".join(str(item) for item in array.reshape(-1))
        rank = "scalar" if array.ndim == 0 else "list"
        return self.tensor(f"const.{array.dtype}.{rank}.{shown}", array)

    def number(self, value: float) -> ir.Value:
        """Return a constant of the graph's element type."""
        return self.constant(value, self.element)

    def weight(self, name: str, array: Float32) -> ir.Value:
        """Return an initializer of the graph's element type. Raises UnsupportedModel."""
        return self.tensor(name, self.as_elements(name, array))

    def as_elements(self, name: str, array: Float32) -> Array:
        """Return ``array`` in the graph's element type. Raises UnsupportedModel on overflow."""
        with np.errstate(over="ignore"):
            elements = array.astype(self.element, copy=False)
        if elements.dtype != array.dtype and not np.isfinite(elements).all():
            largest = float(np.abs(array).max())
            raise UnsupportedModel(
                f"tensor {name} must be within ±{float(np.finfo(self.element).max):.0f} in fp16, "
                f"got {largest:.3g}; export this model in another precision"
            )
        return elements

    def tensor(self, name: str, array: Array) -> ir.Value:
        """Return an initializer; the same name is kept once."""
        if name in self._initializers:
            return self._initializers[name]
        if array.nbytes < INLINE_BYTES:
            return self._initializer(ir.tensor(array, name=name))
        return self.streamed(name, array.dtype.type, array.shape, [array])

    def streamed(
        self, name: str, dtype: type[np.generic], shape: tuple[int, ...], parts: Iterable[Array]
    ) -> ir.Value:
        """Return an initializer given as consecutive ``parts`` of its rows; a name comes once."""
        assert name not in self._initializers, f"{name} is written twice"
        return self._initializer(self._weights.add(name, dtype, shape, parts))

    def save(self, path: Path) -> None:
        """Write the graph to ``path``, beside its weights."""
        graph = ir.Graph(
            inputs=self._inputs,
            outputs=self._outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports={"": self.opset, **self.domains},
            name="decoder",
        )
        model = ir.Model(
            graph,
            ir_version=self.ir_version,
            producer_name="ortolan",
            producer_version=__version__,
        )
        ir.save(model, path)

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        name = tensor.name
        assert name is not None
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self._initializers[name] = value
        return value
