"""Turns the residual stream, and the values of attention, so that no channel of them stands out.

Activations are quantised by each row's largest magnitude, which a few channels of a trained model
decide for all others. Between RMS norms without gains the whole stream can be turned: what writes
to it is multiplied by an orthogonal matrix Q, and what reads from it by Q's transpose. Each gain
goes into the linear layers behind its norm. What the model computes stays the same.

A tied head reads by the very table that writes, so its gain cannot go into that table: a matrix of
the stream's width stands between norm and head. Where embedding and head must stay as they are, one
stands behind the embedding too.

Attention averages the values of a head over positions, so each head's values can be turned as well,
and turned back in the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.architectures.family import Decoder
from ortolan_export.source import Float32, SourceRows, Tensors

_SEED = 20  # any; the same for every export, so that the same source gives the same bundle


class Rotation:
    """A random orthogonal matrix Q of ``width`` that is applied without being written out.

    Random signs, then the Kronecker product of two small matrices: a Hadamard matrix, and one that
    is Hadamard times random orthogonal, since few widths are powers of two.
    """

    def __init__(self, width: int) -> None:
        rng = np.random.default_rng([_SEED, width])
        power = width & -width  # the largest power of two that divides the width
        rest = width // power
        left = min(power, 1 << (round(np.log2(width)) // 2))
        self._signs = rng.choice(np.array([-1, 1], np.float32), width)
        self._left = _hadamard(left).astype(np.float32)
        odd = _orthogonal(rest, rng)
        self._right = np.kron(_hadamard(power // left), odd).astype(np.float32)

    def apply(self, rows: Float32) -> Float32:
        """Return ``rows @ Q`` for float32 ``[..., width]``."""
        apart = (rows * self._signs).reshape(-1, len(self._left), len(self._right))
        turned: Float32 = np.matmul(self._left, apart @ self._right).reshape(rows.shape)
        return turned


class RotatedTensors:
    """A decoder's tensors with its residual stream turned; names stay, and shapes.

    ``keeps_tables`` leaves embedding and head as they are, for another graph to share them.
    """

    def __init__(self, tensors: Tensors, decoder: Decoder, *, keeps_tables: bool) -> None:
        assert decoder.can_be_rotated
        self._tensors = tensors
        self._last_norm = decoder.names.last_norm
        self._rotation = Rotation(decoder.hidden_size)
        self.readers = dict(_readers(decoder))
        if not keeps_tables:
            self.readers |= _tables(decoder)
        self._writers = frozenset(_writers(decoder))
        self._norms = frozenset(_norms(decoder))
        self._turn_in = turn_name(decoder.names.embedding) if keeps_tables else None
        needs_turn_out = keeps_tables or decoder.is_tied
        self._turn_out = turn_name(self._last_norm) if needs_turn_out else None
        self._last_written: tuple[str, Float32] | None = None
        turns = (name for name in (self._turn_in, self._turn_out) if name is not None)
        square = (decoder.hidden_size,) * 2
        self.shapes: Mapping[str, tuple[int, ...]] = {
            **tensors.shapes,
            **dict.fromkeys(turns, square),
        }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        if name in (self._turn_in, self._turn_out):
            return self._turn(name)[start:stop]
        if name in self._norms:
            return np.ones(self.shapes[name], np.float32)[start:stop]
        module, _, kind = name.rpartition(".")
        if module in self._writers:
            return self._written(name)[start:stop]
        rows = self._tensors.read(name, start, stop)
        if module not in self.readers or kind == "bias":
            return rows
        norm = self.readers[module]
        return self._rotation.apply(rows if norm is None else rows * self._gain(norm))

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return None where a tensor is turned."""
        module = name.rpartition(".")[0]
        if module in self.readers or module in self._writers:
            return None
        return self._tensors.read_quantised(name, start, stop)

    def _turn(self, name: str) -> Float32:
        """Return the matrix behind the embedding, or the one before the head."""
        identity = np.eye(self.shapes[name][0], dtype=np.float32)
        if name == self._turn_in:
            return self._rotation.apply(identity)
        gained = self._rotation.apply(identity).T * self._gain(self._last_norm)
        return gained if self._turn_in is not None else self._rotation.apply(gained)

    def _gain(self, norm: str) -> Float32:
        return self._tensors.read(f"{norm}.weight")

    def _written(self, name: str) -> Float32:
        """Return a writer's weight ``Q.T @ weight`` or bias, kept because slices come in turn."""
        if self._last_written is None or self._last_written[0] != name:
            whole = self._tensors.read(name)
            turned = self._rotation.apply(np.ascontiguousarray(whole.T)).T
            self._last_written = name, np.ascontiguousarray(turned)
        return self._last_written[1]


