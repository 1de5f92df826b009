"""Tokenizers rebuilt from GGUF metadata: how each pre-type cuts, SentencePiece by scores, special tokens, refusals."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from radixserve.errors import ModelLoadError, UnknownTokenizer
from radixserve.model.gguf_metadata import Metadata
from radixserve.model.gguf_tokenizer import build_tokenizer
from radixserve.model.token_bytes import BYTE_CHARACTERS
from radixserve.model.tokenizer import Tokenizer

# Patterns as the models' authors publish them; ours are written without the case-insensitive group.
_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PUBLISHED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _REST
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def built(values: dict[str, Any], changes: dict[str, Any]) -> Tokenizer:
    held = {f"tokenizer.ggml.{key}": value for key, value in {**values, **changes}.items() if value is not None}
    return build_tokenizer(Metadata(held, "file"), "file", vocab_size=len(values["tokens"]) + 3)


def byte_level(**changes: Any) -> Tokenizer:
    """A byte-level vocabulary with one merge, a word that no merge makes, a user-defined token and control tokens."""
    tokens = [*BYTE_CHARACTERS, "<s>", "</s>", "<|im_end|>", "<think>", "th", "word"]
    kinds = [NORMAL] * 256 + [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * 2
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": np.array(kinds),
        "merges": ["t h"],
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    return built(values, changes)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the text is cut into before anything is merged."""
    cutter = tokenizer._backend.pre_tokenizer
    assert cutter is not None
    return [text[slice(*place)] for _, place in cutter.pre_tokenize_str(text)]


TEXTS = [
    "Hello world, it's 12345 o'clock; I'LL see y'all!!  \n\n  Ünïcode 日本語テキスト ½²٣ 7x8",
    "def f(x):\n\treturn x ** 2 # $5+3<=9~|^  \r\n\r\n  end",
    " leading and trailing   ",
    "a==b 12345",
]


@pytest.mark.parametrize(
    ("names", "oracle"),
    [
        (("gpt-2",), [pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        (
            ("smollm", "starcoder", "refact", "command-r"),
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        ),
        (("llama-bpe", "llama3", "llama-v3"), [pre_tokenizers.Split(Regex(_PUBLISHED % "{1,3}"), "isolated")]),
        (("qwen2", "deepseek-r1-qwen"), [pre_tokenizers.Split(Regex(_PUBLISHED % ""), "isolated")]),
    ],
)
def test_pre_types_cut_as_published(names: tuple[str, ...], oracle: list[pre_tokenizers.PreTokenizer]) -> None:
    rng = random.Random(3)
    texts = [*TEXTS, *("".join(rng.choices("abT'sSLl 019 \n\r\t.,!é日½", k=30)) for _ in range(200))]
    cutter = pre_tokenizers.Sequence(oracle)
    for name in names:
        tokenizer = byte_level(pre=name)
        for text in texts:
            expected = [text[slice(*place)] for _, place in cutter.pre_tokenize_str(text)]
            assert pieces(tokenizer, text) == expected, (name, text)
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", ["a", "==", "b", " ", "123", "45"]),
        ("gpt-2", ["a", "==", "b", " 12345"]),
        ("smollm", ["a", "==", "b", " ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", ["a", "==", "b", " ", "123", "45"]),
        ("qwen2", ["a", "==", "b", " ", "1", "2", "3", "4", "5"]),
    ],
)
def test_numbers_by_pre_type(name: str, expected: list[str]) -> None:
    assert pieces(byte_level(pre=name), TEXTS[3]) == expected


def test_only_llama_takes_a_whole_word_that_no_merge_makes() -> None:
    assert byte_level(pre="llama-bpe").encode("word") == [261]
    assert byte_level(pre="gpt-2").encode("word") == list(b"word")


def test_who_begins_a_text() -> None:
    def around(**changes: Any) -> list[int]:
        return byte_level(**changes).encode("x", add_special=True)

    assert around() == [ord("x")]
    assert around(pre="llama-bpe") == [256, ord("x")]
    assert around(pre="llama-bpe", add_bos_token=False) == [ord("x")]
    assert around(add_bos_token=True, add_eos_token=True) == [256, ord("x"), 257]
    assert around(add_bos_token=True, bos_token_id=None) == [ord("x")]
    assert byte_level(add_bos_token=True).add_bos and not byte_level().add_bos


def test_special_and_user_defined_tokens() -> None:
    tokenizer = byte_level(padding_token_id=258, unknown_token_id=256)
    assert tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.encode("a<think></s>") == [97, 259, 257]
    assert tokenizer.encode("<think></s>", parse_special=False) == [259, *b"</s>"]
    assert tokenizer.decode([97, 259, 257], skip_special=True) == "a<think>"
    assert tokenizer.token_bytes(259) == b"<think>"
    assert (tokenizer.special.pad_id, tokenizer.special.unk_id) == (258, 256)
    padding = range(262, 265)
    assert [tokenizer.token_bytes(token) for token in padding] == [b""] * 3, "ids beyond the tokens are padding"


def test_end_tokens_are_those_named_and_those_known() -> None:
    assert byte_level().eos_ids == (257, 258), "<|im_end|> ends a turn wherever it is a control token"
    assert byte_level(eos_token_id=258, eot_token_id=256, eom_token_id=257).eos_ids == (258, 256, 257)
    kinds = np.array([NORMAL] * 256 + [CONTROL] + [NORMAL] * 5)
    assert byte_level(eos_token_id=None, token_type=kinds).eos_ids == ()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"pre": "klingon"}, UnknownTokenizer, "tokenizer.ggml.pre is 'klingon'"),
        ({"pre": None}, UnknownTokenizer, "tokenizer.ggml.pre is None"),
        ({"model": "t5"}, UnknownTokenizer, "tokenizer.ggml.model is 't5'"),
        ({"model": None}, UnknownTokenizer, "holds no tokenizer"),
        ({"tokens": None}, UnknownTokenizer, "holds no tokenizer"),
        ({"tokens": ["a", "b", "a"]}, ModelLoadError, "holds a token twice"),
        ({"token_type": np.array([1, 1])}, ModelLoadError, "tokenizer.ggml.token_type is not an array of 262"),
        ({"merges": None}, ModelLoadError, "merges is missing"),
        ({"merges": ["th"]}, ModelLoadError, "'th', which is not a pair"),
        ({"merges": ["t h e"]}, ModelLoadError, "'t h e', which is not a pair"),
        ({"merges": ["t "]}, ModelLoadError, "'t ', which is not a pair"),
        ({"merges": ["x y"]}, ModelLoadError, "merges do not fit"),
        ({"bos_token_id": 262}, ModelLoadError, "bos_token_id = 262 is outside"),
        ({"eos_token_id": -1}, ModelLoadError, "eos_token_id = -1 is outside"),
        ({"bos_token_id": "<s>"}, ModelLoadError, "bos_token_id is of type str"),
        ({"add_bos_token": 1}, ModelLoadError, "add_bos_token is of type int, not bool"),
    ],
)
def test_metadata_that_is_not_understood_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        byte_level(**changes)


