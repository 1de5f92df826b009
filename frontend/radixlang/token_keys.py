"""Token sequences as bytes: four to a token, so comparing and storing long ones is cheap.

The order of the bytes in a token is the machine's; keys are compared within a process and never leave it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

TokenKey: TypeAlias = bytes

WIDTH = array("I").itemsize


def token_key(tokens: Sequence[int]) -> TokenKey:
    """The key of ``tokens``, ids from 0 to 2**32 - 1; `len(key) == len(tokens) * WIDTH`."""
    return array("I", tokens).tobytes()


def tokens_of(key: TokenKey) -> list[int]:
    """The token ids that ``key`` stands for."""
    return array("I", key).tolist()


def common_tokens(first: TokenKey, second: TokenKey) -> int:
    """How many tokens the two have in common from the beginning. Linear in the shorter one."""
    size = min(len(first), len(second))
    first, second = first[:size], second[:size]
    if first == second:
        return size // WIDTH
    differing = int.from_bytes(first, "big") ^ int.from_bytes(second, "big")
    return (size - (differing.bit_length() + 7) // 8) // WIDTH
