"""The layout ``concat``: a step takes the past and returns it with the new tokens behind.

Such graphs come from other exporters. The rows lie in the same buffers as elsewhere; a step lays
those that it runs side by side, filled up to one width, and writes back what is new.

Where a cached token stands within the width decides how sums over it are grouped, so that a row's
place must not depend on its company: see ``_Placement``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ortolan_runtime.bundle import Manifest, MaskedGraph
from ortolan_runtime.kvbuffers import Array, KVBuffers
from ortolan_runtime.layouts.masked import MaskedSession
from ortolan_runtime.logits import Ids, Lengths, Output, row_logsumexp

# The width grows by this many tokens at once, so that rows are seldom laid out anew. Kernels add in
# groups of at most 16 numbers (AVX-512), of which this is a multiple.
_WIDTH_STEP = 64

Rows = npt.NDArray[np.intp]


@dataclass(slots=True, frozen=True)
class _Placement:
    """Where the cached tokens of ``rows`` stand: from ``offsets`` on, within ``width`` places.

    ``rows`` are places in the batch and ``offsets`` int64, both ``[n]``.
    """

    rows: Rows
    width: int
    offsets: Ids


class ConcatLayout:
    """One graph over rows of up to ``length`` tokens.

    A lone row runs beside a copy of itself, since kernels for one row round otherwise; ``relaxed``
    does without.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        *,
        rows: int,
        length: int,
        relaxed: bool,
    ) -> None:
        assert manifest.masked_graph is not None, "only graphs with a mask keep their cache so"
        self.buffers = KVBuffers(manifest, rows=rows, length=length)
        self.binding_count = 0  # every step hands its arrays over
        self._graph = MaskedSession(session, manifest)
        self._placing = _Placing(manifest.masked_graph, manifest.context_length, relaxed)
        self._needs_company = not relaxed
        self._laid_out: dict[int, _LaidOut] = {}

    def prefill(self, row: int, tokens: Ids, past: int, positions: Ids) -> Output:
        """Run int64 ``[n]`` tokens of one row on top of ``past`` ones; logits at ``positions``.

        ``positions`` count from the first of ``tokens``, int64 ``[r]``.
        """
        self._forget(row)
        cached = [np.ascontiguousarray(a[row : row + 1, :, :past]) for a in self.buffers.arrays]
        mask = np.ones((1, past + len(tokens)), np.int64)
        # The head, too, would round a single row otherwise.
        first = min(int(positions.min()), max(len(tokens) - 2, 0))
        logits, presents = self._graph.run(
            tokens[None, :], np.array([past]), mask, cached, first_logit=first
        )
        for array, present in zip(self.buffers.arrays, presents, strict=True):
            array[row, :, past : past + len(tokens)] = present[0, :, past:]
        wanted = logits[0, positions - first].astype(np.float32)
        return Output(wanted, row_logsumexp(wanted))

    def verify(self, tokens: Ids, past: int) -> Output:
        """Run int64 ``[n]`` tokens of the first row as decode steps would; logits at each."""
        return self.prefill(0, tokens, past, np.arange(len(tokens)))

    def decode(self, tokens: Ids, past: Lengths) -> Output:
        """Run one token of each of the first rows; ``tokens`` int64, ``past`` int32 ``[n]``."""
        placements = self._placing.place(past)
        parts = [self._decode(placement, tokens, past) for placement in placements]
        widths = {placement.width for placement in placements}
        self._laid_out = {w: kept for w, kept in self._laid_out.items() if w in widths}
        logits = np.empty((len(tokens), parts[0].shape[1]), np.float32)
        for placement, part in zip(placements, parts, strict=True):
            logits[placement.rows] = part[: len(placement.rows)]
        return Output(logits, row_logsumexp(logits))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""
        self._forget(target)
        self.buffers.copy(source, target, length)

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange two rows of which that many tokens are in use."""
        self._forget(one, other)
        self.buffers.swap(one, one_length, other, other_length)

    def release(self, row: int, length: int) -> None:
        """Give back the memory of one row beyond its first ``length`` tokens."""
        self._forget(row)
        self.buffers.release(row, length)

    def _decode(self, placement: _Placement, tokens: Ids, past: Lengths) -> Array:
        """Run the rows of one placement; return logits of any float type ``[rows, vocab]``."""
        if self._needs_company and len(placement.rows) == 1:
            twice = np.repeat(placement.rows, 2), np.repeat(placement.offsets, 2)
            placement = _Placement(twice[0], placement.width, twice[1])
        rows, width = placement.rows, placement.width
        lengths = past[rows].astype(np.int64)
        laid_out = self._laid_out.get(width)
        if laid_out is None or not laid_out.holds(placement, lengths):
            spare = None if laid_out is None else laid_out.arrays
            laid_out = _lay_out(self.buffers, placement, lengths, spare)
            self._laid_out[width] = laid_out
        logits, presents = self._graph.run(
            tokens[rows][:, None],
            lengths,
            _mask(placement, lengths),
            laid_out.arrays,
            first_logit=0,
        )
        for array, present in zip(self.buffers.arrays, presents, strict=True):
            array[rows, :, lengths] = present[:, :, width]
        laid_out.extend(presents)
        return logits[:, -1]

    def _forget(self, *rows: int) -> None:
        """Lay out anew what holds one of these rows."""
        self._laid_out = {
            width: kept
            for width, kept in self._laid_out.items()
            if not np.isin(kept.placement.rows, rows).any()
        }


class _Placing:
    """Decides where rows stand, by what the graph bears.

    ``right``: all rows begin at place 0, and the new tokens stand behind the longest, where a group
    of numbers that kernels add begins: measured, zeros between change no bit then. ``left``: the
    cached tokens end beside the new one, in a width that a row's own length decides, so that rows
    of like lengths run together. ``none``: rows of the same length run together.
    """

    def __init__(self, graph: MaskedGraph, context_length: int, relaxed: bool) -> None:
        self._padding = graph.padding
        self._context_length = context_length
        self._relaxed = relaxed

    def place(self, past: Lengths) -> list[_Placement]:
        """Return the runs that a step takes; each row is in one of them."""
        if self._padding == "right":
            width = -(-int(past.max()) // _WIDTH_STEP) * _WIDTH_STEP
            return [_Placement(np.arange(len(past)), width, np.zeros(len(past), np.int64))]
        widths = past.astype(np.int64)
        if self._padding == "left":
            longest = int(past.max())
            lengths = [longest if self._relaxed else int(length) for length in past]
            widths = np.array([self._left_width(length) for length in lengths])
        placements = []
        for width in np.unique(widths):
            rows = np.flatnonzero(widths == width)
            placements.append(_Placement(rows, int(width), width - past[rows]))
        return placements

    def _left_width(self, length: int) -> int:
        places = _WIDTH_STEP
        while places <= length:
            places *= 2
        return max(min(places, self._context_length) - 1, length)


class _LaidOut:
    """The cached tokens of some rows side by side, each array ``[rows, kv_heads, width, head]``."""

    def __init__(self, placement: _Placement, lengths: Ids, arrays: Sequence[Array]) -> None:
        self.placement = placement
        self.arrays = arrays
        self._lengths = lengths

    def holds(self, placement: _Placement, lengths: Ids) -> bool:
        """Return whether these rows stand here already, with all their tokens."""
        own = self.placement
        return (
            np.array_equal(own.rows, placement.rows)
            and np.array_equal(own.offsets, placement.offsets)
            and np.array_equal(self._lengths, lengths)
        )

    def extend(self, presents: Sequence[Array]) -> None:
        """Put the new tokens of a step behind the cached ones, where they have room."""
        places = self.placement.offsets + self._lengths
        if places.max() >= self.placement.width:
            return
        rows = np.arange(len(places))
        for array, present in zip(self.arrays, presents, strict=True):
            array[rows, :, places] = present[:, :, self.placement.width]
        self._lengths = self._lengths + 1


def _lay_out(
    buffers: KVBuffers, placement: _Placement, lengths: Ids, spare: Sequence[Array] | None
) -> _LaidOut:
    """Copy rows out of the buffers, into ``spare`` arrays where they have the size."""
    _, heads, _, head_size = buffers.arrays[0].shape
    shape = (len(placement.rows), heads, placement.width, head_size)
    if spare is None or spare[0].shape != shape:
        spare = [np.empty(shape, array.dtype) for array in buffers.arrays]
    for target, array in zip(spare, buffers.arrays, strict=True):
        places = zip(placement.rows, placement.offsets, lengths, strict=True)
        for index, (row, offset, length) in enumerate(places):
            target[index, :, :offset] = 0
            target[index, :, offset : offset + length] = array[row, :, :length]
            target[index, :, offset + length :] = 0
    return _LaidOut(placement, lengths, spare)


def _mask(placement: _Placement, lengths: Ids) -> Ids:
    """Return int64 ``[rows, width + 1]``: 1 for cached tokens and the new one, 0 elsewhere."""
    places = np.arange(placement.width + 1)
    start, end = placement.offsets[:, None], (placement.offsets + lengths)[:, None]
    is_token = (places >= start) & (places < end)
    is_token[:, placement.width] = True
    return is_token.astype(np.int64)