SPACE = "\u2581"


def sentencepiece(scored: dict[str, float], **changes: Any) -> Tokenizer:
    """A SentencePiece vocabulary: unknown, beginning, end, all bytes, then the scored pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *scored]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(scored)]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": np.array(kinds),
        "scores": np.array([0.0] * 259 + list(scored.values()), np.float32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return built(values, changes)


PIECES = {SPACE: -9.0, "a": -8.0, "b": -8.0, "ab": -1.0, SPACE + "a": -2.0, SPACE + "ab": -3.0, "ba": -0.5}


def names(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_name(token) for token in tokenizer.encode(text, **options)]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = sentencepiece(PIECES)
    assert names(tokenizer, "ab") == [SPACE + "ab"]
    assert names(tokenizer, "aba") == [SPACE + "a", "ba"], "ba has the better score, whichever comes first"
    assert names(tokenizer, "é") == [SPACE, "<0xC3>", "<0xA9>"]
    assert names(tokenizer, "a", add_special=True) == ["<s>", SPACE + "a"]
    assert names(tokenizer, "a</s>b") == [SPACE + "a", "</s>", SPACE, "b"]
    for text in ("ab", "aba b", "é", " a", "日本", "  a  b  "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3" and tokenizer.token_bytes(259) == b" "
    assert tokenizer.decode(tokenizer.encode("</s>", parse_special=False)) == "</s>"


def test_sentencepiece_without_a_space_before_the_text() -> None:
    tokenizer = sentencepiece(PIECES, add_space_prefix=False)
    assert names(tokenizer, "ab a") == ["ab", SPACE + "a"]
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


def test_sentencepieces_first_control_token_begins_a_text_if_none_is_named() -> None:
    assert sentencepiece(PIECES, bos_token_id=None).encode("a", add_special=True)[0] == 1
    assert not sentencepiece(PIECES, add_bos_token=False).add_bos


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": np.zeros(3, np.float32)}, "scores is not an array of 266 numbers"),
        ({"unknown_token_id": 266}, "unknown_token_id = 266 is outside the vocabulary"),
    ],
)
def test_damaged_sentencepiece_vocabularies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        sentencepiece(PIECES, **changes)


def best_first(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE as it is defined: join the best-scored neighbours, leftmost first, until none is a piece."""
    parts = list(text)
    while True:
        joined = [(-scores[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not joined:
            return parts
        _, at = min(joined)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


@given(
    words=st.lists(st.text("abc", min_size=2, max_size=5), max_size=12, unique=True),
    text=st.text("abc ", min_size=1, max_size=16),
    seed=st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_sentencepiece_equals_its_definition(words: list[str], text: str, seed: random.Random) -> None:
    order = [*"abc", SPACE, *words]
    seed.shuffle(order)
    scores = {piece: -float(rank) for rank, piece in enumerate(order)}
    assert names(sentencepiece(scores, add_space_prefix=False), text) == best_first(text.replace(" ", SPACE), scores)
