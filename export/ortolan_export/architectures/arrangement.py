"""Shows a checkpoint's tensors under the names and in the order that the blocks expect.

Families pack Q, K and V, transpose, or pair the values of a rotation in ways of their own. All of
it is a choice and an order of rows, so that every format of weights can go through it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.architectures.family import Decoder
from ortolan_export.rope import Rope
from ortolan_export.source import Float32, SourceRows, Tensors

Rows = NDArray[np.int64]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor made of rows of another one, the ``source``.

    ``rows`` int64 are the source's rows in the order wanted, None for all as they are; rows of a
    transposed source are its columns. ``offset`` is added to every value.
    """

    source: str
    rows: Rows | None = None
    is_transposed: bool = False
    offset: float = 0.0


class ArrangedTensors:
    """The tensors of a decoder's checkpoint, each module's weight ``[out, in]``."""

    def __init__(self, tensors: Tensors, decoder: Decoder) -> None:
        self._tensors = tensors
        self._views = {
            name: view for name, view in _views(decoder) if view.source in tensors.shapes
        }
        self.shapes: Mapping[str, tuple[int, ...]] = {
            **tensors.shapes,
            **{name: self._shape(view) for name, view in self._views.items()},
        }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        view = self._views.get(name)
        if view is None:
            return self._tensors.read(name, start, stop)
        rows = self._rows(view, slice(start, stop))
        return rows + np.float32(view.offset) if view.offset else rows

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return rows as the source has them, None where they are floating point or changed."""
        view = self._views.get(name)
        if view is None:
            return self._tensors.read_quantised(name, start, stop)
        if view.is_transposed or view.offset or view.rows is None:
            return None
        rows = view.rows[start:stop]
        first = int(rows.min())
        held = self._tensors.read_quantised(view.source, first, int(rows.max()) + 1)
        return held and SourceRows(held.kind, held.data[rows - first])

    def _rows(self, view: View, wanted: slice) -> Float32:
        if view.is_transposed:
            columns = self._tensors.read(view.source).T
            return columns[wanted] if view.rows is None else columns[view.rows[wanted]]
        if view.rows is None:
            return self._tensors.read(view.source, wanted.start, wanted.stop)
        rows = view.rows[wanted]
        first = int(rows.min())
        return self._tensors.read(view.source, first, int(rows.max()) + 1)[rows - first]

    def _shape(self, view: View) -> tuple[int, ...]:
        shape = self._tensors.shapes[view.source]
        shape = shape[::-1] if view.is_transposed else shape
        return shape if view.rows is None else (len(view.rows), *shape[1:])


def _views(decoder: Decoder) -> Iterator[tuple[str, View]]:
    names, family = decoder.names, decoder.architecture
    if family.norm_offset:
        for module in norm_modules(decoder):
            name = f"{module}.weight"
            yield name, View(source=name, offset=family.norm_offset)
    for layer, rope in enumerate(decoder.ropes):
        for name, holder, rows in _linears(decoder, rope):
            if rows is None and not family.is_transposed:
                continue
            module, source = decoder.module(layer, name), decoder.module(layer, holder)
            turned = family.is_transposed
            yield (
                f"{module}.weight",
                View(source=f"{source}.weight", rows=rows, is_transposed=turned),
            )
            yield f"{module}.bias", View(source=f"{source}.bias", rows=rows)
    if names.positions is not None:
        kept = np.arange(decoder.context_length) + family.position_offset
        name = f"{names.positions}.weight"
        yield name, View(source=name, rows=kept)


def norm_modules(decoder: Decoder) -> Iterator[str]:
    """Give the names of a decoder's norms, those of Q and K included."""
    names = decoder.names
    inner = [names.attention_norm, names.attention_post_norm, names.mlp_norm, names.mlp_post_norm]
    if decoder.architecture.qk_norm != "none":
        inner += [names.query_norm, names.key_norm]
    for layer in range(decoder.layers):
        yield from (decoder.module(layer, name) for name in inner if name is not None)
    yield names.last_norm


def _linears(decoder: Decoder, rope: Rope | None) -> Iterator[tuple[str, str, Rows | None]]:
    """Give a layer's linear modules: our name, the name of what holds it, and its rows in there."""
    names, inner = decoder.names, np.arange(decoder.intermediate_size)
    order = _head_order(decoder, rope)
    for name, rows in zip((names.query, names.key, names.value), _qkv_rows(decoder), strict=True):
        if name != names.value and order is not None:
            rows = rows.reshape(-1, decoder.head_size)[:, order].reshape(-1)
        is_moved = names.qkv is not None or (name != names.value and order is not None)
        yield name, names.qkv or name, rows if is_moved else None
    if names.gate is not None:
        yield names.gate, names.gate_up or names.gate, inner if names.gate_up else None
    yield names.up, names.gate_up or names.up, inner + len(inner) if names.gate_up else None
    yield names.attention_output, names.attention_output, None
    yield names.down, names.down, None


def _qkv_rows(decoder: Decoder) -> tuple[Rows, Rows, Rows]:
    """Return the rows of Q, K and V, each in the tensor that holds it."""
    heads, kv_heads, size = decoder.heads, decoder.kv_heads, decoder.head_size
    wide, narrow = heads * size, kv_heads * size
    if decoder.names.qkv is None:
        return np.arange(wide), np.arange(narrow), np.arange(narrow)
    packed = np.arange(wide + 2 * narrow)
    if not decoder.architecture.is_grouped:
        return packed[:wide], packed[wide : wide + narrow], packed[wide + narrow :]
    groups = packed.reshape(kv_heads, heads // kv_heads + 2, size)
    return groups[:, :-2].reshape(-1), groups[:, -2].reshape(-1), groups[:, -1].reshape(-1)


def _head_order(decoder: Decoder, rope: Rope | None) -> Rows | None:
    """Return the order of a head's rows that makes its rotation one of two whole halves.

    Q and K change in the same way, so their products do not. None stands for the order they have.
    """
    pairs_neighbours = decoder.architecture.rotary_pairs == "neighbours"
    if rope is None or (rope.dim == decoder.head_size and not pairs_neighbours):
        return None
    rotated, rest = np.split(np.arange(decoder.head_size), [rope.dim])
    pairs = rotated.reshape(-1, 2).T if pairs_neighbours else rotated.reshape(2, -1)
    return np.concatenate([pairs, rest.reshape(2, -1)], axis=1).reshape(-1)
