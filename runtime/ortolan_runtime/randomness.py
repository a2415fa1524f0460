"""The draw for (seed, choice, position): counter-based, so it has no state and needs no order.

The generator is Philox 4x32 with 10 rounds: Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", SC 2011. The seed is its key; choice and position are its counter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit words, held in 64 bits so that products do not overflow

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Numbers that are computed at a time: 64 take as long as one.
_AHEAD = 64


class Draws:
    """The numbers that one choice of one seed draws, of which some are computed ahead."""

    def __init__(self, seed: int, choice: int) -> None:
        self._seed = seed
        self._choice = choice
        self._first = 0
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """Return the number in [0, 1) for ``position``, which counts generated tokens from 0."""
        if not 0 <= position - self._first < len(self._numbers):
            self._first, positions = position, np.arange(position, position + _AHEAD)
            seeds, choices = np.full(_AHEAD, self._seed), np.full(_AHEAD, self._choice)
            self._numbers = uniforms(seeds, choices, positions).tolist()
        return self._numbers[position - self._first]


def uniforms(
    seeds: npt.NDArray[np.int64], choices: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each (seed, choice, position), with 53 random bits.

    All arguments are int64 ``[rows]``; choices and positions must not be negative.
    """
    seed, choice, position = (a.astype(np.uint64) for a in (seeds, choices, positions))
    counter = (position & _LOW, position >> _HALF, choice & _LOW, choice >> _HALF)
    words = philox(counter, (seed & _LOW, seed >> _HALF))
    bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Return the four output words of Philox 4x32-10 for each counter and key."""
    a, b, c, d = counter
    low_key, high_key = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _HALF) ^ b ^ low_key, second & _LOW
        c, d = (first >> _HALF) ^ d ^ high_key, first & _LOW
        low_key, high_key = (low_key + _WEYL[0]) & _LOW, (high_key + _WEYL[1]) & _LOW
    return a, b, c, d
