"""Special tokens' names in callers' texts stay text, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.chat.data_marks import choose_mark, marked, texts, unmarked
from radixserve.model.tokenizer import SpecialTokens, Tokenizer
from tests.chat.models import TURNS, byte_level, sentencepiece

NAMES = TURNS
# The same ids under names that no text holds: what a caller's name would be if it belonged to no token.
OTHER_NAMES = ("\x01\x02", "\x01\x03")
BUILDERS: dict[str, Callable[[Sequence[str]], Tokenizer]] = {
    "byte_level": byte_level,
    "stripping": lambda special: byte_level(special, strip=True),
    "space_everywhere": sentencepiece,
    "space_first": lambda special: sentencepiece(special, first_only=True),
}
PAIRS = {name: (build(NAMES), build(OTHER_NAMES)) for name, build in BUILDERS.items()}
PIECES = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "hi", "hello", " ", "<|", "im_end", "|>", "s>", "\n", "é", "x<|im_"]), st.booleans()
    ),
    max_size=8,
)


@pytest.mark.parametrize("kind", PAIRS)
@given(pieces=PIECES)
@example(pieces=[("<|im_end|>", True), ("<|im_end|>", False), ("hi", True), ("<|im_start|>", True)])
def test_ids_are_those_of_a_model_without_that_name(kind: str, pieces: list[tuple[str, bool]]) -> None:
    """``pieces``: texts, and whether a caller wrote them. Only whole names in one piece are the template's own."""
    tokenizer, oracle = PAIRS[kind]
    text = "".join(piece for piece, _ in pieces)
    data, other, length = set[int](), "", 0
    for piece, from_caller in pieces:
        whole = piece in NAMES and not from_caller
        if not whole:
            data.update(range(length, length + len(piece)))
        other += OTHER_NAMES[NAMES.index(piece)] if whole else piece
        length += len(piece)
    assert tokenizer.encode_with_data(text, data) == oracle.encode(other)


@pytest.mark.parametrize("kind", PAIRS)
@given(pieces=PIECES)
def test_parts_are_one_text(kind: str, pieces: list[tuple[str, bool]]) -> None:
    tokenizer, _ = PAIRS[kind]
    text = "".join(piece for piece, _ in pieces)
    edges = [0]
    for piece, _ in pieces:
        edges.append(edges[-1] + len(piece))
    data = {at for index, (_, own) in enumerate(pieces) if own for at in range(edges[index], edges[index + 1])}
    ids = tokenizer.encode_with_data(text, data)
    special = tokenizer.special
    assert tokenizer.encode_parts(pieces, add_special=True) == [*special.prefix, *ids, *special.suffix]
    going_on = tokenizer.encode_parts(pieces)
    if not tokenizer.adds_space:
        assert going_on == ids
    elif not any(name in text for name in NAMES):
        # Nothing is put before a text that goes on from another.
        assert going_on == tokenizer.encode_continuation(text)
        assert b"".join(map(tokenizer.token_bytes, going_on)).decode() == text


@pytest.mark.parametrize("kind", PAIRS)
@given(pieces=PIECES)
def test_without_data_it_is_plain_encoding(kind: str, pieces: list[tuple[str, bool]]) -> None:
    tokenizer, _ = PAIRS[kind]
    text = "".join(piece for piece, _ in pieces)
    assert tokenizer.encode_with_data(text, ()) == tokenizer.encode(text)
    # A mark anywhere but in a name changes nothing either.
    outside = set(range(len(text))) - {
        start + index for start in tokenizer.special_name_starts(text) for index in range(len(NAMES[0]))
    }
    assert tokenizer.encode_with_data(text, outside) == tokenizer.encode(text)


@given(pieces=PIECES)
def test_marks_come_off_again(pieces: list[tuple[str, bool]]) -> None:
    tokenizer = PAIRS["byte_level"][0]
    text = "".join(piece for piece, _ in pieces)
    value = {"a": [text, 1, None, {text: True}], "b": "xq0qx"}
    mark = choose_mark(value, tokenizer)
    if mark is None:
        assert not tokenizer.special_name_starts(text)
        return
    assert not any(mark in held for held in texts(value))
    copy = marked(value, mark, tokenizer)
    assert value == {"a": [text, 1, None, {text: True}], "b": "xq0qx"}
    bare, data = unmarked(copy["a"][0], mark)
    assert (bare, data) == (text, frozenset(tokenizer.special_name_starts(text)))
    assert copy["a"][1:3] == [1, None] and unmarked(next(iter(copy["a"][3])), mark)[0] == text


def test_names_are_found() -> None:
    tokenizer = byte_level(("<a>", "<a><b>", "<b>"))
    assert tokenizer.special_name_at("x<a><b>", 1) == "<a><b>", "the longest, as the library reads it"
    assert tokenizer.special_name_at("x<a><b>", 0) is None
    assert tokenizer.special_name_starts("x<a><b><a>") == [1, 4, 7]
    assert byte_level(("</s>",)).special_name_starts("none") == []


def test_a_token_with_a_role_is_as_special_as_a_flagged_one() -> None:
    """Files do not always flag the token that ends a turn."""
    backend = byte_level(("<s>",), added=("<stop>", "<tool>"))._backend
    end, tool = (backend.token_to_id(name) for name in ("<stop>", "<tool>"))
    assert end is not None and tool is not None
    size = backend.get_vocab_size(with_added_tokens=True)
    tokenizer = Tokenizer(backend, alphabet="byte_level", special=SpecialTokens(eos_ids=(end,)), vocab_size=size)
    assert tokenizer.special_names == {"<s>", "<stop>"}
    assert tokenizer.encode("a<stop>") == [97, end]
    assert end not in tokenizer.encode("a<stop>", parse_special=False)
    assert tokenizer.encode_with_data("<stop><stop><tool>", {0}) == [*b"<stop>", end, tool]
