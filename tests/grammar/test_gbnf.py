from __future__ import annotations

import json
import random

import numpy as np
import pytest

from radixserve.constraints import Grammar
from radixserve.errors import InvalidRequest
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.grammar.gbnf import gbnf_to_lark
from tests.grammar.vocabularies import byte_compiler, takes
from tests.tiny_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] | # anything plain
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
# Whitespace is optional.
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return byte_compiler()


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        ('root ::= "a" | "b" "c"', ["a", "bc"], ["", "b", "ac"]),
        ('root ::= "a"\n  | "b"', ["a", "b"], ["ab"]),
        ('root ::= ("a"\n"b")', ["ab"], ["a"]),
        ("root ::= [a-c-] [^a-c\\n]", ["ax", "-é"], ["dx", "aa", "a\n"]),
        ("root ::= [\\x41-\\x43\\u00e9\\U0001F600]+", ["ABé😀"], ["a", ""]),
        ('root ::= "\\"\\\\\\n\\t\\r"', ['"\\\n\t\r'], [""]),
        ("root ::= .{2,3}", ["ab", "a\nb"], ["a", "abcd"]),
        ('root ::= "a"{2} "b"{1,} "c"{,2} "d"? "e"*', ["aab", "aabbbccdee"], ["ab", "aa", "aabccc"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= | "a"', ["", "a"], ["aa"]),
        # A lexer that takes the longest piece would never end the first, and take "ab" for the second.
        ('root ::= [a-z]+ "end"', ["fooend", "endend"], ["end", "foo"]),
        (
            'root ::= "(" root ")" | "ab" "x" | [a] "by" | [a-z]+ "e"',
            ["abx", "aby", "(aby)", "(seee)"],
            ["ab", "(abx", "e"],
        ),
        ('root ::= x x\nx ::= "1" | y\ny ::= "2" # comment\n', ["12", "22"], ["1", "3"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
        (JSON, ['{"a": [1, 2.5e3, "x\\n"], "é": {"b":true}}', "{}"], ["[1]", '{"a" 1}', '{"a":01}', "{"]),
    ],
)
def test_the_same_sentences(compiler: ConstraintCompiler, grammar: str, taken: list[str], refused: list[str]) -> None:
    matcher = compiler.compile(Grammar(grammar, "gbnf")).matcher()
    assert [text for text in taken if not takes(matcher, TOKENIZER, text)] == []
    assert [text for text in refused if takes(matcher, TOKENIZER, text)] == []


def test_a_grammar_without_recursion_is_one_lexeme() -> None:
    assert gbnf_to_lark('root ::= x "b"\nx ::= "a"*', "g").startswith("start: TEXT\nTEXT: /")
    assert "TEXT" not in gbnf_to_lark('root ::= "a" root?', "g")
    # Rules that are doubled over and over would make a pattern that nobody can hold.
    doubling = "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(60)) + '\na60 ::= "z"'
    assert len(gbnf_to_lark(doubling, "g")) < 10_000


def test_a_long_chain_of_rules(compiler: ConstraintCompiler) -> None:
    grammar = "root ::= a0\n" + "\n".join(f'a{i} ::= a{i + 1} "x"' for i in range(1000)) + '\na1000 ::= "z"'
    matcher = compiler.compile(Grammar(grammar)).matcher()
    assert takes(matcher, TOKENIZER, "z" + "x" * 1000)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "line 1: there is no rule 'root'"),
        ('foo ::= "a"', "line 1: there is no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' is defined twice"),
        ('root ::= "a" )', "line 1: expected the end of the line"),
        ('root ::= ("a"', r"line 1: expected '\)'"),
        ('root ::= "a', "line 1: the grammar ends inside a literal"),
        ("root ::= [a", "line 1: the grammar ends inside a literal"),
        ("root ::= []", "line 1: an empty set"),
        ("root ::= [b-a]", "line 1: a range of characters ends"),
        ('root ::= "\\q"', r"line 1: unknown escape \\q"),
        ('root ::= "\\ud800"', "line 1: .* is no character"),
        ('root ::= "a"{3,2}', r"line 1: \{3,2\} is not a number"),
        ('root ::= "a"{,}', "line 1: expected a number of repetitions"),
        ('root ::= "a"{9999}', "is not a number of repetitions up to 1000"),
        ("root ::= <think>", "line 1: tokens of the vocabulary"),
        ("root ::= nothing", "rule 'root' names 'nothing', which is no rule"),
        ("root = x", "line 1: expected '::='"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "nested deeper than 100"),
        ('root ::= "a"' + "*" * 101, "nested deeper than 100"),
    ],
)
def test_mistakes_are_named_with_their_line(grammar: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        gbnf_to_lark(grammar, "constraint.text")
    assert (refused.value.param, refused.value.code) == ("constraint.text", "invalid_grammar")


def test_random_documents_of_the_json_grammar_are_json(compiler: ConstraintCompiler) -> None:
    """Walks through the masks; what closes something is preferred now and then, so that they come to an end."""
    matcher = compiler.compile(Grammar(JSON)).matcher()
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), np.uint32)
    finished = 0
    for seed in range(20):
        dice = random.Random(seed)
        walk, tokens = matcher.copy(), list[int]()
        while not walk.stopped and len(tokens) < 400:
            walk.fill_mask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
            closing = [token for token in allowed if token in b'}]"'] if dice.random() < 0.5 else []
            token = dice.choice(closing or [token for token in allowed if token < 256])
            walk.consume(token)
            tokens.append(token)
            if walk.accepting:
                assert isinstance(json.loads(TOKENIZER.decode(tokens)), dict)
                finished += 1
                break
    assert finished > 10
