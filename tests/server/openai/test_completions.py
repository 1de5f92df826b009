from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.engine.client import Job
from radixserve.errors import PoolTooSmall
from radixserve.messages import FinishReason
from radixserve.server.openai.completion_logprobs import TextOffsets, completion_logprobs
from tests.server.fake_client import Script, text_model
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"


async def test_a_text_is_continued() -> None:
    async with serve(Script(("Hel", "lo"), cached_tokens=3)) as server:
        response = await server.post(PATH, {"prompt": "Say it:", "model": "tiny"})
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "text_completion" and body["model"] == "tiny" and body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "matched_stop": None}
    ]
    assert body["usage"]["prompt_tokens"] == 7 and body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == 12
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert body["timings"]["steps_waited"] == 1


async def test_the_default_is_sixteen_tokens() -> None:
    async with serve(Script(("x" * 40,))) as server:
        body = (await server.post(PATH, {"prompt": "a"})).json()
    assert body["choices"][0]["text"] == "x" * 16 and body["choices"][0]["finish_reason"] == "length"


async def test_prompts_and_samples_are_numbered_together() -> None:
    def script(job: Job) -> Script:
        return Script((f"<{len(job.token_ids)}>",))

    async with serve(script) as server:
        body = (await server.post(PATH, {"prompt": ["a", "bbb"], "n": 2})).json()
        assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "<1>"), (1, "<1>"), (2, "<3>"), (3, "<3>")]
        events = await server.events(PATH, {"prompt": ["a", "bbb"], "n": 2})
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "<1>", 1: "<1>", 2: "<3>", 3: "<3>"}


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], "hi", ["hi"]])
async def test_texts_and_token_ids_are_taken(prompt: Any) -> None:
    async with serve() as server:
        assert (await server.post(PATH, {"prompt": prompt})).status_code == 200
        assert server.engine.jobs[0].token_ids == [104, 105]


async def test_a_stream_says_what_the_answer_says() -> None:
    async with serve(Script(("Hel", "lo ", "wörld"))) as server:
        whole = (await server.post(PATH, {"prompt": "a", "max_tokens": 50, "echo": True})).json()
        events = await server.events(PATH, {"prompt": "a", "max_tokens": 50, "echo": True})
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"] == "aHello wörld"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert choices[-1]["finish_reason"] == "stop"
    assert all("usage" not in event for event in events)


async def test_usage_in_a_stream_is_one_last_event() -> None:
    async with serve(Script(cached_tokens=1)) as server:
        events = await server.events(PATH, {"prompt": "ab", "stream_options": {"include_usage": True}})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] == 2
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1


async def test_logprobs_are_parallel_lists() -> None:
    async with serve(Script(("hi",))) as server:
        whole = (await server.post(PATH, {"prompt": "ab", "logprobs": 2, "echo": True})).json()["choices"][0]
        events = await server.events(PATH, {"prompt": "ab", "logprobs": 2, "echo": True})
    assert whole["logprobs"]["tokens"] == ["a", "b", "h", "i"]
    assert whole["logprobs"]["token_logprobs"] == [None, -1.0, -0.5, -0.5]
    assert whole["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert whole["logprobs"]["top_logprobs"][0] is None
    assert whole["logprobs"]["top_logprobs"][2] == {"h": -0.5, "i": -1.5}
    streamed: dict[str, list[Any]] = {}
    for event in events:
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            streamed.setdefault(name, []).extend(values)
    assert streamed == whole["logprobs"]


@pytest.mark.parametrize("echo", [False, True])
async def test_offsets_count_characters_of_the_text_however_it_is_cut(echo: bool) -> None:
    # Tokens are bytes here, so an ö is two of them: both begin where the character does.
    async with serve(Script(("wö", "rl", "d"))) as server:
        fields = {"prompt": "é:", "logprobs": 0, "echo": echo}
        whole = (await server.post(PATH, fields)).json()["choices"][0]
        events = await server.events(PATH, fields)
    expected = [0, 1, 1, 2, 3, 4] if not echo else [0, 0, 1, 2, 3, 3, 4, 5, 6]
    assert whole["logprobs"]["text_offset"] == expected
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [offset for part in parts if part for offset in part["text_offset"]] == expected


def test_a_character_that_is_cut_short_takes_one_place() -> None:
    offsets = TextOffsets()
    assert [offsets.next(data) for data in (b"a", b"\xe6\x97", b"b", b"", b"\xc3", b"\xb6", b"c")] == [
        0,
        1,
        2,
        3,
        3,
        3,
        4,
    ]


async def test_special_tokens_that_are_not_in_the_text_take_no_place() -> None:
    tokenizer = text_model().tokenizer
    special = tokenizer.eos_ids[0]
    shown = completion_logprobs(
        tokenizer, [special, 97, special, 98], [], TextOffsets(), hidden={special}, num_prompt=1
    )
    name = len(tokenizer.token_text(special))
    assert shown.text_offset == [0, name, name + 1, name + 1]


async def test_prompt_logprobs_are_spelled_as_elsewhere() -> None:
    async with serve() as server:
        body = (await server.post(PATH, {"prompt": "ab", "prompt_logprobs": 0})).json()
    assert body["choices"][0]["prompt_logprobs"] == [None, {"98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"}}]


