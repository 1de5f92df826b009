from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.engine.detokenizer import IncrementalDetokenizer

SPECIAL = 1000


@dataclass
class FakeTokenizer:
    """Token i < 256 is byte i; SPECIAL is a control token; the rest of the vocabulary is added as it is needed."""

    special_ids: frozenset[int] = frozenset({SPECIAL})
    added: list[bytes] = field(default_factory=list)

    def token_bytes(self, token_id: int, /) -> bytes:
        if token_id == SPECIAL:
            return b"<|end|>"
        return bytes([token_id]) if token_id < 256 else self.added[token_id - 2000]

    def tokens(self, *pieces: bytes) -> list[int]:
        """One token for each of ``pieces``."""
        self.added += pieces
        return list(range(2000 + len(self.added) - len(pieces), 2000 + len(self.added)))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, *(at % (len(data) + 1) for at in cuts), len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


def stream(detokenizer: IncrementalDetokenizer, tokens: list[int], chunk: int = 1) -> list[str]:
    """Push ``chunk`` tokens at a time; what each push and the end gave."""
    parts = [detokenizer.push(tokens[start : start + chunk]) for start in range(0, len(tokens), chunk)]
    parts.append(detokenizer.finish())
    assert detokenizer.text == "".join(parts)
    return parts


def shared_beginning(texts: list[str]) -> str:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in columns)


CUTS = st.lists(st.integers(0, 1000), max_size=30)


# --- Bytes to characters ----------------------------------------------------------------------------------------------


def test_every_kind_of_code_point_split_at_every_byte() -> None:
    """Each class of UTF-8 lead and second byte, all its edges, and a stride through all planes: never a U+FFFD."""
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xCFFF, 0xD000, 0xD7FF, 0xE000, 0xFFFC, 0xFFFE, 0xFFFF]
    edges += [0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF, 0xFEFF, 0x1F600, 0x200D]
    points = sorted({*edges, *range(0, 0x110000, 997)} - set(range(0xD800, 0xE000)))
    for point in points:
        char = chr(point)
        data = char.encode()
        detokenizer = IncrementalDetokenizer(FakeTokenizer())
        assert stream(detokenizer, list(data)) == [""] * (len(data) - 1) + [char, ""]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=20), CUTS, st.integers(1, 4), st.booleans())
def test_text_survives_any_split(text: str, cuts: list[int], chunk: int, stops: bool) -> None:
    tokenizer = FakeTokenizer()
    tokens = tokenizer.tokens(*cut(text.encode(), cuts))
    detokenizer = IncrementalDetokenizer(tokenizer, stop=("no such text in it" * 2,) if stops else ())
    assert "".join(stream(detokenizer, tokens, chunk)) == text
    assert detokenizer.stopped is None
    assert detokenizer.num_tokens == len(tokens)


# Bytes that begin, continue and break sequences, so that every malformed prefix turns up.
AWKWARD = st.lists(
    st.sampled_from([b"a", b"\x80", b"\xbf", b"\xc0", b"\xc3", b"\xe0", b"\xe2", b"\xa0", b"\xed", b"\xf0", b"\x90"])
    | st.sampled_from([b"\xf4", b"\x8f", b"\xf5", b"\xff", "é".encode(), "€".encode(), "😀".encode(), b"\xed\xa0\x80"])
    | st.binary(max_size=3),
    max_size=12,
).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(AWKWARD, CUTS, st.integers(1, 3))
def test_stream_equals_one_decoding_of_everything(data: bytes, cuts: list[int], chunk: int) -> None:
    tokenizer = FakeTokenizer()
    tokens = tokenizer.tokens(*cut(data, cuts))
    assert "".join(stream(IncrementalDetokenizer(tokenizer), tokens, chunk)) == data.decode(errors="replace")


@settings(deadline=None, max_examples=200)
@given(AWKWARD)
def test_only_bytes_that_can_still_become_a_character_wait(data: bytes) -> None:
    """After each byte the text is what all continuations have in common; these reach every completion of a prefix."""
    rests = [b"", b"a", *(second + b"\x80\x80" for second in (b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xbf"))]
    rests += [rest[:length] for rest in rests[2:] for length in (1, 2)]
    detokenizer = IncrementalDetokenizer(FakeTokenizer())
    for end in range(1, len(data) + 1):
        detokenizer.push([data[end - 1]])
        assert detokenizer.text == shared_beginning([(data[:end] + rest).decode(errors="replace") for rest in rests])
    assert detokenizer.text + detokenizer.finish() == data.decode(errors="replace")


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"\xffa", ["\ufffd", "a", ""]),
        (b"\xe2\x28", ["", "\ufffd(", ""]),
        (b"\xed\xa0\x80", ["", "\ufffd\ufffd", "\ufffd", ""]),
        (b"\xf0\x9f\x98", ["", "", "", "\ufffd"]),
        (b"\xf0\x9f\xe2\x82\xac", ["", "", "\ufffd", "", "€", ""]),
        (b"\xc0\x80", ["\ufffd", "\ufffd", ""]),
        (b"\xf4\x90", ["", "\ufffd\ufffd", ""]),
    ],
)
def test_invalid_bytes_are_replaced_as_soon_as_they_are_certain(data: bytes, parts: list[str]) -> None:
    assert stream(IncrementalDetokenizer(FakeTokenizer()), list(data)) == parts


