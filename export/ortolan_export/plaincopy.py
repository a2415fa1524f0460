"""Writes a graph of another exporter's into a bundle: one graph, one file of weights beside it.

External data may lie in any number of files under any name; in a bundle it is one plain file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortolan_export.errors import SourceError
from ortolan_export.foreign import all_nodes
from ortolan_export.source import Array
from ortolan_export.weightfile import INLINE_BYTES, WeightFile
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME

_PART_BYTES = 1 << 26


def external_files(model: ir.Model, folder: Path) -> list[Path]:
    """Return the files that hold external data of a graph in ``folder``, each once.

    Raises SourceError for one that is missing or lies elsewhere.
    """
    files: dict[Path, None] = {}
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            files[_home(tensor, folder)] = None
    return list(files)


def write_plain(model: ir.Model, source: Path, folder: Path, report: Callable[[int], None]) -> None:
    """Write ``model``, whose external data lies in ``source``, to a bundle's ``folder``.

    ``report`` is told how many more bytes of weights are written. The graph in memory is changed,
    the files in ``source`` are not. Raises SourceError for a damaged graph.
    """
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        for graph in (model.graph, *model.graph.subgraphs()):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = _placed(value.const_value, source, weights)
                    report(value.const_value.nbytes)
    for node in all_nodes(model):
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _inline(tensor, source))
    try:
        ir.save(model, folder / GRAPH_NAME)
    except ir.serde.SerdeError as exc:
        raise SourceError(f"the graph cannot be written again ({exc}); it is damaged") from exc


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers."""
    graphs = (model.graph, *model.graph.subgraphs())
    values = (value.const_value for graph in graphs for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in values if tensor is not None)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor()


def _placed(tensor: ir.TensorProtocol, source: Path, weights: WeightFile) -> ir.TensorProtocol:
    """Return the tensor in the file of weights, or in the graph itself where it is small."""
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    if tensor.nbytes >= INLINE_BYTES:
        return weights.copy(tensor, _parts(tensor, source))
    return _inline(tensor, source) if isinstance(tensor, ir.ExternalTensor) else tensor


def _inline(tensor: ir.ExternalTensor, source: Path) -> ir.TensorProtocol:
    _home(tensor, source)
    return ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


def _parts(tensor: ir.TensorProtocol, source: Path) -> Iterator[Array]:
    """Give the bytes of a tensor as uint8 ``[n]``, a part at a time."""
    if not isinstance(tensor, ir.ExternalTensor):
        yield np.frombuffer(tensor.tobytes(), np.uint8)
        return
    file, offset = _home(tensor, source), tensor.offset or 0
    with file.open("rb") as stream:
        stream.seek(offset)
        left = tensor.nbytes
        while left:
            part = np.fromfile(stream, np.uint8, min(left, _PART_BYTES))
            if part.size == 0:
                raise SourceError(f"{file} ends too early for {tensor.name}; download it again")
            left -= part.size
            yield part


def _home(tensor: ir.ExternalTensor, folder: Path) -> Path:
    location = Path(str(tensor.location))
    if location.is_absolute() or ".." in location.parts:
        raise SourceError(f"external data must lie beside its graph, got {str(location)!r}")
    file = folder / location
    if not file.is_file():
        raise SourceError(f"{file} is missing, though the graph names it; download it as well")
    return file
