from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.server.fake_client import Script
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
PATH = "/v1/embeddings"


async def test_texts_and_token_ids_are_embedded_in_order() -> None:
    async with serve(lambda job: Script(vector=(len(job.token_ids), 0.5))) as server:
        body = (await server.post(PATH, {"input": ["abc", "a"], "model": "tiny"})).json()
        tokens = (await server.post(PATH, {"input": [97, 98]})).json()
        salts = {job.salt for job in server.engine.jobs}
        assert all(job.pooling == "mean" and job.sampling.max_tokens == 0 for job in server.engine.jobs)
    assert body["object"] == "list" and body["model"] == "tiny" and body["pooling"] == "mean"
    assert [(item["index"], item["object"], item["embedding"]) for item in body["data"]] == [
        (0, "embedding", [3.0, 0.5]),
        (1, "embedding", [1.0, 0.5]),
    ]
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert tokens["data"][0]["embedding"] == [2.0, 0.5]
    assert len(salts) == 1


async def test_base64_is_little_endian_float32() -> None:
    async with serve(Script(vector=(0.25, -2.0))) as server:
        body = (await server.post(PATH, {"input": "a", "encoding_format": "base64", "pooling": "last"})).json()
        assert server.engine.jobs[0].pooling == "last"
    assert struct.unpack("<2f", base64.b64decode(body["data"][0]["embedding"])) == (0.25, -2.0)
    assert body["pooling"] == "last"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_prompt"),
        ({"input": []}, "input", "empty_prompt"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": "a" * 513}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 1}, "dimensions", "unsupported_feature"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_type"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_type"),
        ({"input": "a", "temperature": 1}, "temperature", "unknown_parameter"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        response = await server.post(PATH, body)
    assert response.status_code in (400, 404)
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code), error