def test_pushing_nothing_and_empty_tokens() -> None:
    tokenizer = FakeTokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push([]) == ""
    assert detokenizer.push(tokenizer.tokens(b"", b"")) == ""
    assert (detokenizer.text, detokenizer.finish(), detokenizer.num_tokens) == ("", "", 2)


def test_finishing_twice_gives_the_rest_once() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("ab",))
    assert detokenizer.push([ord("a")]) == ""
    assert detokenizer.finish() == "a"
    assert detokenizer.finish() == ""
    assert detokenizer.text == "a"


# --- Special tokens and the leading space -----------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_special_tokens_are_left_out_unless_asked_for(stop: tuple[str, ...]) -> None:
    tokens = [SPECIAL, ord("a"), SPECIAL, 0xC3, SPECIAL, 0xA9]
    skipping = IncrementalDetokenizer(FakeTokenizer(), stop=stop)
    assert "".join(stream(skipping, tokens)) == "aé"
    assert skipping.num_tokens == 6
    keeping = IncrementalDetokenizer(FakeTokenizer(), stop=stop, skip_special_tokens=False)
    assert "".join(stream(keeping, tokens)) == "<|end|>a<|end|>\ufffd<|end|>\ufffd"


def test_a_special_token_that_is_kept_can_stop() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("<|end|>",), skip_special_tokens=False)
    assert detokenizer.push([ord("a"), SPECIAL, ord("b")]) == "a"
    assert (detokenizer.stopped, detokenizer.num_tokens) == ("<|end|>", 2)


# --- Stop strings -----------------------------------------------------------------------------------------------------


def reference(
    pieces: list[bytes], stops: list[str], *, include_stop: bool, min_tokens: int
) -> tuple[str, str | None, int]:
    """Text, stop string and tokens consumed, by looking at the whole text after each token."""
    for count in range(min_tokens + 1, len(pieces) + 1):
        before = len(_certain(b"".join(pieces[: count - 1])))
        text = _certain(b"".join(pieces[:count]))
        for end in range(before + 1, len(text) + 1):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            if found:
                stop = max(found, key=len)
                return text[: end if include_stop else end - len(stop)], stop, count
    return b"".join(pieces).decode(errors="replace"), None, len(pieces)


def _certain(data: bytes) -> str:
    """The characters that are complete; ``data`` is the beginning of valid UTF-8."""
    return data.decode(errors="ignore")


@settings(deadline=None, max_examples=300)
@given(
    st.text("abé😀", max_size=24),
    st.lists(st.text("abé😀", min_size=1, max_size=5), min_size=1, max_size=4),
    CUTS,
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 6),
)
def test_stop_strings_agree_with_a_search_of_the_whole_text(
    text: str, stops: list[str], cuts: list[int], chunk: int, include_stop: bool, min_tokens: int
) -> None:
    tokenizer = FakeTokenizer()
    pieces = cut(text.encode(), cuts)
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stops, include_stop=include_stop, min_tokens=min_tokens)
    stream(detokenizer, tokenizer.tokens(*pieces), chunk)
    expected = reference(pieces, stops, include_stop=include_stop, min_tokens=min_tokens)
    assert (detokenizer.text, detokenizer.stopped, detokenizer.num_tokens) == expected


@settings(deadline=None, max_examples=200)
@given(st.text("abc", max_size=30), st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4), CUTS)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    tokenizer = FakeTokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stops)
    seen = ""
    for piece, token in zip(pieces := cut(text.encode(), cuts), tokenizer.tokens(*pieces), strict=True):
        detokenizer.push([token])
        if detokenizer.stopped is not None:
            return
        seen += piece.decode()
        held = max(k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k]))
        assert detokenizer.text == seen[: len(seen) - held]


def test_a_stop_string_across_pushes_never_leaks() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("STOP",))
    assert [detokenizer.push([byte]) for byte in b"xSTSTOPy"] == ["x", "", "", "ST", "", "", "", ""]
    assert (detokenizer.stopped, detokenizer.num_tokens, detokenizer.finish()) == ("STOP", 7, "")
    assert detokenizer.text == "xST"


def test_nothing_is_emitted_after_a_stop() -> None:
    tokenizer = FakeTokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=("!",), include_stop=True)
    assert detokenizer.push(tokenizer.tokens(b"Hi! you", b"more")) == "Hi!"
    assert detokenizer.push([65]) == ""
    assert detokenizer.finish() == ""
    assert (detokenizer.text, detokenizer.num_tokens) == ("Hi!", 1)


def test_a_beginning_of_a_stop_string_is_released_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("STOP",))
    assert stream(detokenizer, list(b"aSTO")) == ["a", "", "", "", "STO"]
    assert detokenizer.stopped is None


def test_min_tokens_ignores_what_ends_early_but_not_what_only_begins_early() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("ab",), min_tokens=3)
    assert "".join(stream(detokenizer, list(b"abab"))) == "ab"
    assert (detokenizer.stopped, detokenizer.num_tokens) == ("ab", 4)


def test_a_replacement_at_the_end_can_complete_a_stop_string() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("a\ufffd",))
    assert stream(detokenizer, [ord("b"), ord("a"), 0xE2]) == ["b", "", "", ""]
    assert (detokenizer.text, detokenizer.stopped) == ("b", "a\ufffd")
