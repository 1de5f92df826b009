from __future__ import annotations

import json
from typing import Any

import pytest

from radixserve.constraints import Choice, Grammar, JsonSchema, Regex, StructuralTag, Tag, TagContent
from radixserve.errors import InvalidRequest
from radixserve.grammar.compiler import ConstraintCompiler
from tests.grammar.vocabularies import byte_compiler, structural, takes
from tests.tiny_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
BOOLEAN = JsonSchema(json.dumps({"type": "boolean"}))


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return byte_compiler()


def text_tags(**options: Any) -> StructuralTag:
    return structural([Tag("<fn=a>", BOOLEAN, "</fn>"), Tag("<fn=b>", Regex(".*"), "</fn>")], ["<fn="], **options)


def token_tags(**options: Any) -> StructuralTag:
    tags = [Tag("<|im_start|>a\n", BOOLEAN, "\n<s>"), Tag("<|im_start|>b\n", Choice(("x", "y")), "\n<s>")]
    return structural(tags, ["<|im_start|>"], **options)


@pytest.mark.parametrize(
    ("constraint", "taken", "refused"),
    [
        (
            text_tags(),
            ["", "free <text>", "<fn", "x<fn=a>true</fn>", "<fn=a>true</fn> and <fn=b>z</fn>!", "<fn=b></fn></fn>"],
            ["<fn=", "<fn=c>", "<fn=a>1</fn>", "<fn=a>true</fm>", "a <fn=b>x", "<|im_start|>"],
        ),
        (
            text_tags(single=True),
            ["free", "x <fn=a>true</fn>"],
            ["<fn=a>true</fn> more", "<fn=a>true</fn><fn=b>x</fn>"],
        ),
        (text_tags(required=True, single=True), ["<fn=b>x</fn>"], ["", " <fn=b>x</fn>", "<fn=b>x</fn><fn=b>x</fn>"]),
        (
            text_tags(required=True, separator=", "),
            ["<fn=b>x</fn>", "<fn=b>x</fn>, <fn=a>false</fn>"],
            ["", "<fn=b>x</fn>,", "<fn=a>true</fn><fn=a>true</fn>"],
        ),
        (
            token_tags(),
            ["", "free", "x<|im_start|>a\ntrue\n<s>", "<|im_start|>b\nx\n<s><|im_start|>b\ny\n<s> bye"],
            ["<|im_start|>", "<|im_start|>c", "<|im_start|>b\nxy\n<s>", "<s>"],
        ),
        (token_tags(required=True, single=True), ["<|im_start|>a\ntrue\n<s>"], ["", "<|im_start|>a\ntrue\n"]),
    ],
)
def test_tags_are_enforced_and_text_is_free(
    compiler: ConstraintCompiler, constraint: StructuralTag, taken: list[str], refused: list[str]
) -> None:
    matcher = compiler.compile(constraint).matcher()
    assert [text for text in taken if not takes(matcher, TOKENIZER, text)] == []
    assert [text for text in refused if takes(matcher, TOKENIZER, text)] == []


def test_the_characters_of_a_special_token_are_not_the_token(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(token_tags(required=True)).matcher()
    assert matcher.forced_tokens() == [TOKENIZER.id_of("<|im_start|>")]
    assert matcher.try_consume(list(b"<|im_start|>")) == 0
    free = compiler.compile(token_tags()).matcher()
    spelled = list(b"<|im_start|>whatever")
    assert free.try_consume(spelled) == len(spelled) and free.accepting


def test_a_text_trigger_leaves_only_its_tags(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(text_tags()).matcher()
    matcher.try_consume(list(b"say <fn="))
    assert not matcher.accepting and matcher.try_consume(list(b"z")) == 0
    matcher.try_consume(list(b"a>"))
    assert matcher.try_consume(list(b"true")) == 4 and bytes(matcher.forced_tokens()) == b"</fn>"


def test_a_tag_may_end_with_the_models_end_token_if_nothing_follows(compiler: ConstraintCompiler) -> None:
    tags = [Tag("<fn=a>", Grammar('start: "x"+ "y"'), "<|im_end|>")]
    matcher = compiler.compile(structural(tags, ["<fn="], single=True)).matcher()
    matcher.try_consume(list(b"<fn=a>xxy"))
    assert matcher.accepting and matcher.stopped
    with pytest.raises(InvalidRequest, match="use single") as refused:
        compiler.compile(structural(tags, ["<fn="]))
    assert refused.value.param == "constraint.tags[0].end"


@pytest.mark.parametrize(
    ("begin", "triggers", "content", "param"),
    [
        ("<fn>", ["<call"], BOOLEAN, "constraint.tags[0].begin"),
        ("<fn>", ["<fn", "<call"], BOOLEAN, "constraint.triggers"),
        ("<fn>", ["<fn", "n>"], BOOLEAN, "constraint.triggers"),
        ("x<|im_start|>", ["x<|im_start|>"], BOOLEAN, "constraint.triggers"),
        ("<fn>", [""], BOOLEAN, "constraint.triggers"),
        ("<|im_end|>", ["<|im_end|>"], BOOLEAN, "constraint.tags[0].begin"),
        ("<fn>", ["<fn"], JsonSchema("{"), "constraint.tags[0].content.schema"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(
    compiler: ConstraintCompiler, begin: str, triggers: list[str], content: TagContent, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compiler.compile(structural([Tag(begin, content, "</fn>")], triggers))
    assert refused.value.param == param
