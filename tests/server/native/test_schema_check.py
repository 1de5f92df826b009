from __future__ import annotations

from typing import Any

import pytest

from radixserve.server.schema_checker import SchemaChecker
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
PATH = "/v1/schema/check"
GOOD = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "title": "Person"}
# More than a thread of the server may do.
HARD = {"allOf": [{"oneOf": [{"properties": {f"p{j}{i}": {"type": "integer"}}} for i in range(12)]} for j in range(6)]}


@pytest.mark.parametrize(
    "schema", [GOOD, '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}']
)
async def test_a_schema_that_is_enforced_has_an_example(schema: Any) -> None:
    async with serve() as server:
        body = (await server.post(PATH, {"schema": schema})).json()
    assert body["supported"] is True and body["refused"] == []
    assert isinstance(body["example"]["age"], int) and body["normalized"]["type"] == "object"
    assert {"type", "properties", "required"} <= set(body["keywords"])


async def test_what_is_refused_is_named_with_its_path() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "objekt"}, "b": {"$ref": "#/nowhere"}}}
    async with serve() as server:
        body = (await server.post(PATH, {"schema": schema})).json()
    assert body["supported"] is False and body["example"] is None
    assert {(item["keyword"], item["path"]) for item in body["refused"]} == {
        ("type", "#/properties/a/type"),
        ("$ref", "#/properties/b/$ref"),
    }


@pytest.mark.parametrize("schema", [True, False, 5, None, [], {}])
async def test_whatever_is_sent_is_reported_on(schema: Any) -> None:
    async with serve() as server:
        response = await server.post(PATH, {"schema": schema})
    assert response.status_code == 200
    assert response.json()["supported"] is (schema is True or schema == {})


async def test_text_that_is_no_json_is_refused() -> None:
    async with serve() as server:
        for text in ("{", "", "nonsense", "[" * 5000):
            response = await server.post(PATH, {"schema": text})
            assert response.status_code == 400 and error_of(response)["param"] == "schema"


async def test_a_hard_schema_is_another_processs_work() -> None:
    schema = {
        "anyOf": [{"properties": {f"k{n}": {"const": n}}, "required": [f"k{n}"], "type": "object"} for n in range(400)]
    }
    cut_short = await SchemaChecker(seconds=0.001).check(schema)
    assert not cut_short.supported
    report = await SchemaChecker(seconds=60).check(schema)
    assert report.supported and report.example == {"k0": 0}


async def test_a_schema_has_its_time() -> None:
    report = await SchemaChecker(seconds=0.01).check(HARD)
    assert [item.code for item in report.refused] == ["schema_too_complex"] and "0.01 s" in report.refused[0].reason
