"""Shares the range of values between two layers, channel by channel, where nothing else is between.

A channel that ``up`` makes s times smaller and ``down`` reads s times larger changes no result, and
so it is between the values of attention and its output layer. Weights are quantised by a row's
largest magnitude, activations too, so that a channel's s weighs the errors of both. Source of the
idea: Xiao et al., 2022, arXiv:2211.10438; the exponents were found on the default model, where they
make 0.58 of the error of either layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.architectures.family import Decoder
from ortolan_export.source import Float32, SourceRows, Tensors

_ACTIVITY_EXPONENT = 0.3
_WEIGHT_EXPONENT = -0.5
_LEAST_SHARE = 1e-4  # of the most active channel; a silent one would be blown up
_SMALLEST = 1e-30
_STEPS_PER_DOUBLING = 8  # so that the last bits of the activities do not show

Activity = Mapping[str, Float32]


class BalancedTensors:
    """A decoder's tensors with ranges shared before the modules of ``activity``.

    ``activity`` maps modules that read (``watched_modules``) to the root mean square of each of
    their inputs, float32 ``[in]``.
    """

    def __init__(self, tensors: Tensors, decoder: Decoder, activity: Activity) -> None:
        self._tensors = tensors
        self._activity = activity
        pairs = [pair for pair in _pairs(decoder) if pair.reader in activity]
        self._readers = {pair.reader: pair for pair in pairs}
        self._writers = {pair.writer: pair for pair in pairs}
        self._scales: dict[str, Float32] = {}
        self.shapes = tensors.shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        rows = self._tensors.read(name, start, stop)
        module, _, kind = name.rpartition(".")
        if module in self._readers and kind == "weight":
            pair = self._readers[module]
            return rows * self._scale(pair)[pair.rows]
        if module in self._writers:
            scale = self._scale(self._writers[module])[start:stop]
            return rows / scale.reshape(-1, *[1] * (rows.ndim - 1))
        return rows

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return None where a tensor is scaled."""
        module = name.rpartition(".")[0]
        if module in self._readers or module in self._writers:
            return None
        return self._tensors.read_quantised(name, start, stop)

    def _scale(self, pair: _Pair) -> Float32:
        """Return the factor of each row of the writer."""
        if pair.reader not in self._scales:
            columns = np.abs(self._tensors.read(f"{pair.reader}.weight")).max(axis=0)
            weight = np.zeros(self.shapes[f"{pair.writer}.weight"][0], np.float32)
            np.maximum.at(weight, pair.rows, columns)
            power = np.bincount(pair.rows, np.square(self._activity[pair.reader]))
            activity = np.sqrt(power / np.bincount(pair.rows))
            self._scales[pair.reader] = _shares(activity, weight)
        return self._scales[pair.reader]


def watched_modules(decoder: Decoder) -> tuple[str, ...]:
    """Return the modules whose inputs can be balanced."""
    return tuple(pair.reader for pair in _pairs(decoder))


class _Pair(msgspec.Struct, frozen=True):
    """Two modules: column c of ``reader`` reads what row ``rows[c]`` of ``writer`` wrote."""

    reader: str
    writer: str
    rows: NDArray[np.int64]


def _pairs(decoder: Decoder) -> Iterator[_Pair]:
    names, inner = decoder.names, np.arange(decoder.intermediate_size)
    # All query heads of a group read the values of one KV head.
    values = np.arange(decoder.kv_heads * decoder.head_size).reshape(decoder.kv_heads, 1, -1)
    read_by_heads = np.repeat(values, decoder.heads // decoder.kv_heads, axis=1).reshape(-1)
    for layer in range(decoder.layers):
        output, value = (decoder.module(layer, n) for n in (names.attention_output, names.value))
        yield _Pair(output, value, read_by_heads)
        # Without a gate the activation function stands between up and down.
        if names.gate is not None and decoder.mixture is None:
            yield _Pair(decoder.module(layer, names.down), decoder.module(layer, names.up), inner)


def _shares(activity: NDArray[np.floating[Any]], weight: NDArray[np.floating[Any]]) -> Float32:
    """Return factors whose geometric mean is about 1."""
    log = np.zeros(len(weight))
    for exponent, values in ((_ACTIVITY_EXPONENT, activity), (_WEIGHT_EXPONENT, weight)):
        least = max(_LEAST_SHARE * float(values.max()), _SMALLEST)
        log += exponent * np.log2(np.maximum(values, least))
    log = np.round((log - log.mean()) * _STEPS_PER_DOUBLING) / _STEPS_PER_DOUBLING
    shares: Float32 = np.exp2(log).astype(np.float32)
    return shares