class RotatedValues:
    """A decoder's tensors with the values of each attention head turned."""

    def __init__(self, tensors: Tensors, decoder: Decoder) -> None:
        names, layers = decoder.names, range(decoder.layers)
        self._tensors = tensors
        self._head_size = decoder.head_size
        self._rotation = Rotation(decoder.head_size)
        self._values = {decoder.module(layer, names.value) for layer in layers}
        self.readers = {decoder.module(layer, names.attention_output) for layer in layers}
        self.shapes = tensors.shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        if name.rpartition(".")[0] in self._values:
            whole = self._tensors.read(name)
            turned = self._by_heads(np.ascontiguousarray(whole.T)).T
            return np.ascontiguousarray(turned)[start:stop]
        rows = self._tensors.read(name, start, stop)
        module, _, kind = name.rpartition(".")
        return self._by_heads(rows) if module in self.readers and kind == "weight" else rows

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return None where a tensor is turned."""
        module = name.rpartition(".")[0]
        if module in self._values or module in self.readers:
            return None
        return self._tensors.read_quantised(name, start, stop)

    def _by_heads(self, rows: Float32) -> Float32:
        apart = rows.reshape(*rows.shape[:-1], -1, self._head_size)
        return self._rotation.apply(apart).reshape(rows.shape)


class Prepared(msgspec.Struct, frozen=True):
    """Tensors that compute the same, and the modules whose inputs have no outliers now."""

    tensors: Tensors
    flat: frozenset[str] = frozenset()


def flatten_activations(tensors: Tensors, decoder: Decoder, *, is_shared: bool) -> Prepared:
    """Turn all that can be turned.

    Where ``is_shared``, another graph uses the same tables and KV cache, which then stay.
    """
    flat: set[str] = set()
    if decoder.can_be_rotated:
        tensors = RotatedTensors(tensors, decoder, keeps_tables=is_shared)
        flat.update(tensors.readers)
    if not is_shared:
        tensors = RotatedValues(tensors, decoder)
        flat.update(tensors.readers)
    return Prepared(tensors, frozenset(flat))


def turn_name(module: str) -> str:
    """Return the name of the matrix that turns what ``module`` gives."""
    return f"{module}.turn"


def _tables(decoder: Decoder) -> dict[str, str | None]:
    """Return embedding and head with the norm before each.

    The embedding's rows are the stream itself, so they turn as a reader's do.
    """
    names = decoder.names
    tables: dict[str, str | None] = {names.embedding: None}
    return tables if decoder.is_tied else {**tables, names.head: names.last_norm}


def _readers(decoder: Decoder) -> Iterator[tuple[str, str | None]]:
    """Give the layers' modules that read the residual stream, each with the norm before it."""
    names = decoder.names
    mlp_norm = names.mlp_norm or names.attention_norm  # of a parallel layer
    for layer in range(decoder.layers):
        for name, norm in (
            (names.query, names.attention_norm),
            (names.key, names.attention_norm),
            (names.value, names.attention_norm),
            (names.gate, mlp_norm),
            (names.up, mlp_norm),
        ):
            if name is not None and norm is not None:
                yield decoder.module(layer, name), decoder.module(layer, norm)


def _writers(decoder: Decoder) -> Iterator[str]:
    for layer in range(decoder.layers):
        yield decoder.module(layer, decoder.names.attention_output)
        yield decoder.module(layer, decoder.names.down)


def _norms(decoder: Decoder) -> Iterator[str]:
    """Give the gains that become ones."""
    names = decoder.names
    for layer in range(decoder.layers):
        for name in (names.attention_norm, names.mlp_norm):
            if name is not None:
                yield f"{decoder.module(layer, name)}.weight"
    yield f"{names.last_norm}.weight"


def _hadamard(size: int) -> NDArray[np.float64]:
    """Return a Hadamard matrix of a power of two, scaled to be orthogonal; it is symmetric."""
    matrix: NDArray[np.float64] = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: NDArray[np.float64] = matrix * size**-0.5
    return scaled


def _orthogonal(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    factors = np.linalg.qr(rng.standard_normal((size, size)))
    orthogonal: NDArray[np.float64] = factors.Q * np.sign(np.diag(factors.R))
    return orthogonal
