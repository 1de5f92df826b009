from __future__ import annotations

import threading
from typing import Any

import pytest

from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import TOO_COMPLEX, UNSUPPORTED, SchemaRefused
from radixserve.grammar.schema_helper import SchemaHelper, _Process


def many_properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(count)}}


@pytest.fixture(scope="module")
def helper() -> SchemaHelper:
    return SchemaHelper(60.0)


def test_small_schemas_need_no_process(helper: SchemaHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Process, "__init__", None)
    assert helper.normalize({"type": "integer"}) == normalize_schema({"type": "integer"})
    with pytest.raises(SchemaRefused) as refused:
        helper.normalize({"type": "array", "contains": {"type": "integer"}})
    assert refused.value.code == UNSUPPORTED


def test_large_schemas_come_back_the_same(helper: SchemaHelper) -> None:
    schema = many_properties(700)
    for _ in range(2):
        assert helper.normalize(schema) == normalize_schema(schema)


def test_refusals_keep_keyword_path_and_code(helper: SchemaHelper) -> None:
    schema = many_properties(700)
    schema["properties"]["p3"] = {"type": "array", "contains": {"type": "integer"}}
    with pytest.raises(SchemaRefused) as here:
        normalize_schema(schema)
    with pytest.raises(SchemaRefused) as there:
        helper.normalize(schema)
    assert (there.value.origin, there.value.reason, there.value.code) == (
        here.value.origin,
        here.value.reason,
        here.value.code,
    )


def test_time_that_is_up_ends_the_process_and_the_next_schema_gets_a_new_one() -> None:
    helper = SchemaHelper(60.0)
    helper.normalize(many_properties(700))
    process = helper._own.process
    with pytest.raises(SchemaRefused, match="takes more than") as refused:
        process.normalize(many_properties(1500), 0.0)
    assert refused.value.code == TOO_COMPLEX and not process.alive
    assert helper.normalize(many_properties(700)) == normalize_schema(many_properties(700))
    assert helper._own.process is not process


def test_each_thread_asks_a_process_of_its_own(helper: SchemaHelper) -> None:
    schema, results = many_properties(700), list[Any]()
    threads = [threading.Thread(target=lambda: results.append(helper.normalize(schema))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [normalize_schema(schema)] * 2
