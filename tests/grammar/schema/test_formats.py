"""Formats as patterns."""

from __future__ import annotations

import datetime as dt

import pytest

from radixserve.grammar.schema.formats import FORMATS
from radixserve.grammar.schema.limits import Budget, Limits
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.patterns import Languages, read_format
from radixserve.grammar.schema.refusal import Origin, SchemaRefused
from tests.grammar.schema.acceptance import accepts_text, compile_schema
from tests.grammar.schema.suite import DRAFTS, load

HERE = Origin("format", "#/format")


def matches(name: str, text: str) -> bool:
    return Languages(Budget(Limits(steps=10**7))).matches(read_format(name, HERE), text)


def test_every_day_of_the_calendar_and_no_other() -> None:
    languages = Languages(Budget(Limits(steps=10**9)))
    pattern = read_format("date", HERE)
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in (0, 1, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    dt.date.fromisoformat(text)
                    expected = True
                except ValueError:
                    expected = False
                assert languages.matches(pattern, text) == expected, text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("time", "23:59:60Z", True),
        ("time", "23:59:60+00:00", True),
        ("time", "22:59:60Z", False),
        ("date-time", "2024-02-29t12:00:00.5z", True),
        ("date-time", "2024-02-29T24:00:00Z", False),
        ("date-time", "0000-01-01T00:00:00Z", False),
        ("duration", "P1Y2M3DT4H5M6S", True),
        ("duration", "P1YT", False),
        ("email", '"a b"@x.org', True),
        ("email", "a..b@x.org", False),
        ("hostname", "a-b.example", True),
        ("hostname", "-a.example", False),
        ("ipv4", "255.0.10.9", True),
        ("ipv4", "256.0.0.1", False),
        ("ipv4", "01.0.0.1", False),
        ("ipv6", "::ffff:1.2.3.4", True),
        ("ipv6", "1::2::3", False),
        ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", True),
        ("uuid", "2eb8aa08aa9811eab4aa73b441d16380", False),
        ("uri", "http://[::1]:80/a?b#c", True),
        ("uri", "//x/y", False),
        ("uri-reference", "../a#b", True),
        ("uri-reference", "a b", False),
        ("iri", "http://é.example/ü", True),
        ("uri-template", "/a/{b}{?c,d*}", True),
        ("uri-template", "/a/{b", False),
        ("json-pointer", "/a~1b/0", True),
        ("json-pointer", "a", False),
        ("relative-json-pointer", "1/a", True),
        ("relative-json-pointer", "01", False),
    ],
)
def test_format(name: str, text: str, expected: bool) -> None:
    assert matches(name, text) == expected


def test_a_hostname_is_short() -> None:
    matcher = compile_schema(normalize_schema({"type": "string", "format": "hostname"}))
    assert accepts_text(matcher, f'"{".".join(["a" * 49] * 5)}"')
    assert not accepts_text(matcher, f'"{".".join(["a" * 50] * 5)}"')


@pytest.mark.parametrize("name", ["idn-email", "idn-hostname", "regex", "color", "int32"])
def test_other_formats_are_refused_by_name(name: str) -> None:
    with pytest.raises(SchemaRefused, match=f"format at #/properties/a/format: .*{name}"):
        normalize_schema({"properties": {"a": {"format": name}}})
    assert normalize_schema({"format": name}, assert_formats=False) == {}


def test_every_format_has_a_case_in_the_suite() -> None:
    tried = {case.file.removeprefix("optional/format/") for draft in DRAFTS for case in load(draft)}
    assert set(FORMATS) <= tried
