"""Matrices in 4 bits by blocks of columns: how a source's own blocks, or any values, get there.

A value is ``scale * (code - zero_point) + rest``, with a whole zero point. Where a source's blocks
start between two whole zero points (Q4_1), the rest, constant over a block, is what is left: codes
and scales stay as the source has them. It is 0 for every other source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.source import BlockSize, Float32, SourceRows, Tensors, row_slices

OWN_BLOCK_SIZE: BlockSize = 32  # of every type of GGUF that is kept
# The largest with which MatMulNBits gives a row the same bits among any number of rows at accuracy
# level 4: with larger ones its kernels for one row and for two disagree, on AVX-512 VNNI in
# onnxruntime 1.32.
EXACT_BLOCK_SIZE: BlockSize = 32
MIDDLE = 8  # the zero point of a symmetric block, which the operator assumes when it is told none
_LAST_CODE = 15
_OWN_BYTES = OWN_BLOCK_SIZE // 2
# Shorter steps cut a block's largest value off and place all others better.
_SHRINKAGES = (1.0, 0.95, 0.9, 0.85)
_SMALLEST_SCALE = 1e-30
_FIT_ELEMENTS = 1 << 17  # how much is fitted at once: what a CPU's cache holds

UInt8 = NDArray[np.uint8]


class FourBits(msgspec.Struct, frozen=True):
    """Rows of a matrix in blocks; two codes lie in a byte, the earlier one in its low half.

    ``codes`` uint8 ``[rows, blocks, half a block]``, ``scales`` float32, ``zero_points`` uint8 and
    ``rests`` float32 ``[rows, blocks]``.
    """

    codes: UInt8
    scales: Float32
    zero_points: UInt8
    rests: Float32

    @property
    def block_size(self) -> int:
        """Return how many columns share a scale."""
        return 2 * int(self.codes.shape[-1])

    @property
    def is_symmetric(self) -> bool:
        """Return whether every zero point is the middle."""
        return bool((self.zero_points == MIDDLE).all())

    @property
    def has_rests(self) -> bool:
        """Return whether any block lies beside the grid of whole zero points."""
        return bool(self.rests.any())


def read_four_bits(tensors: Tensors, module: str, block_size: BlockSize) -> FourBits:
    """Return a module's weight: the source's own blocks where it has any, else the nearest.

    A source with blocks of its own must not be asked for another ``block_size``: ``own_blocks``.
    """
    name = f"{module}.weight"
    parts: list[FourBits] = []
    for start, stop in row_slices(tensors, module):
        source = tensors.read_quantised(name, start, stop)
        kept = None if source is None else keep_blocks(source)
        assert kept is None or kept.block_size == block_size
        parts.append(kept or nearest_blocks(tensors.read(name, start, stop), block_size))
    return side_by_side(parts)


def side_by_side(parts: list[FourBits]) -> FourBits:
    """Return the rows of all ``parts`` as one matrix."""
    return FourBits(
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zero_points=np.concatenate([part.zero_points for part in parts]),
        rests=np.concatenate([part.rests for part in parts]),
    )


def own_blocks(tensors: Tensors, modules: Iterable[str]) -> str | None:
    """Return the type of the first blocks that would be kept, None where there are none."""
    for module in modules:
        source = tensors.read_quantised(f"{module}.weight", 0, 1)
        if source is not None and source.kind in _UNPACKERS:
            return source.kind
    return None


def keep_blocks(source: SourceRows) -> FourBits | None:
    """Return a source's own blocks, None for a type that is not made of such."""
    unpack = _UNPACKERS.get(source.kind)
    if unpack is None:
        return None
    codes, scales, offsets = unpack(source.data)
    divisors = np.where(scales == 0, np.float32(1), scales)
    zero_points = np.clip(np.rint(-offsets / divisors), 0, _LAST_CODE)
    rests = (offsets + scales * zero_points).astype(np.float32)
    return FourBits(_packed(codes), scales, zero_points.astype(np.uint8), rests)


