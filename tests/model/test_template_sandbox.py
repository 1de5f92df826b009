"""Bounds of chat templates, and the forms of real templates that the sandbox must not break."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from radixserve.errors import InvalidRequest
from radixserve.model import chat_template
from radixserve.model.chat_template import ChatTemplate

USER: list[Mapping[str, Any]] = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[Mapping[str, Any]] = USER, **options: Any) -> str:
    return ChatTemplate(source).render(messages, **options)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% if a %}{% endif %}{% endfor %}{% endfor %}",
        "{% set m = messages * 900 %}{% for a in m %}{% for b in m %}{% for c in m %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_work_without_output_ends(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    with pytest.raises(InvalidRequest, match="takes longer"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('x' * 10**10) | length }}",
        "{{ (10**10 * 'x') | length }}",
        "{{ (messages * 10**10) | length }}",
        "{{ (10 ** (10 ** 8)) is odd }}",
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    ],
)
def test_no_value_grows_without_bound(source: str) -> None:
    with pytest.raises(InvalidRequest, match="longer than 16000000"):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for x in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/3,2/3,3/3",
        ),
        ("{% for x in 'abc' %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }} {% endfor %}", "ab abc bc "),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ x }}{{ loop.revindex }}{% endfor %}", "1231"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for x in missing %}x{% endfor %}", ""),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "123"),
        (
            "{{ 'a' ~ 1 ~ none ~ 2.5 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 'ab' * 2 }}{{ 2 ** 10 + 3 * 4 }}",
            "a1None2.5ab[1, 2]abab1036",
        ),
        ("{% generation %}said {{ messages[0].content }}{% endgeneration %}.", "said hi."),
        ("{{ {'ü': 1} | tojson(ensure_ascii=False) }}{{ [1, 2] | tojson(separators=(',', ':')) }}", '{"ü": 1}[1,2]'),
        ("{{ {'b': 1, 'a': 2} | tojson }}{{ {'a': 1} | tojson(indent=1) }}", '{"b": 1, "a": 2}{\n "a": 1\n}'),
    ],
)
def test_templates_mean_what_they_did(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_of_its_own_for_tools() -> None:
    template = ChatTemplate("plain", tool_source="{{ tools[0].name }}")
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "f"


@pytest.mark.parametrize("messages", [["text"], [None], [*USER, 1]])
@pytest.mark.parametrize("continued", [False, True])
def test_a_message_that_is_no_object_is_refused(messages: list[Any], continued: bool) -> None:
    with pytest.raises(InvalidRequest, match="every message must be an object"):
        render("x", messages, continue_final_message=continued)
