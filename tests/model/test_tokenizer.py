"""Tokenizers: exact ids against an independent pipeline, exact bytes of every token, special tokens."""

from __future__ import annotations

import random
import threading
import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from radixserve.errors import InvalidRequest
from radixserve.model.gguf import GGUFFile
from radixserve.model.loader import LoadedModel
from radixserve.model.location import find_model
from radixserve.model.tokenizer import SpecialTokens, Tokenizer
from tests.tiny_model import byte_tokenizer

SAMPLES = [
    "Hello world", "  leading", "trailing  ", "\n\n\tmixed \r\n white", "x = f(a)[1:] # comment", "don't we'll I'M",
    "3.14159 and 1,234,567", "naïve café ünïcode", "日本語のテキスト", "emoji 👩‍👩‍👧 🇫🇷 ok", "العربية", "a\u0301 combining",
    "<tag attr='v'>", "snake_case CamelCase", "", " ", "\x00\x01", "½ ² ٣", "𝔘𝔫𝔦", "\u200b\u2028",
]  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    """The same vocabulary in the library's own parts: digits one by one, then GPT-2's byte level."""
    metadata = GGUFFile.open(find_model("smollm2")).metadata
    tokens, merges = metadata.strings("tokenizer.ggml.tokens"), metadata.strings("tokenizer.ggml.merges")
    assert tokens is not None and merges is not None
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def strings(count: int) -> list[str]:
    rng = random.Random(5)
    alphabet = "abc XYZ 0189 .,'\"!?-_()\n\t éüß 日本 👍½"
    made = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for _ in range(count)]
    made += ["".join(chr(rng.choice([rng.randrange(32, 0x3000), rng.randrange(0x1F300, 0x1FAFF)])) for _ in range(12))
             for _ in range(count)]  # fmt: skip
    return made


def test_ids_equal_an_independent_pipeline(smollm2: LoadedModel, reference: tokenizers.Tokenizer) -> None:
    for text in [*SAMPLES, *strings(1500)]:
        ids = smollm2.tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        assert smollm2.tokenizer.decode(ids) == text


@given(text=st.text())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_round_trip_of_any_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    try:
        ids = tokenizer.encode(text, parse_special=False)
    except InvalidRequest:
        assert any(0xD800 <= ord(character) < 0xE000 for character in text)
        return
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()


def test_special_tokens_in_a_text(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    end = tokenizer.id_of("<|im_end|>")
    assert end is not None and end in tokenizer.special_ids
    assert tokenizer.encode("a<|im_end|>b")[1] == end
    plain = tokenizer.encode("a<|im_end|>b", parse_special=False)
    assert end not in plain and tokenizer.decode(plain) == "a<|im_end|>b"
    assert tokenizer.decode([*tokenizer.encode("a"), end], skip_special=True) == "a"
    assert tokenizer.encode("x", add_special=True) == tokenizer.encode("x"), "this model adds no beginning of text"


def test_bad_input_is_refused(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.encode("\ud800")
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(InvalidRequest, match="outside the vocabulary"):
            tokenizer.decode([token])


def test_every_token_has_its_bytes(smollm2: LoadedModel) -> None:
    table = smollm2.tokenizer.all_token_bytes()
    assert len(table) == 49152 and all(table)
    assert {bytes([value]) for value in range(32, 127)} < set(table)


def test_a_long_text_stops_no_other_thread() -> None:
    tokenizer = byte_tokenizer()
    text = "never a dull moment, " * 20_000
    turns = 0
    seen: list[int] = []

    def encode() -> None:
        before = turns
        ids = tokenizer.encode(text)
        seen.append(turns - before)
        assert ids[:5] == list(b"never") and len(ids) == len(text)

    thread = threading.Thread(target=encode)
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    thread.join()
    # Under the interpreter's lock it would be none, or the one or two around it.
    assert seen[0] > 20


def test_the_fewest_tokens_of_a_text_are_known_without_encoding(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    longest = max(map(len, tokenizer.all_token_bytes()))
    for text in [*SAMPLES, *strings(200), " " * 5000, "=" * 5000, "<|im_end|>" * 100, "\x04" * 900]:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.least_tokens("a" * (longest * 10 + 1)) == 11
    assert byte_tokenizer().least_tokens("a" * 1_000_000) > 10_000


@pytest.mark.parametrize("loss", ["normalizer", "stripping", "splitting"])
def test_where_tokens_may_stand_for_more_text_the_fewest_are_not_known(loss: str) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({text: index for index, text in enumerate(letters)}, []))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = level

    def made() -> Tokenizer:
        return Tokenizer(backend, alphabet="byte_level", special=SpecialTokens(), vocab_size=300)

    assert made().least_tokens("a" * 10) == 10
    if loss == "normalizer":
        backend.normalizer = normalizers.NFKC()
    elif loss == "stripping":
        backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), level])
    assert made().least_tokens("a" * 10) == 0


def test_bytes_that_the_vocabulary_lacks_are_not_counted(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.encode("\x04" * 1000) == [] and tokenizer.least_tokens("\x04" * 1000) == 0


def test_long_texts_get_the_ids_of_short_ones() -> None:
    tokenizer = byte_tokenizer()
    text = "".join(SAMPLES) + "<|im_end|>"
    for parse_special in (True, False):
        once = tokenizer.encode(text, parse_special=parse_special)
        assert tokenizer.encode(text * 200, parse_special=parse_special) == once * 200
    with pytest.raises(InvalidRequest):
        tokenizer.encode("a" * 20_000 + "\ud83d")
