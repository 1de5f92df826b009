from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.runtime.random_numbers import philox, uniform

ONES = 0xFFFFFFFF


def test_philox_gives_the_published_answers() -> None:
    """The known answers that the authors of the generator publish: zeros, ones, and digits of pi."""
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ONES, ONES, ONES, ONES), (ONES, ONES)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(counter, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@settings(deadline=None, max_examples=50)
@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_draws_are_53_bit_fractions_below_one(seed: int, sample: int, position: int) -> None:
    value = uniform(seed, sample, position)
    assert 0.0 <= value < 1.0
    assert (value * 2.0**53).is_integer()
    assert value == uniform(seed, sample, position)


def test_a_draw_is_the_top_of_the_first_two_words() -> None:
    assert uniform(0, 0, 0) * 2.0**53 == 0x6627E8D5E169C58D >> 11


def test_every_part_of_the_key_counts() -> None:
    seeds = (0, 1, 2**32, 2**63, -1, 2**64 - 2)
    draws = {uniform(seed, sample, position) for seed in seeds for sample in range(8) for position in (0, 1, 2, 2**32)}
    assert len(draws) == len(seeds) * 8 * 4
    assert uniform(-1, 3, 5) == uniform(2**64 - 1, 3, 5), "a seed counts modulo 2**64"


def test_draws_are_uniform_along_positions_samples_and_seeds() -> None:
    """Chi-square with 63 degrees of freedom stays below its 0.999 quantile, 103.4, and so do pairs of neighbours."""
    count = 6400
    lines = (
        [uniform(7, 0, i) for i in range(count)],
        [uniform(7, i, 0) for i in range(count)],
        [uniform(i, 0, 0) for i in range(count)],
    )
    for draws in lines:
        pairs = [int(a * 8) * 8 + int(b * 8) for a, b in zip(draws[::2], draws[1::2], strict=True)]
        for cells in ([int(value * 64) for value in draws], pairs):
            expected = len(cells) / 64
            assert sum((cells.count(cell) - expected) ** 2 / expected for cell in range(64)) < 103.4
