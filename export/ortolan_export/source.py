"""What an exporter needs of a model's source, whatever its format: the seam between formats
and graphs.

Tensors go by their Hugging Face names and orientation (``[out, in]``), so that an architecture is
described once for every format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.errors import SourceError
from ortolan_runtime.bundle import GenerationDefaults

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Element = type[np.float32] | type[np.float16]  # of activations
NativePrecision = Literal["int8", "int4", "int8+int4", "fp32", "fp16"]
AccuracyLevel = Literal[0, 4]  # of the operator MatMulNBits: activations in float32 or 8 bits
BlockSize = Literal[32, 64, 128]  # of that operator: neighbouring weights that share a scale
PRECISIONS: tuple[NativePrecision, ...] = ("int8", "int4", "int8+int4", "fp32", "fp16")
INT4_PRECISIONS: tuple[NativePrecision, ...] = ("int4", "int8+int4")
CacheDtype = Literal["float32", "int8"]  # of the KV cache on a CPU
BLOCK_SIZES: tuple[BlockSize, ...] = (32, 64, 128)
CACHE_DTYPES: tuple[CacheDtype, ...] = ("float32", "int8")

_SLICE_ELEMENTS = 1 << 24  # 64 MB as float32


class SourceRows(msgspec.Struct, frozen=True):
    """Rows of a tensor as the source has them, in its quantised type ``kind`` (Q4_1, ...).

    ``data`` is uint8 ``[rows, bytes]``.
    """

    kind: str
    data: NDArray[np.uint8]


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """What the source says about text: ``tokenizer`` is the content of a tokenizer.json."""

    tokenizer: str
    chat_template: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_defaults: GenerationDefaults = GenerationDefaults()


class Checkpoint(Protocol):
    """A model's configuration, texts and tensors; tensors are read one at a time."""

    @property
    def name(self) -> str:
        """Return the source's own name, to be the bundle's unless another is given."""

    @property
    def origin(self) -> str:
        """Return the name of the file that the configuration is from, for messages."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the configuration in the form of a config.json."""

    @property
    def files(self) -> Sequence[Path]:
        """Return the files that decide what the model computes, in a fixed order."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor that can be read, without reading any."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Return the tensors of types that cannot be read, and what to say of each.

        Some checkpoints carry masks; a tensor that matters must not be among them.
        """

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return rows as the source has them, None where it has them in floating point."""

    def texts(self) -> Texts:
        """Return the tokenizer and what belongs to it. Raises SourceError, UnsupportedModel."""


class CheckedTensors:
    """A checkpoint's tensors, each found finite as it is read, and counted."""

    def __init__(self, checkpoint: Checkpoint, report: Callable[[int], None]) -> None:
        self._checkpoint = checkpoint
        self._report = report
        self.shapes = checkpoint.shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows of a tensor as float32. Raises SourceError for values without number."""
        array = self._checkpoint.read(name, start, stop)
        if not np.isfinite(array).all():
            raise SourceError(
                f"tensor {name} holds infinities or values that are no numbers; "
                "the checkpoint is damaged"
            )
        self._report(array.size)
        return array

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return rows as the source has them, None where it has them in floating point."""
        return self._checkpoint.read_quantised(name, start, stop)


class Tensors(Protocol):
    """The part of a checkpoint that a graph is built from."""

    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return rows as the source has them, None where they are floating point or moved."""


def row_slices(tensors: Tensors, module: str) -> Iterator[tuple[int, int]]:
    """Give the first and the last row (excluded) of slices small enough to be held as float32."""
    rows, columns = tensors.shapes[f"{module}.weight"]
    step = max(1, _SLICE_ELEMENTS // columns)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
