"""Grammars over the tokenizers that models come with: byte-level and SentencePiece-like, from files of either kind."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from radixserve.constraints import JsonSchema, Regex, Tag
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.grammar.special_tokens import SpecialTokens, special_token_ids
from radixserve.model.loader import LoadedModel
from radixserve.model.token_bytes import SPACE_MARK
from radixserve.model.tokenizer import SpecialTokens as Roles
from radixserve.model.tokenizer import Tokenizer
from tests.grammar.vocabularies import structural

SCHEMA = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "kind": {"enum": ["alpha beta"]}},
            "required": ["name", "kind"],
            "additionalProperties": False,
        }
    )
)


def sentencepiece_tokenizer() -> Tokenizer:
    """Spaces as U+2581, one before every text; bytes for what the vocabulary lacks; a tool token that is not special."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        SPACE_MARK,
        "a",
        "b",
        "n",
        "ab",
        f"{SPACE_MARK}a",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("a", "b"), (SPACE_MARK, "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)])
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    backend.add_tokens(
        [AddedToken("<tool>", special=False, normalized=False), AddedToken("bbbb", special=False, normalized=False)]
    )
    return Tokenizer(
        backend,
        alphabet="sentencepiece",
        special=Roles(bos_id=1, eos_ids=(2,), unk_id=0),
        vocab_size=300,
        adds_space=True,
    )


def test_a_text_in_the_middle_has_no_space_before_it() -> None:
    tokenizer = sentencepiece_tokenizer()
    for text in ("ab", " ab", "a b", "é", "", "<s>", "\n\n"):
        ids = tokenizer.encode_continuation(text)
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
        assert not tokenizer.special_ids.intersection(ids)


def test_added_tokens_that_are_written_like_control_tokens_are_meant_by_name_only() -> None:
    tokenizer = sentencepiece_tokenizer()
    tool = tokenizer.id_of("<tool>")
    assert tool is not None and tool not in tokenizer.special_ids
    assert special_token_ids(tokenizer) == {0, 1, 2, tool}
    special = SpecialTokens(tokenizer, (2,))
    assert special.in_text == {tool}
    assert special.cut("say <tool>{<s>") == ("say ", tool, "{", 1)
    assert special.cut("") == ()


def test_documents_over_a_vocabulary_with_spaces_in_front() -> None:
    tokenizer = sentencepiece_tokenizer()
    compiler = ConstraintCompiler(tokenizer, tokenizer.eos_ids, seconds=60)
    matcher = compiler.compile(SCHEMA).matcher()
    forced = matcher.forced_tokens()
    assert b"".join(map(tokenizer.token_bytes, forced)) == b'{"name":"'
    assert matcher.try_consume(forced) == len(forced)
    rest = tokenizer.encode_continuation('ab","kind":"alpha beta"}')
    assert matcher.try_consume(rest) == len(rest) and matcher.stopped


def test_a_tool_token_opens_its_tag_and_may_stand_in_text() -> None:
    tokenizer = sentencepiece_tokenizer()
    compiler = ConstraintCompiler(tokenizer, tokenizer.eos_ids, seconds=60)
    tool = tokenizer.id_of("<tool>")
    assert tool is not None
    opened = compiler.compile(structural([Tag("<tool>", Regex("[ab]"), "<tool>")], ["<tool>"])).matcher()
    letter = tokenizer.encode_continuation("a")
    assert opened.try_consume([*letter, tool, *letter, tool, *letter]) == 5 and opened.accepting
    other = compiler.compile(structural([Tag("call:", Regex("[ab]"), ";")], ["call:"])).matcher()
    assert other.try_consume([tool, *letter, tool]) == 3 and other.accepting


def test_forced_tokens_are_the_tokenizers_own(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    compiler = ConstraintCompiler(tokenizer, smollm2.generation.eos_ids, seconds=60)
    matcher = compiler.compile(SCHEMA).matcher()
    forced = matcher.forced_tokens()
    # What follows could be written with a longer token than a quote: that is left to the model.
    assert [tokenizer.token_bytes(token) for token in forced] == [b'{"', b"name"]
    assert matcher.try_consume(forced) == len(forced) and matcher.forced_bytes() == b'":"'
    whole = compiler.compile(Regex("the only sentence there is")).matcher().forced_tokens()
    expected = tokenizer.encode_continuation("the only sentence there is")
    assert whole == expected[: len(whole)] and len(whole) >= len(expected) - 1
    assert not set(whole) & tokenizer.special_ids
