"""The likeliest tokens of rows of logits, found without sorting a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortolan_runtime.logits import Ids, Logits, Row

Floats = npt.NDArray[np.float64]

# Columns of a block whose maximum stands for it when the likeliest tokens are searched.
_BLOCK = 64


@dataclass(slots=True, frozen=True)
class Heads:
    """The likeliest tokens of some rows, best first, of equals the lower id first.

    ``ids`` int64 and ``logits`` float64 are ``[rows, longest]``; row i has ``sizes[i, 0]`` tokens,
    and what is over in it has the logit -inf.
    """

    ids: Ids
    logits: Floats
    sizes: Ids

    def take(self, places: Ids) -> Heads:
        """Return the heads of some rows."""
        return Heads(self.ids[places], self.logits[places], self.sizes[places])


def heads_above(logits: Logits, floors: npt.NDArray[np.float32], most: int) -> Heads:
    """Return the tokens of each row whose logits are not below its floor, at most ``most``.

    ``logits`` is float32 ``[rows, vocab]``, ``floors`` float32 ``[rows]``. Takes one pass, and time
    to sort what it finds.
    """
    flat = np.flatnonzero(logits >= floors[:, None])
    row, ids = np.divmod(flat, logits.shape[1])
    values = logits.ravel()[flat]
    order = np.lexsort((-values, row))  # stable, and ids come in order
    found = np.bincount(row, minlength=len(logits))
    sizes = np.minimum(found, most)
    columns = np.arange(max(int(sizes.max()), 1))
    is_there = columns < sizes[:, None]
    starts = np.cumsum(found) - found
    chosen = order[(starts[:, None] + columns)[is_there]]
    heads = Heads(
        np.zeros(is_there.shape, np.int64),
        np.full(is_there.shape, -np.inf),
        sizes[:, None],
    )
    heads.ids[is_there] = ids[chosen]
    heads.logits[is_there] = values[chosen]
    return heads


def head_of(row: Row, count: int) -> Heads:
    """Return the ``count`` likeliest tokens of one row, float32 ``[vocab]``, or all there are."""
    ids = likeliest(row, min(count, len(row)))
    return Heads(ids[None], row[None, ids].astype(np.float64), np.array([[len(ids)]]))


def likeliest(row: Row, count: int) -> Ids:
    """Return the ids of the ``count`` largest of one row, largest first, of equals the lower id.

    The row is laid out as ``_BLOCK`` lines, so that a column is a block and the maxima of all
    blocks are one vectorised pass. The ``count`` best blocks have ``count`` values not below the
    least of their maxima, so nothing below it is looked at.
    """
    blocks = len(row) // _BLOCK
    if count >= blocks:
        return np.argsort(-row, kind="stable")[:count]
    lines = row[: blocks * _BLOCK].reshape(_BLOCK, blocks)
    maxima = lines.max(axis=0)
    floor = np.partition(maxima, blocks - count)[blocks - count]
    best = np.flatnonzero(maxima >= floor)
    line, column = np.nonzero(lines[:, best] >= floor)
    rest = np.arange(blocks * _BLOCK, len(row))
    ids = np.concatenate((line * blocks + best[column], rest))
    return ids[np.argsort(-row[ids], kind="stable")[:count]]  # ids come in order
