"""The memory of the KV cache: one row a sequence, taken and given back page by page.

The rows are as long as the context, but memory is taken as tokens are written, and given back.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortolan_runtime.bundle import Manifest
from ortolan_runtime.errors import MemoryRefused
from ortolan_runtime.kvmemory import View

Array = npt.NDArray[Any]

# Linux's value; Python names it from 3.13 on. Rows as long as the context are mostly never written.
_MAP_NORESERVE = 0x4000

# Tokens of a row that are exchanged at once, so that the copy between them stays small.
_SWAP_TOKENS = 1024

DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
}


class KVBuffers:
    """The keys and values of all layers, each ``[rows, kv_heads, length, head_size]``.

    Anonymous memory outside the heap, so that rows can be given back to the system one by one.
    Raises MemoryRefused.
    """

    def __init__(self, manifest: Manifest, *, rows: int, length: int) -> None:
        shape = (rows, manifest.kv_heads, length, manifest.head_size)
        dtype = DTYPES[manifest.kv_dtype]
        self._maps: list[mmap.mmap] = []
        self.arrays = [self._allocate(shape, dtype) for _ in range(2 * manifest.layers)]
        self._token_bytes = manifest.head_size * np.dtype(dtype).itemsize
        self._heads, self._length = manifest.kv_heads, length

    def views(self, first_row: int, rows: int) -> Sequence[View]:
        """Return these rows of each layer's keys and values, in the layers' order."""
        parts = (array[first_row : first_row + rows] for array in self.arrays)
        return [View("cpu", part.dtype.type, part.shape, part.ctypes.data) for part in parts]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row to another."""
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        common, longest = sorted((one_length, other_length))
        longer, shorter = (one, other) if one_length == longest else (other, one)
        for array in self.arrays:
            for start in range(0, common, _SWAP_TOKENS):
                part = slice(start, min(start + _SWAP_TOKENS, common))
                kept = array[one, :, part].copy()
                array[one, :, part] = array[other, :, part]
                array[other, :, part] = kept
            array[shorter, :, common:longest] = array[longer, :, common:longest]
        self.release(longer, common)

    def clear(self, row: int, length: int) -> None:
        """Put 0 behind the first ``length`` tokens of one row."""
        for array in self.arrays:
            array[row, :, length:] = 0

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        page = mmap.PAGESIZE
        head_bytes = self._length * self._token_bytes
        for memory in self._maps:
            for head in range(self._heads):
                start = (row * self._heads + head) * head_bytes
                first = -(-(start + length * self._token_bytes) // page) * page
                last = (start + head_bytes) // page * page
                if last > first:
                    memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _allocate(self, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            memory = mmap.mmap(-1, size, flags=flags)
        except (OSError, OverflowError) as exc:
            raise MemoryRefused(
                f"the KV cache of {shape[0]} rows needs {size} bytes of address space a layer for "
                "its keys, which the system refuses; take fewer `slots`, or raise `ulimit -v`"
            ) from exc
        # A huge page would take 2 MB for the first token of every head of every layer.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._maps.append(memory)
        return np.frombuffer(memory, dtype).reshape(shape)
