"""SGLang's shape over a real engine: numbers that must agree with one another and with the offline API."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from radixserve import Engine, SamplingParams
from radixserve.model.text import TextModel
from radixserve.server.app import build_app
from radixserve.server.options import ServerOptions
from radixserve.server.service import Service
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_model(
        tiny_model(), num_blocks=128, context_length=512, kernels="torch", threads=1, check_every_step=True
    ) as engine:
        yield engine


@contextlib.asynccontextmanager
async def serve(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    model = tiny_model()
    text = TextModel(model.name, model.source, model.tokenizer, model.chat_template, model.generation)
    client = engine.client()
    await client.start()
    service = Service(client, text, ServerOptions(admin_key="boss"), secret=b"secret")
    service.ready = True
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=build_app(service)), base_url="http://server"
    ) as http:
        await http.post("/flush_cache")
        yield http
        assert await client.check() == []


async def generate(http: httpx.AsyncClient, **body: Any) -> Any:
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def paths(node: Any) -> list[str]:
    """The texts from ``node`` down to each leaf."""
    return [node["text"] + rest for child in node["children"] for rest in paths(child)] or [node["text"]]


async def test_the_text_is_the_offline_engines(engine: Engine) -> None:
    offline = engine.generate("hello", SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2))
    async with serve(engine) as http:
        body = await generate(http, text="hello", sampling_params=GREEDY, return_logprob=True, top_logprobs_num=2)
    assert body["text"] == offline.text and body["output_ids"] == offline.token_ids
    assert offline.logprobs is not None
    meta = body["meta_info"]
    assert [entry[:2] for entry in meta["output_token_logprobs"]] == [
        [entry.logprob, entry.token_id] for entry in offline.logprobs
    ]
    assert [[tuple(pair[:2]) for pair in place] for place in meta["output_top_logprobs"]] == [
        [(logprob, token) for token, logprob in entry.top] for entry in offline.logprobs
    ]


async def test_choices_are_scored_as_sglangs_client_does_it(engine: Engine) -> None:
    """First the prefix, then all choices behind it from two tokens before its end, then the choices alone."""
    async with serve(engine) as http:
        prefix = await generate(http, text="It is ", sampling_params={"max_new_tokens": 0})
        start = prefix["meta_info"]["prompt_tokens"] - 2
        scored = await generate(
            http,
            text=["It is yes", "It is no"],
            sampling_params={"max_new_tokens": 0, "temperature": 0},
            return_logprob=True,
            return_text_in_logprobs=True,
            logprob_start_len=start,
        )
        inputs = [item["meta_info"]["input_token_logprobs"] for item in scored]
        alone = await generate(
            http,
            input_ids=[[entry[1] for entry in entries] for entries in inputs],
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
        )
    for item, text in zip(scored, ("s yes", "s no"), strict=True):
        entries = item["meta_info"]["input_token_logprobs"]
        assert "".join(entry[2] for entry in entries) == text
        assert all(isinstance(entry[0], float) and entry[0] < 0 for entry in entries)
        assert item["meta_info"]["output_token_logprobs"] == []
        # The prefix is computed once; what is scored is computed again.
        assert item["meta_info"]["cached_tokens"] == start - 1
    for item, entries in zip(alone, inputs, strict=True):
        unconditional = item["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in unconditional] == [entry[1] for entry in entries]
        assert unconditional[0][0] is None and all(entry[0] < 0 for entry in unconditional[1:])
    expected = engine.score("It is ", ["yes", "no"])
    assert [sum(entry[0] for entry in entries[2:]) for entries in inputs] == pytest.approx(
        [output.total for output in expected]
    )


async def test_any_tokens_logprobs_agree_with_the_most_likely(engine: Engine) -> None:
    fields = {"text": "abcd", "sampling_params": {**GREEDY, "n": 2}, "return_logprob": True, "logprob_start_len": 1}
    async with serve(engine) as http:
        whole = (await generate(http, **fields, top_logprobs_num=128))[0]["meta_info"]
        likely = [entry[1] for entry in whole["output_top_logprobs"][0][:3]]
        asked = (await generate(http, **fields, token_ids_logprob=likely))[1]["meta_info"]
    assert "output_top_logprobs" not in asked
    for side in ("input", "output"):
        assert len(asked[f"{side}_token_ids_logprobs"]) == len(whole[f"{side}_top_logprobs"]) > 0
        for place, tops in zip(asked[f"{side}_token_ids_logprobs"], whole[f"{side}_top_logprobs"], strict=True):
            assert [entry[1] for entry in place] == likely
            known = {entry[1]: entry[0] for entry in tops}
            assert all(known.get(token, logprob) == logprob for logprob, token, _ in place)


async def test_the_last_event_is_the_answer(engine: Engine) -> None:
    fields = {"text": "stream", "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 2}
    async with serve(engine) as http:
        whole = await generate(http, **fields)
        response = await http.post("/generate", json={**fields, "stream": True})
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]
    last = events[-1]
    for name in ("text", "output_ids"):
        assert last[name] == whole[name]
    for name in (
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "output_token_logprobs",
        "input_token_logprobs",
    ):
        assert last["meta_info"][name] == whole["meta_info"][name]
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert {event["meta_info"]["cached_tokens"] for event in events} == {last["meta_info"]["cached_tokens"]}


async def test_the_cache_is_seen_explained_and_emptied(engine: Engine) -> None:
    prompt = "a system prompt that is longer than two blocks of sixteen"
    admin = {"Authorization": "Bearer boss"}
    async with serve(engine) as http:
        await generate(http, text=prompt + " and one", sampling_params={"max_new_tokens": 0})
        again = await generate(
            http, text=prompt + " then two", sampling_params={"max_new_tokens": 0}, explain_cache=True
        )
        shared = len(prompt) + 1
        assert again["meta_info"]["cached_tokens"] == shared == again["meta_info"]["cache"]["cached_tokens"]
        assert again["meta_info"]["cache"]["reason"] == "diverged"
        explained = (await http.post("/cache/explain", json={"prompt": prompt + " or three"})).json()
        assert (explained["reason"], explained["position"]) == ("diverged", shared)
        assert bytes(explained["token_ids"]).decode() == prompt + " o"
        tree = (await http.get("/cache")).json()
        (top,) = tree["nodes"]
        assert set(paths(top)) == {prompt + " and one", prompt + " then two"}
        assert top["num_blocks"] == 3 and top["locks"] == 0 and top["hits"] >= 1
        salted = await generate(http, text=prompt, sampling_params={"max_new_tokens": 0}, cache_salt="mine")
        assert salted["meta_info"]["cached_tokens"] == 0
        assert paths((await http.get("/cache")).json()["nodes"][0]) == paths(top)
        assert len((await http.get("/cache?cache_salt=mine")).json()["nodes"]) == 1
        names = {node["namespace"] for node in (await http.get("/cache?all", headers=admin)).json()["nodes"]}
        offline = b"common".hex()
        assert len(names - {offline}) == 2
        assert (await http.post("/flush_cache", json={"cache_salt": "mine"})).json() == {"blocks": 4}
        assert (await http.post("/flush_cache")).json() == {"blocks": tree["num_blocks"]}
        assert (await http.get("/cache")).json()["nodes"] == []
        explained = (await http.post("/cache/explain", json={"prompt": prompt + " and one"})).json()
        assert explained["cached_tokens"] == 0


async def test_an_engines_statistics_are_what_the_metrics_expect(engine: Engine) -> None:
    async with serve(engine) as http:
        await generate(http, text="metrics", sampling_params=GREEDY)
        text = (await http.get("/metrics")).text
        info = (await http.get("/server_info")).json()
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(shown["radixserve_steps_total"]) >= 6 and float(shown["radixserve_step_seconds_count"]) >= 6
    assert float(shown["radixserve_computed_tokens_total"]) > 0
    assert float(shown['radixserve_kv_blocks{state="cached"}']) == info["stats"]["blocks"]["tree"]
    assert float(shown["radixserve_kv_blocks_capacity"]) == 128
    assert info["runner"]["kernels"] and info["engine"]["num_blocks"] == 128
