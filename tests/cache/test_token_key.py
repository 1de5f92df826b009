"""Token keys against naive versions on lists."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radixserve.cache.token_key import (
    common_tokens,
    decode_token,
    decode_tokens,
    encode_token,
    encode_tokens,
    key_length,
    key_slice,
)
from tests.cache.oracle import common_prefix

TOKENS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1)), max_size=40)
PROPERTY = settings(deadline=None, derandomize=True, max_examples=200)


@PROPERTY
@given(TOKENS)
def test_a_key_holds_its_tokens(tokens: list[int]) -> None:
    key = encode_tokens(tokens)
    assert key_length(key) == len(tokens)
    assert decode_tokens(key).tolist() == tokens
    assert decode_tokens(key).dtype == np.int32
    for dtype in (np.int32, np.int64, np.uint32):
        assert encode_tokens(np.array(tokens, dtype)) == key
    assert encode_tokens(iter(tokens)) == key
    assert b"".join(map(encode_token, tokens)) == key
    assert [decode_token(key, position) for position in range(len(tokens))] == tokens


@PROPERTY
@given(TOKENS, TOKENS)
def test_keys_sort_as_their_token_lists(a: list[int], b: list[int]) -> None:
    assert (encode_tokens(a) < encode_tokens(b)) == (a < b)
    assert encode_tokens(a).startswith(encode_tokens(b)) == (a[: len(b)] == b)


@PROPERTY
@given(TOKENS, TOKENS, TOKENS)
@example([], [], [])
@example([1], [256], [256])
@example([], [0x01000000], [0x01000001])
@example([5], [0], [])
@example([0, 0], [0x7FFFFFFF], [0])
def test_the_common_prefix_is_counted_in_whole_tokens(shared: list[int], a: list[int], b: list[int]) -> None:
    left, right = shared + a, shared + b
    assert common_tokens(encode_tokens(left), encode_tokens(right)) == common_prefix(left, right)


@PROPERTY
@given(TOKENS, st.integers(0, 45), st.integers(0, 45))
def test_a_slice_is_a_copy_of_tokens(tokens: list[int], start: int, end: int) -> None:
    key = bytearray(encode_tokens(tokens))
    piece = key_slice(key, start, end)
    assert type(piece) is bytes
    assert decode_tokens(piece).tolist() == tokens[start:end]
    key[:] = b"\xff" * len(key)
    assert decode_tokens(piece).tolist() == tokens[start:end]


def test_a_decoded_array_is_the_callers_own() -> None:
    key = bytearray(encode_tokens([1, 2, 3]))
    tokens = decode_tokens(key)
    key[:] = encode_tokens([7, 8, 9])
    tokens[0] = 5
    assert tokens.tolist() == [5, 2, 3]
