"""Counter-based random numbers: every draw is a pure function of (seed, sample index, position).

There is no generator state, so a draw cannot depend on what was drawn before it, on the other rows of its batch, or on
how often a request was preempted.

The bijection is Philox 4x32 with 10 rounds: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 of four counter words under two key words; all words are in [0, 2**32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample: int, position: int) -> float:
    """The draw in [0, 1) that belongs to the token at ``position`` of sample ``sample``; a multiple of 2**-53.

    ``seed`` is any integer, taken modulo 2**64 (it is the key); ``sample`` is in [0, 2**32), ``position`` in
    [0, 2**64).
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    high, low, _, _ = philox((position & _MASK, position >> 32, sample, 0), key)
    return float((high << 21) | (low >> 11)) * 2.0**-53
