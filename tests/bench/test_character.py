from __future__ import annotations

import json

import jsonschema
import pytest

from radixserve.bench.character import CHARACTER_SCHEMA, begins_document

DOCUMENT = {
    "name": "Mira",
    "class": "ranger",
    "level": 42,
    "active": True,
    "skills": [{"skill_name": "arrow_rain", "description": "many arrows", "power": index + 1} for index in range(8)],
}


def test_the_document_is_one_of_the_schema() -> None:
    jsonschema.validate(DOCUMENT, CHARACTER_SCHEMA)


@pytest.mark.parametrize("indent", [None, 1])
def test_every_beginning_of_a_document_is_one(indent: int | None) -> None:
    text = json.dumps(DOCUMENT, indent=indent)
    assert all(begins_document(text[:end]) for end in range(len(text) + 1))
    assert begins_document(text + "\n ")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[",
        '{"name": "mira",',
        '{"name": "Mira7"',
        '{"name": "Mi"',
        '{"name": "Mira", "level"',
        '{"name": "Mira", "class": "bard"',
        '{"name": "Mira", "class": "ranger", "level": 0',
        '{"name": "Mira", "class": "ranger", "level": 100',
        json.dumps(DOCUMENT) + "x",
        json.dumps({**DOCUMENT, "skills": DOCUMENT["skills"][:7]}),  # type: ignore[index]
        json.dumps({**DOCUMENT, "more": 1}),
    ],
)
def test_what_no_document_begins_with_is_refused(text: str) -> None:
    assert not begins_document(text)
