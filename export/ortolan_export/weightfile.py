"""Writes the weights of one graph or several into one file beside them, part by part, so that no
model is ever held whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx_ir as ir

from ortolan_export.source import Array

# Shape arithmetic looks at small tensors, which must therefore lie in the graph itself.
INLINE_BYTES = 1024
# ONNX Runtime maps a tensor into memory, instead of reading it, where its offset is a page's start.
_ALIGNMENT = 4096


class WeightFile:
    """A growing file of tensors; each becomes an external tensor of a graph.

    The same bytes are kept once: what two graphs have in common lies there once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("wb")
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.close()

    def add(
        self, name: str, dtype: type[np.generic], shape: tuple[int, ...], parts: Iterable[Array]
    ) -> ir.ExternalTensor:
        """Append a tensor given as consecutive ``parts`` of its rows."""
        offset, length = self._append(dtype, parts)
        expected = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert length == expected, f"{name}: {length} bytes written, {expected} expected"
        return ir.ExternalTensor(
            location=self._path.name,
            offset=offset,
            length=length,
            dtype=ir.DataType.from_numpy(np.dtype(dtype)),
            shape=ir.Shape(shape),
            name=name,
            base_dir=self._path.parent,
        )

    def copy(self, tensor: ir.TensorProtocol, parts: Iterable[Array]) -> ir.ExternalTensor:
        """Append a tensor of any type, given as the bytes that a graph stores of it."""
        offset, length = self._append(np.uint8, parts)
        return ir.ExternalTensor(
            location=self._path.name,
            offset=offset,
            length=length,
            dtype=tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=self._path.parent,
        )

    def _append(self, dtype: type[np.generic], parts: Iterable[Array]) -> tuple[int, int]:
        """Write ``parts`` unless the file holds the same bytes; return their offset and length."""
        end = self._stream.tell()
        self._stream.write(b"\0" * (-end % _ALIGNMENT))
        offset = self._stream.tell()
        digest = hashlib.sha256()
        for part in parts:
            raw = np.ascontiguousarray(part, dtype=dtype).data
            digest.update(raw)
            self._stream.write(raw)
        length = self._stream.tell() - offset
        first = self._offsets.setdefault(digest.digest(), offset)
        if first != offset:
            self._stream.seek(end)
            self._stream.truncate()
        return first, length
