"""Token sequences as bytes, the form in which the cache stores and compares them.

A token id becomes four big-endian bytes, so ``bytes`` comparison is the lexicographic order of the token sequences,
equality of long runs is one ``memcmp``, and a stored key can never be a view of a caller's array.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4

Key = bytes | bytearray


def encode_tokens(tokens: Iterable[int] | npt.NDArray[np.integer]) -> bytes:
    """Token ids (each in ``[0, 2**31)``) as a key of 4 bytes a token."""
    array = tokens if isinstance(tokens, np.ndarray) else np.fromiter(tokens, np.int64)
    return array.astype(">i4").tobytes()


def encode_token(token: int) -> bytes:
    """`encode_tokens` of a single one, without the detour through an array."""
    return token.to_bytes(TOKEN_BYTES, "big")


def decode_token(key: Key, position: int) -> int:
    """The token id at ``position`` of ``key``."""
    return int.from_bytes(key[position * TOKEN_BYTES : (position + 1) * TOKEN_BYTES], "big")


def decode_tokens(key: Key) -> npt.NDArray[np.int32]:
    """The token ids of ``key`` as a new int32 array."""
    return np.frombuffer(key, ">i4").astype(np.int32)


def key_length(key: Key) -> int:
    """Tokens in ``key``."""
    return len(key) // TOKEN_BYTES


def key_slice(key: Key, start: int, end: int) -> bytes:
    """A copy of tokens ``[start, end)`` of ``key``."""
    return bytes(key[start * TOKEN_BYTES : end * TOKEN_BYTES])


def common_tokens(a: bytes, b: bytes) -> int:
    """Length in tokens of the longest common prefix of two keys.

    The first differing bit of the two keys read as big-endian integers tells where they part: linear time, no loop
    in Python.
    """
    size = min(len(a), len(b))
    if len(a) != size:
        a = a[:size]
    if len(b) != size:
        b = b[:size]
    if a == b:
        return size // TOKEN_BYTES
    difference = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return (size * 8 - difference.bit_length()) // (8 * TOKEN_BYTES)
