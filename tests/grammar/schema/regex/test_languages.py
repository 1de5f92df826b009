"""Patterns as languages, against Python's own engine."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.grammar.schema.limits import Budget, Limits
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.patterns import Languages, none_of, read_pattern
from radixserve.grammar.schema.refusal import TOO_COMPLEX, Origin, SchemaRefused
from radixserve.grammar.schema.regex.automaton import Nfa, determinize
from radixserve.grammar.schema.regex.elimination import expression
from radixserve.grammar.schema.regex.parser import parse
from radixserve.grammar.schema.regex.text import anchored, write
from radixserve.grammar.schema.regex.tree import ALL, NOTHING, Chars, UnsupportedPattern, complement, union

HERE = Origin("pattern", "#/pattern")
PATTERNS = [
    "", "a", "^a", "b$", "^$", "^ab?$", "a|b", "^(a|b)*$", "(^a|b$)", "a{2}", "^a{1,2}b{0,}$", "^a{2,}$", "[ab]c", "^[^a]", "a.b",
    "^(?:ab|a)b$", r"\d", r"^\w+$", r"\W", "^(a+)+$", "(a|aa)+$", "^(?<name>a)b", "a*?b", "^a|^b", "a^b", "a$b", "[]", "[^]", r"[\d-]",
    "[a-c]-", "^{$", "a{,2}",
]  # fmt: skip
TEXTS = ["".join(chars) for size in range(5) for chars in itertools.product("abc0", repeat=size)] + [
    "-",
    "{",
    "a{,2}",
    "é",
    "a-",
    "d-",
]


def python(pattern: str) -> re.Pattern[str]:
    """The same expression for Python: named groups and empty classes are written differently there."""
    translated = pattern.replace("(?<", "(?P<").replace("[^]", r"[\s\S]").replace("[]", "(?!)")
    return re.compile(translated.replace("{,2}", r"\{,2\}"), re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_pythons_does(pattern: str) -> None:
    nfa = Nfa([parse(pattern)], Budget(Limits()))
    oracle = python(pattern)
    assert [text for text in TEXTS if nfa.match(text)] == [text for text in TEXTS if oracle.search(text)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_written_pattern_and_its_opposite_are_exact(pattern: str) -> None:
    tree = parse(pattern)
    budget = Budget(Limits())
    dfa = determinize([tree], budget)
    oracle = python(pattern)
    same, again = re.compile(write(tree)), re.compile(anchored(expression(dfa, bool, budget)))
    opposite = re.compile(anchored(expression(dfa, lambda labels: not labels, budget)))
    for text in TEXTS:
        expected = bool(oracle.search(text))
        assert bool(same.search(text)) == expected, text
        assert bool(again.search(text)) == expected, text
        assert bool(opposite.search(text)) != expected, text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_written_is_read_back(pattern: str) -> None:
    tree = parse(pattern)
    back = Nfa([parse(write(tree)), tree], Budget(Limits()))
    assert all(len(back.match(text)) != 1 for text in TEXTS)


def test_a_dot_stops_at_all_line_ends_and_spaces_are_those_of_the_standard() -> None:
    dot, space = (Nfa([parse(pattern)], Budget(Limits())) for pattern in (r"^.$", r"^\s$"))
    assert [char for char in "\n\r\u2028\u2029\x0b\x85" if dot.match(char)] == ["\x0b", "\x85"]
    assert [char for char in "\t\ufeff\u2003\x85\u200b" if space.match(char)] == ["\t", "\ufeff", "\u2003"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "backreference"),
        (r"\k<a>", "backreference"),
        (r"\bx", "word boundary"),
        ("(?<=a)b", "lookbehind"),
        ("a(", "ends too early|unclosed"),
        ("a)", "unbalanced"),
        ("[b-a]", "range in a class"),
        ("*a", "nothing to repeat"),
        (r"\p{Script=Greek}", "Unicode property"),
        (r"\ud800", "surrogate"),
        ("a{3,2}", "repetition"),
        ("a{1000000}", "repetition"),
        ("(" * 100 + ")" * 100, "too deep"),
        (r"\a", "escape"),
    ],
)
def test_what_is_not_read_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(UnsupportedPattern, match=reason):
        parse(pattern)


def test_a_lookahead_inside_is_refused_by_name() -> None:
    languages = Languages(Budget(Limits()))
    pattern = read_pattern("a(?=b)", HERE).positive[0]
    with pytest.raises(SchemaRefused, match=r"pattern at #/pattern: .*lookahead"):
        languages.matches(pattern, "ab")


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?!a)b", "a(?=b)", "^(a(?!b))+$", "^(?=(?!a)b)b"])
@pytest.mark.parametrize("place", ["value", "both", "name"])
def test_a_schema_with_a_lookahead_inside_is_refused_by_name(pattern: str, place: str) -> None:
    schema: dict[str, object] = {"type": "string", "pattern": pattern}
    if place == "both":
        schema["allOf"] = [{"pattern": "c"}]
    elif place == "name":
        schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    with pytest.raises(SchemaRefused, match=r"lookahead"):
        normalize_schema(schema)


def test_lookaheads_at_the_start_become_further_patterns() -> None:
    found = read_pattern("^(?=.*b)(?!c)a", HERE)
    assert [write(pattern.tree) for pattern in found.positive] == [write(parse("^.*b")), "^a"]
    assert [write(pattern.tree) for pattern in found.negative] == ["^c"]


@given(st.lists(st.text("abc", max_size=4), min_size=1, max_size=6))
def test_all_strings_but_a_few(names: list[str]) -> None:
    oracle = re.compile(none_of(names))
    assert all(bool(oracle.search(text)) == (text not in names) for text in TEXTS)


def test_combinations_are_told_apart() -> None:
    languages = Languages(Budget(Limits()))
    starts, ends, neither = (read_pattern(text, HERE).positive[0] for text in ("^a", "a$", "^b+$"))
    assert languages.possible([starts, ends], [])
    assert languages.possible([starts], [ends])
    assert not languages.possible([starts, neither], [])


def test_nothing_is_an_expression_too() -> None:
    budget = Budget(Limits())
    assert expression(determinize([parse("a")], budget), lambda labels: 7 in labels, budget) == NOTHING


@pytest.mark.parametrize("pattern", ["a.{30}$", "(a{1,200}){1,200}", "^((((a{9}){9}){9}){9}){9}$"])
def test_automata_that_explode_end_early(pattern: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        determinize([parse(pattern)], Budget(Limits()))
    assert caught.value.code == TOO_COMPLEX


def test_sets_of_characters() -> None:
    letters = union(((0x62, 0x63),), ((0x61, 0x61),), ((0x64, 0x70),))
    assert letters == ((0x61, 0x70),)
    assert complement(complement(letters)) == letters
    assert complement(()) == ALL
    category = parse(r"\p{Lu}")
    assert isinstance(category, Chars)
    assert any(low <= ord("É") <= high for low, high in category.ranges)
