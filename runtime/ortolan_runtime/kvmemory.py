"""The memory of the KV cache as its users see it, wherever it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ortolan_runtime.bundle import Manifest


@dataclass(slots=True, frozen=True)
class View:
    """Some rows of the keys or the values of one layer, as onnxruntime binds them.

    ``device`` is onnxruntime's name of where ``address`` points to; ``shape`` is ``[rows, kv_heads,
    length, head_size]``.
    """

    device: str
    element: type[np.generic]
    shape: tuple[int, ...]
    address: int


class Allocate(Protocol):
    """Makes the memory of a KV cache."""

    def __call__(self, manifest: Manifest, *, rows: int, length: int) -> KVMemory:
        """Return room for ``rows`` rows of ``length`` tokens."""


class KVMemory(Protocol):
    """The keys and values of all layers, by row; rows count from 0."""

    def views(self, first_row: int, rows: int) -> Sequence[View]:
        """Return these rows of each layer's keys and values, in the layers' order."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row to another."""

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""

    def clear(self, row: int, length: int) -> None:
        """Put 0 behind the first ``length`` tokens of one row."""

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens, if it can be."""
