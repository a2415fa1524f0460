"""Turns the residual stream by one orthogonal matrix, so that no channel of it stands out.

Activations are quantised by each row's largest magnitude, which a few channels of a trained model
decide for all others. Between RMS norms without gains the whole stream can be turned: what writes
to it is multiplied by a matrix Q, and what reads from it by Q's transpose. Each gain goes into the
linear layers behind its norm. What the model computes stays the same.

A tied head reads by the very table that writes. The gain in front of it cannot go into that table,
so one matrix of the stream's width, ``turn_name``, stands between norm and head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ortolan_export.architectures.family import Decoder
from ortolan_export.source import Float32, SourceRows, Tensors

_SEED = 20  # any; the same for every export, so that the same source gives the same bundle


class Rotation:
    """A random orthogonal matrix Q of ``width`` that is applied without being written out.

    A Hadamard matrix of the largest power of two that divides the width, times a random orthogonal
    one of the rest, with random signs before it: a thousand times cheaper than a dense one.
    """

    def __init__(self, width: int) -> None:
        rng = np.random.default_rng([_SEED, width])
        self._rest = width // (width & -width)
        self._signs = rng.choice(np.array([-1, 1], np.float32), width)
        triangular = np.linalg.qr(rng.standard_normal((self._rest, self._rest)))
        self._orthogonal = (triangular.Q * np.sign(np.diag(triangular.R))).astype(np.float32)

    def apply(self, rows: Float32) -> Float32:
        """Return ``rows @ Q`` for float32 ``[..., width]``."""
        apart = (rows * self._signs).reshape(-1, rows.shape[-1] // self._rest, self._rest)
        return _hadamard(apart @ self._orthogonal).reshape(rows.shape)

    def turned(self, gain: Float32) -> Float32:
        """Return ``Q.T @ diag(gain) @ Q``, float32 ``[width, width]``."""
        return self.apply(np.ascontiguousarray(self.apply(np.diag(gain)).T))


class RotatedTensors:
    """A decoder's tensors with its residual stream turned; shapes and names stay."""

    def __init__(self, tensors: Tensors, decoder: Decoder) -> None:
        assert decoder.can_be_rotated
        self._tensors = tensors
        self._decoder = decoder
        self._rotation = Rotation(decoder.hidden_size)
        self._readers = dict(_readers(decoder))
        self._writers = frozenset(_writers(decoder))
        self._norms = frozenset(_norms(decoder))
        self._turn = turn_name(decoder)
        self._last_written: tuple[str, Float32] | None = None
        turn = {self._turn: (decoder.hidden_size,) * 2} if decoder.is_tied else {}
        self.shapes: Mapping[str, tuple[int, ...]] = {**tensors.shapes, **turn}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        if name == self._turn:
            gain = self._gain(self._decoder.names.last_norm)
            return self._rotation.turned(gain)[start:stop]
        if name in self._norms:
            return np.ones(self.shapes[name], np.float32)[start:stop]
        module, _, kind = name.rpartition(".")
        if module in self._writers:
            return self._written(name)[start:stop]
        rows = self._tensors.read(name, start, stop)
        if module not in self._readers or kind == "bias":
            return rows
        norm = self._readers[module]
        return self._rotation.apply(rows if norm is None else rows * self._gain(norm))

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return None where a tensor is turned."""
        module = name.rpartition(".")[0]
        if module in self._readers or module in self._writers:
            return None
        return self._tensors.read_quantised(name, start, stop)

    def _gain(self, norm: str) -> Float32:
        return self._tensors.read(f"{norm}.weight")

    def _written(self, name: str) -> Float32:
        """Return a writer's weight ``Q.T @ weight`` or bias, kept because slices come in turn."""
        if self._last_written is None or self._last_written[0] != name:
            whole = self._tensors.read(name)
            turned = self._rotation.apply(np.ascontiguousarray(whole.T)).T
            self._last_written = name, np.ascontiguousarray(turned)
        return self._last_written[1]


def turn_name(decoder: Decoder) -> str:
    """Return the name of the matrix between the last norm and a tied head."""
    return f"{decoder.names.last_norm}.turn"


def _readers(decoder: Decoder) -> Iterator[tuple[str, str | None]]:
    """Give the modules that read the residual stream, each with the norm before it.

    The embedding's rows are the stream itself, so they turn as a reader's do.
    """
    names = decoder.names
    yield names.embedding, None
    if not decoder.is_tied:
        yield names.head, names.last_norm
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


def _hadamard(blocks: Float32) -> Float32:
    """Multiply the middle axis of float32 ``[n, size, rest]`` by a Hadamard matrix."""
    count, size, rest = blocks.shape
    half = 1
    while half < size:
        pairs = blocks.reshape(count, size // (2 * half), 2, half, rest)
        blocks = np.stack(
            [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2
        )
        half *= 2
    scaled: NDArray[np.float32] = blocks.reshape(count, size, rest) * np.float32(size**-0.5)
    return scaled