async def test_every_sampling_field_reaches_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "logit_bias": {"65": 1.5},
        "seed": 7,
        "n": 2,
        "stop": ["\n", 66],
        "stop_token_ids": [67],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "min_tokens": 1,
        "skip_special_tokens": False,
        "max_tokens": 9,
    }
    async with serve() as server:
        response = await server.post(PATH, {"prompt": "a", "priority": 5, "explain_cache": True, **fields})
        assert response.status_code == 200, response.text
        job = server.engine.jobs[0]
    sampling = job.sampling
    assert (job.priority, job.explain) == (5, True)
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
        "n",
        "min_tokens",
        "max_tokens",
    ):
        assert getattr(sampling, name) == fields[name]
    assert sampling.logit_bias == {65: 1.5}
    assert sampling.stop == ("\n",) and sampling.stop_token_ids == (66, 67)
    assert sampling.include_stop and sampling.ignore_eos and not sampling.skip_special_tokens
    assert response.json()["cache"]["reason"] == "never_seen"


async def test_namespaces_follow_the_key_and_the_salt() -> None:
    async with serve(api_key=("a", "b")) as server:
        for key, salt in (("a", None), ("b", None), ("a", "x"), ("a", "x")):
            headers = {"Authorization": f"Bearer {key}"}
            await server.post(PATH, {"prompt": "p", "cache_salt": salt}, headers=headers)
        salts = [job.salt for job in server.engine.jobs]
    assert len(set(salts)) == 3 and salts[2] == salts[3]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "empty_prompt"),
        ({"prompt": []}, "prompt", "empty_prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]", "empty_prompt"),
        ({"prompt": ["a", [99999]]}, "prompt[1]", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt[0]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": "a" * 512}, "prompt", "context_length_exceeded"),
        ({"prompt": "a" * 500, "max_tokens": 13}, "prompt", "context_length_exceeded"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "invalid_type"),
        ({"prompt": "a", "temperature": -1}, "temperature", "invalid_value"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": "a", "stop": [""]}, "stop", "invalid_value"),
        ({"prompt": "a", "suffix": "end"}, "suffix", "unsupported_feature"),
        ({"prompt": "a", "best_of": 3}, "best_of", "unsupported_feature"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", "invalid_value"),
        ({"prompt": "a", "nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"prompt": "a", "priority": 2**40}, "priority", "invalid_type"),
        ({"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_value"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        response = await server.post(PATH, body)
        assert server.engine.jobs == []
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code), error


async def test_an_overflow_says_what_clients_look_for() -> None:
    async with serve() as server:
        error = error_of(await server.post(PATH, {"prompt": "a" * 500, "max_tokens": 13}))
    message = error["message"].lower()
    assert message.startswith("this model's maximum context length is 512 tokens")
    assert "prompt is too long" in message and "513" in message


async def test_an_unknown_model_is_not_found() -> None:
    async with serve(served_model_name=("one", "two")) as server:
        assert (await server.post(PATH, {"prompt": "a", "model": "two"})).json()["model"] == "one"
        response = await server.post(PATH, {"prompt": "a", "model": "three"})
    assert response.status_code == 404
    assert (error_of(response)["param"], error_of(response)["code"]) == ("model", "model_not_found")


async def test_null_is_as_good_as_nothing() -> None:
    optional = (
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "logprobs",
        "echo",
        "stream",
        "stream_options",
        "stop",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "user",
        "suffix",
        "best_of",
        "response_format",
        "guided_json",
        "regex",
        "metadata",
    )
    async with serve() as server:
        response = await server.post(PATH, {"prompt": "a", **dict.fromkeys(optional)})
    assert response.status_code == 200, response.text


async def test_what_the_engine_refuses_is_a_400() -> None:
    async with serve(Script(refusal=PoolTooSmall(9, 4))) as server:
        for stream in (False, True):
            response = await server.post(PATH, {"prompt": "a", "stream": stream})
            assert response.status_code == 400 and error_of(response)["code"] == "kv_pool_exceeded"


async def test_a_request_that_fails_while_it_runs_is_a_500() -> None:
    async with serve(Script(("par", "tial"), error="non-finite logits")) as server:
        response = await server.post(PATH, {"prompt": "a"})
        assert response.status_code == 500 and error_of(response)["code"] == "failed"
        response = await server.post(PATH, {"prompt": "a", "stream": True})
    assert response.status_code == 200
    assert '"code":"failed"' in response.text and "[DONE]" not in response.text


async def test_too_many_waiting_is_a_429_that_says_when() -> None:
    gate = asyncio.Event()
    async with serve(Script(gate=gate), max_queued_requests=2) as server:
        waiting = [asyncio.ensure_future(server.post(PATH, {"prompt": "a"})) for _ in range(2)]
        while len(server.engine.jobs) < 2:
            await asyncio.sleep(0)
        response = await server.post(PATH, {"prompt": "b"})
        gate.set()
        assert [(await one).status_code for one in waiting] == [200, 200]
        assert (await server.post(PATH, {"prompt": "b"})).status_code == 200
    assert response.status_code == 429 and error_of(response)["code"] == "queue_full"
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (PATH, "prompt", "a" * 50_000),
        (PATH, "prompt[1]", ["a", "a" * 50_000]),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": "a" * 50_000}]),
        ("/v1/responses", "input", "a" * 50_000),
        ("/generate", "text", "a" * 50_000),
        ("/v1/embeddings", "input", "a" * 50_000),
    ],
)
async def test_what_is_too_long_however_it_is_tokenized_is_not_tokenized(path: str, field: str, value: Any) -> None:
    async with serve() as server:
        response = await server.post(path, {field.partition("[")[0]: value})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert "at least" in error["message"] and "maximum context length is 512 tokens" in error["message"]


async def test_more_prompts_than_may_ever_wait_are_no_matter_of_time() -> None:
    async with serve(max_queued_requests=2) as server:
        response = await server.post(PATH, {"prompt": ["a", "b", "c"]})
        assert response.status_code == 400 and error_of(response)["code"] == "batch_too_large"
        assert (await server.post(PATH, {"prompt": ["a", "b"]})).status_code == 200


async def test_a_request_has_its_time() -> None:
    async with serve(Script(gate=asyncio.Event()), request_timeout_s=0.01) as server:
        response = await server.post(PATH, {"prompt": "a"})
        assert server.engine.aborted == [server.engine.jobs[0].rid]
    assert response.status_code == 408 and error_of(response)["code"] == "request_timeout"


async def test_a_dead_engine_is_a_503() -> None:
    async with serve(Script(gate=asyncio.Event())) as server:
        running = asyncio.ensure_future(server.post(PATH, {"prompt": "a"}))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        server.engine.die("killed")
        assert (await running).status_code == 503
        response = await server.post(PATH, {"prompt": "a"})
    assert response.status_code == 503 and "killed" in error_of(response)["message"]


async def test_a_name_is_one_requests_at_a_time() -> None:
    gate = asyncio.Event()
    async with serve(Script(gate=gate)) as server:
        running = asyncio.ensure_future(server.post(PATH, {"prompt": "a", "request_id": "mine"}))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        for path, prompt in (
            (PATH, {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            response = await server.post(path, {**prompt, "request_id": "mine"})
            assert response.status_code == 400 and error_of(response)["param"] == "request_id"
        gate.set()
        assert (await running).status_code == 200


async def test_an_abort_is_a_finish_reason() -> None:
    async with serve(Script(gate=asyncio.Event())) as server:
        running = asyncio.ensure_future(server.post(PATH, {"prompt": "a", "request_id": "mine"}))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        assert await server.service.abort(server.service.callers.identify(None), ["mine", "other"]) == 1
        body = (await running).json()
    assert body["choices"][0]["finish_reason"] == FinishReason.ABORT and body["id"] == "mine"


async def test_a_constraint_beyond_the_limits_is_told_by_its_field() -> None:
    async with serve() as server:
        response = await server.post(PATH, {"prompt": "a", "guided_json": {"enum": ["x" * 600_000]}})
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == ("guided_json", "constraint_too_large")
