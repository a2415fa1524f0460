"""Writes a graph's weights into one file beside it, part by part, so that no model is ever held
whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx_ir as ir

from ortolan_export.source import Array

# ONNX Runtime maps a tensor into memory, instead of reading it, where its offset is a page's start.
_ALIGNMENT = 4096


class WeightFile:
    """A growing file of tensors; each becomes an external tensor of the graph."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("wb")

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
        self._stream.write(b"\0" * (-self._stream.tell() % _ALIGNMENT))
        offset = self._stream.tell()
        for part in parts:
            self._stream.write(np.ascontiguousarray(part, dtype=dtype).data)
        length = self._stream.tell() - offset
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
