"""``tokenizer.json`` and ``tokenizer_config.json``: alphabets, special tokens, what goes around a text, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownTokenizer
from radixserve.model.huggingface_tokenizer import load_tokenizer
from radixserve.model.token_bytes import BYTE_CHARACTERS
from radixserve.model.tokenizer import Tokenizer

BOS, EOS, UNFLAGGED = 257, 258, 259
SPACE = "\u2581"


def byte_level() -> tokenizers.Tokenizer:
    """Bytes, one merge, two flagged special tokens and an end of turn that nothing flags; begins texts with ``<s>``."""
    tokens = [*BYTE_CHARACTERS, "th", "<s>", "</s>", "<|end|>"]
    backend = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """Bytes as fallback, two pieces, spaces written as U+2581 with one before the text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), SPACE, "a", SPACE + "a"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [(SPACE, "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    return backend


def loaded(
    path: Path,
    backend: tokenizers.Tokenizer,
    config: dict[str, Any] | None = None,
    *,
    vocab_size: int = 300,
    eos_ids: tuple[int, ...] = (),
) -> Tokenizer:
    (path / "tokenizer.json").write_text(backend.to_str())
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(path, vocab_size=vocab_size, eos_ids=eos_ids)


def test_a_byte_level_file(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "<|end|>", "lstrip": False}, "pad_token": None}
    tokenizer = loaded(tmp_path, byte_level(), config, eos_ids=(EOS,))
    assert tokenizer.encode("the é<|end|>") == [256, ord("e"), 32, 0xC3, 0xA9, UNFLAGGED]
    assert tokenizer.encode("a<|end|></s>", parse_special=False) == list(b"a<|end|></s>")
    assert tokenizer.special_ids == {BOS, EOS, UNFLAGGED}, "the end token is special though the file does not flag it"
    assert tokenizer.eos_ids == (EOS, UNFLAGGED), "those of the model, then the tokenizer's own"
    assert (tokenizer.bos_id, tokenizer.special.pad_id, tokenizer.add_bos) == (BOS, None, True)
    assert tokenizer.encode("a", add_special=True) == [BOS, 97]
    assert [tokenizer.token_bytes(token) for token in (97, 0xE9, 256, BOS)] == [b"a", b"\xe9", b"th", b"<s>"]
    assert tokenizer.token_bytes(299) == b"" and tokenizer.vocab_size == 300, "the model's vocabulary is padded"


def test_a_sentencepiece_file(tmp_path: Path) -> None:
    backend = sentencepiece()
    tokenizer = loaded(tmp_path, backend, {"unk_token": "<unk>", "eos_token": "</s>"})
    for text in ("a a", "é", "  a", "日本 a", "a</s>", ""):
        ids = tokenizer.encode(text)
        assert ids == backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.adds_space and tokenizer.special.unk_id == 0
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3" and tokenizer.token_bytes(261) == b" a"
    assert tokenizer.decode([1, 261]) == "<s>a" and tokenizer.decode([1, 261], skip_special=True) == "a"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [BOS, 97]),
        ({"add_bos_token": True}, [BOS, 97]),
        ({"add_bos_token": False}, [97]),
        ({"add_eos_token": True}, [BOS, 97, EOS]),
        ({"add_bos_token": False, "add_eos_token": True}, [97, EOS]),
    ],
)
def test_what_goes_around_a_text(config: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, byte_level(), {"bos_token": "<s>", "eos_token": "</s>", **config})
    assert tokenizer.encode("a", add_special=True) == expected
    assert tokenizer.add_bos == (expected[0] == BOS)


def test_a_smaller_model_vocabulary_hides_tokens(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, byte_level(), {"eos_token": "</s>"}, vocab_size=EOS)
    assert tokenizer.eos_ids == () and tokenizer.id_of("</s>") is None and tokenizer.special_ids == {BOS}


def test_truncation_and_padding_of_a_training_run_are_left_out(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8, pad_id=EOS, pad_token="</s>")
    tokenizer = loaded(tmp_path, backend)
    assert tokenizer.encode("abcdefghij") == list(b"abcdefghij")
    assert tokenizer.encode("abcdefghij", parse_special=False) == list(b"abcdefghij")
    assert tokenizer.encode("a", add_special=True) == [BOS, 97]


@pytest.mark.parametrize("template", ["<s>", "<s> </s>"])
def test_a_post_processor_that_changes_the_text_is_refused(template: str, tmp_path: Path) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    with pytest.raises(UnknownTokenizer, match="post_processor changes a text"):
        loaded(tmp_path, backend)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "WordPiece"}}, "model.type is 'WordPiece'"),
        ({"model": None}, "model.type is None"),
        ({"decoder": None}, "decoder is None"),
        ({"decoder": {"type": "WordPiece"}}, r"decoder is \['WordPiece'\]"),
    ],
)
def test_kinds_whose_bytes_are_not_known_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**json.loads(byte_level().to_str()), **change}))
    with pytest.raises(UnknownTokenizer, match=message):
        load_tokenizer(tmp_path, vocab_size=300, eos_ids=())


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, vocab_size=300, eos_ids=())
    with pytest.raises(ModelLoadError, match="bos_token must be a token's name"):
        loaded(tmp_path, byte_level(), {"bos_token": 5})
    with pytest.raises(ModelLoadError, match="add_bos_token must be true or false"):
        loaded(tmp_path, byte_level(), {"bos_token": "<s>", "add_bos_token": "yes"})
    description = json.loads(byte_level().to_str())
    description["model"]["merges"] = [["x", "yz"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, vocab_size=300, eos_ids=())
