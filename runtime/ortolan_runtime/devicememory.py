"""The KV cache in a device's own memory, which Python addresses and never reads.

Rows are copied by a graph of the bundle's, run on the device, so that nothing is needed but
onnxruntime. The same code runs over the CPU's memory, where it is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort

from ortolan_runtime.bundle import Manifest, RowsGraphNames
from ortolan_runtime.kvbuffers import DTYPES
from ortolan_runtime.kvmemory import View

_NAMES = RowsGraphNames()


class DeviceMemory:
    """The keys and values of all layers on one device, all taken at once.

    ``device`` is onnxruntime's name for it; ``copier`` a session of the bundle's graph that copies
    rows. Everything is 0 at first: an attention that multiplies what it masks by 0 must not meet
    values that are no numbers.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        rows: int,
        length: int,
        device: str,
        copier: ort.InferenceSession,
    ) -> None:
        shape = (rows, manifest.kv_heads, length, manifest.head_size)
        self._device, self._element = device, DTYPES[manifest.kv_dtype]
        self._row_shape = (1, *shape[1:])
        self._row_bytes = prod(self._row_shape) * np.dtype(self._element).itemsize
        zeros = np.zeros(shape, self._element)
        self._values = [self._allocate(zeros) for _ in range(2 * manifest.layers)]
        self._zeros, self._spare = self._allocate(zeros[:1]), self._allocate(zeros[:1])
        self._copier = copier
        # One for all copies: onnxruntime leaks bindings that are made anew, not what they bind.
        self._binding = copier.io_binding()
        self._count = np.zeros(1, np.int64)
        count = self._count
        self._binding.bind_input(_NAMES.count, "cpu", 0, np.int64, count.shape, count.ctypes.data)

    def views(self, first_row: int, rows: int) -> Sequence[View]:
        """Return these rows of each layer's keys and values, in the layers' order."""
        shape = (rows, *self._row_shape[1:])
        return [
            View(self._device, self._element, shape, self._address(value, first_row))
            for value in self._values
        ]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row to another."""
        for value in self._values:
            self._copy(self._address(value, source), self._address(value, target), length)

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        aside = self._spare.data_ptr()
        for value in self._values:
            first, second = self._address(value, one), self._address(value, other)
            self._copy(first, aside, one_length)
            self._copy(second, first, other_length)
            self._copy(aside, second, one_length)

    def clear(self, row: int, length: int) -> None:
        """Put 0 behind the first ``length`` tokens of one row."""
        zeros, aside, whole = self._zeros.data_ptr(), self._spare.data_ptr(), self._row_shape[2]
        for value in self._values:
            place = self._address(value, row)
            self._copy(zeros, aside, whole)
            self._copy(place, aside, length)
            self._copy(aside, place, whole)

    def release(self, row: int, length: int) -> None:
        """Give nothing back: a device's memory is taken in one piece."""

    def _allocate(self, zeros: Any) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_shape_and_type(zeros.shape, self._element, self._device)
        value.update_inplace(zeros)
        return value

    def _address(self, value: ort.OrtValue, row: int) -> int:
        address: int = value.data_ptr()
        return address + row * self._row_bytes

    def _copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of a row to another address, where they replace what is
        there."""
        if length == 0 or source == target:
            return
        self._count[0] = length
        place = (self._device, 0, self._element, self._row_shape)
        self._binding.bind_input(_NAMES.source, *place, source)
        self._binding.bind_input(_NAMES.target, *place, target)
        self._binding.bind_output(_NAMES.result, *place, target)
        self._copier.run_with_iobinding(self._binding)
