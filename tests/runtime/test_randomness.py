"""The draws are Philox's, evenly spread, and depend on (seed, choice, position) alone."""

from __future__ import annotations

import numpy as np
import pytest

from ortolan_runtime.randomness import Draws, philox, uniforms


def _words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


def _uniform(seed: int, choice: int = 0, position: int = 0) -> float:
    row = (np.array([value], np.int64) for value in (seed, choice, position))
    return float(uniforms(*row)[0])


def _many(count: int, *, seed: int = 7) -> np.ndarray:
    zeros = np.zeros(count, np.int64)
    return uniforms(zeros + seed, zeros, np.arange(count))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_words_that_its_authors_publish(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    words = philox(_words(*counter), _words(*key))
    assert tuple(int(word[0]) for word in words) == expected


def test_a_draw_takes_its_53_bits_from_the_first_two_words() -> None:
    # Seed, choice and position 0 are Philox's counter and key 0.
    bits = (0x6627E8D5 << 21) | (0xE169C58D >> 11)
    assert _uniform(0) == bits / 2**53


def test_draws_fall_evenly_into_256_bins() -> None:
    # Chi-square with 255 degrees of freedom exceeds 390 once in 10 million; the seed is fixed, so
    # the outcome is too.
    counts = np.bincount((_many(256 * 400) * 256).astype(np.int64), minlength=256)
    assert ((counts - 400.0) ** 2 / 400.0).sum() < 390


def test_draws_at_neighbouring_positions_are_uncorrelated() -> None:
    # The correlation of 100,000 independent pairs has deviation 0.0032: 6 of them, 2 in a billion.
    draws = _many(100_001)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.019


def test_draws_of_neighbouring_seeds_and_choices_are_uncorrelated() -> None:
    count = 100_000
    zeros, numbers = np.zeros(count, np.int64), np.arange(count)
    base = uniforms(zeros, zeros, numbers)
    other_seed = uniforms(zeros + 1, zeros, numbers)
    other_choice = uniforms(zeros, zeros + 1, numbers)
    # As above: 6 deviations of the correlation of 100,000 independent pairs.
    assert abs(np.corrcoef(base, other_seed)[0, 1]) < 0.019
    assert abs(np.corrcoef(base, other_choice)[0, 1]) < 0.019


def test_seed_choice_and_position_take_different_places() -> None:
    draws = {_uniform(1, 0, 0), _uniform(0, 1, 0), _uniform(0, 0, 1), _uniform(0, 0, 0)}
    assert len(draws) == 4


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 0])
def test_every_signed_64_bit_integer_is_a_seed_of_its_own(seed: int) -> None:
    assert 0.0 <= _uniform(seed) < 1.0
    assert _uniform(seed) != _uniform(seed ^ 1)


def test_neighbours_beyond_53_bits_are_different_seeds() -> None:
    assert _uniform(2**53) != _uniform(2**53 + 1)


def test_minus_one_is_not_the_largest_32_bit_seed() -> None:
    assert _uniform(-1) != _uniform(2**32 - 1)


def test_positions_beyond_32_bits_do_not_repeat() -> None:
    assert _uniform(5, position=2**32) != _uniform(5, position=0)


def test_a_row_draws_the_same_alone_and_in_any_company() -> None:
    seeds, choices = np.array([3, -3, 3, 2**62]), np.array([0, 1, 2, 3])
    positions = np.array([9, 8, 7, 6])
    together = uniforms(seeds, choices, positions)
    alone = [_uniform(*map(int, row)) for row in zip(seeds, choices, positions, strict=True)]
    assert together.tolist() == alone
    assert uniforms(seeds[::-1], choices[::-1], positions[::-1]).tolist() == alone[::-1]


def test_what_a_sequence_draws_is_read_off_its_positions_in_any_order() -> None:
    draws = Draws(-7, 3)
    positions = [0, 1, 63, 64, 65, 200, 199, 0, 2**32]
    expected = [_uniform(-7, choice=3, position=position) for position in positions]
    assert [draws.at(position) for position in positions] == expected


def test_the_arguments_are_left_as_they_were() -> None:
    seeds, zeros = np.array([-5], np.int64), np.zeros(1, np.int64)
    uniforms(seeds, zeros, zeros)
    assert seeds.tolist() == [-5]
    assert zeros.tolist() == [0]