def nearest_blocks(matrix: Float32, block_size: int) -> FourBits:
    """Return symmetric blocks close to ``matrix``, float32 ``[rows, columns]``.

    A last block that is not full is filled with zeros.
    """
    rows, columns = matrix.shape
    blocks = -(-columns // block_size)
    padded = np.zeros((rows, blocks * block_size), np.float32)
    padded[:, :columns] = matrix
    codes = np.empty((rows, blocks, block_size // 2), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    step = max(1, _FIT_ELEMENTS // (blocks * block_size))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        fitted, scales[part] = _fit(padded[part].reshape(-1, blocks, block_size))
        codes[part] = _packed(fitted)
    return FourBits(codes, scales, np.full_like(scales, MIDDLE, np.uint8), np.zeros_like(scales))


def packed_zero_points(zero_points: UInt8) -> UInt8:
    """Return ``[rows, blocks]`` as the operator wants them: two to a byte, rows apart."""
    even = np.full((len(zero_points), -(-zero_points.shape[1] // 2) * 2), MIDDLE, np.uint8)
    even[:, : zero_points.shape[1]] = zero_points
    return _packed(even)


def _packed(codes: UInt8) -> UInt8:
    packed: UInt8 = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return packed


def _fit(values: Float32) -> tuple[UInt8, Float32]:
    """Return the codes and scales with the least squared error among a few, block by block.

    The codes -8..7 reach further down than up, so the scale of a block takes the sign that gives
    its largest value the -8, or the opposite one.
    """
    place = np.abs(values).argmax(axis=-1)[..., None]
    largest = np.take_along_axis(values, place, axis=-1)
    best_codes = np.empty(values.shape, np.uint8)
    best_scales = np.zeros(largest.shape, np.float32)
    best_errors = np.full(largest.shape, np.inf, np.float32)
    for codes, scales in _candidates(values, largest):
        errors = np.square(codes * scales - values).sum(axis=-1, keepdims=True)
        is_better = errors < best_errors
        np.copyto(best_errors, errors, where=is_better)
        np.copyto(best_scales, scales, where=is_better)
        np.copyto(best_codes, (codes + MIDDLE).astype(np.uint8), where=is_better)
    return best_codes, best_scales[..., 0]


def _candidates(values: Float32, largest: Float32) -> Iterator[tuple[Float32, Float32]]:
    """Give codes -8..7 and, for each, the scales that suit them best."""
    for sign in (-1.0, 1.0):
        for shrinkage in _SHRINKAGES:
            scales = largest * np.float32(sign * shrinkage / MIDDLE)
            scales = np.where(np.abs(scales) < _SMALLEST_SCALE, np.float32(1), scales)
            codes = np.clip(np.rint(values / scales), -MIDDLE, MIDDLE - 1)
            weight = np.square(codes).sum(axis=-1, keepdims=True)
            fitted = (codes * values).sum(axis=-1, keepdims=True) / np.maximum(weight, 1)
            yield codes, fitted


def _unpack_q4_0(data: UInt8) -> tuple[UInt8, Float32, Float32]:
    """Return codes, scales and offsets: a scale in float16, then the codes of half a block each."""
    blocks = data.reshape(len(data), -1, 2 + _OWN_BYTES)
    scales = _float16(blocks, 0)
    return _halves(blocks[..., 2:]), scales, scales * np.float32(-MIDDLE)


def _unpack_q4_1(data: UInt8) -> tuple[UInt8, Float32, Float32]:
    """Return codes, scales and offsets: as in Q4_0, with the offset after the scale."""
    blocks = data.reshape(len(data), -1, 4 + _OWN_BYTES)
    return _halves(blocks[..., 4:]), _float16(blocks, 0), _float16(blocks, 2)


def _float16(blocks: UInt8, start: int) -> Float32:
    raw = np.ascontiguousarray(blocks[..., start : start + 2])
    return raw.view(np.float16)[..., 0].astype(np.float32)


def _halves(packed: UInt8) -> UInt8:
    """Return 32 codes of 16 bytes: the low halves come first."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


_UNPACKERS: Mapping[str, Callable[[UInt8], tuple[UInt8, Float32, Float32]]] = {
    "Q4_0": _unpack_q4_0,
    "Q4_1": _unpack_q4_1,
}
