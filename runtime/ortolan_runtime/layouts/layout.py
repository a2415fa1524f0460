"""What every layout of the KV cache does, so that nothing above knows which one it is."""

from __future__ import annotations

from typing import Protocol

from ortolan_runtime.kvmemory import KVMemory
from ortolan_runtime.logits import Ids, Lengths, Output


class Layout(Protocol):
    """A bundle's graphs over rows of KV cache; rows count from 0.

    Whatever a layout needs beside the rows that it is asked for, it keeps to itself.
    """

    @property
    def buffers(self) -> KVMemory:
        """Return the memory of the rows, those of the layout itself included."""

    @property
    def binding_count(self) -> int:
        """Return how many views of the buffers are bound; bounded by the rows, not by the steps."""

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        """Run int64 ``[n]`` tokens of one row on top of ``past`` ones; logits at ``positions``.

        ``positions`` count from the first of ``tokens``, int64 ``[r]``.
        """

    def verify(self, tokens: Ids, past: int) -> Output:
        """Run int64 ``[n]`` tokens of the first row as decode steps would; logits at each."""

    def decode(self, tokens: Ids, past: Lengths) -> Output:
        """Run one token of each of the first rows; ``tokens`` int64, ``past`` int32 ``[n]``."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
