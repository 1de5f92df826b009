from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.engine.client import Job
from radixserve.messages import FinishReason
from radixserve.server.native.generate_fields import GenerateRequest
from radixserve.server.native.sampling import GenerateSampling
from tests.server.fake_client import Script
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
PATH = "/generate"


async def test_a_text_is_continued() -> None:
    async with serve(Script(("Hel", "lo"), cached_tokens=3, stop_reason=257)) as server:
        body = (await server.post(PATH, {"text": "Say it:"})).json()
        job = server.engine.jobs[0]
    assert body["text"] == "Hello" and body["output_ids"] == list(b"Hello")
    meta = body["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 257}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (7, 5, 3)
    assert meta["e2e_latency"] > 0 and meta["timings"]["steps_waited"] == 1
    assert not any(name.endswith("logprobs") for name in meta)
    assert job.sampling.max_tokens == 128 and job.sampling.logprobs is None


@pytest.mark.parametrize("samples", [1, 2])
async def test_what_a_program_needs_to_go_on_is_told(samples: int) -> None:
    request = {"text": "Say it:", "heal": True, "sampling_params": {"n": samples}}
    async with serve(Script(("Hel", "lo"), healed_tokens=2)) as server:
        body = (await server.post(PATH, request)).json()
        plain = (await server.post(PATH, {"text": "Say it:"})).json()["meta_info"]
        events = await server.events(PATH, request)
        assert [job.heal for job in server.engine.jobs] == [True, False, True]
    wanted = {"healed_tokens": 2, "kept_tokens": 5, "rest": "", "forced_tokens": 0}
    for item in body if samples > 1 else [body]:
        assert {name: item["meta_info"][name] for name in wanted} == wanted
    assert plain["healed_tokens"] == 0 and plain["kept_tokens"] == 5
    last = [event["meta_info"] for event in events if event["meta_info"]["finish_reason"] is not None]
    assert len(last) == samples
    assert all({name: meta[name] for name in wanted} == wanted for meta in last)
    assert all("kept_tokens" not in event["meta_info"] for event in events[:samples])


async def test_an_end_token_is_what_matched() -> None:
    async with serve(Script(("ab",))) as server:
        meta = (await server.post(PATH, {"text": "x"})).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": ord("b")}


async def test_the_length_is_told() -> None:
    async with serve(Script(("abcdef",))) as server:
        body = (await server.post(PATH, {"text": "x", "sampling_params": {"max_new_tokens": 4}})).json()
    assert body["text"] == "abcd" and body["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


async def test_nothing_is_generated_where_nothing_is_asked_for() -> None:
    async with serve() as server:
        body = (await server.post(PATH, {"text": "It is ", "sampling_params": {"max_new_tokens": 0}})).json()
    assert body["text"] == "" and body["output_ids"] == []
    assert body["meta_info"]["prompt_tokens"] == 6 and body["meta_info"]["completion_tokens"] == 0
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def _count(job: Job) -> Script:
    return Script((f"<{len(job.token_ids)}>",))


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        ({"text": "ab"}, 2),
        ({"text": ["ab"]}, [2]),
        ({"text": ["ab", "abc"]}, [2, 3]),
        ({"input_ids": [1, 2]}, 2),
        ({"input_ids": [[1, 2], [3]]}, [2, 1]),
    ],
)
async def test_a_list_of_prompts_is_answered_by_a_list(prompt: dict[str, Any], sizes: int | list[int]) -> None:
    async with serve(_count) as server:
        body = (await server.post(PATH, prompt)).json()
    shown = [item["text"] for item in body] if isinstance(sizes, list) else body["text"]
    assert shown == ([f"<{size}>" for size in sizes] if isinstance(sizes, list) else f"<{sizes}>")


async def test_samples_make_a_flat_list() -> None:
    async with serve(_count) as server:
        body = (await server.post(PATH, {"text": ["a", "bb"], "sampling_params": {"n": 2}, "rid": "r"})).json()
        single = (await server.post(PATH, {"text": "a", "sampling_params": {"n": 2}, "rid": "s"})).json()
    assert [(item["text"], item["meta_info"]["id"]) for item in body] == [
        ("<1>", "r_0_0"),
        ("<1>", "r_0_1"),
        ("<2>", "r_1_0"),
        ("<2>", "r_1_1"),
    ]
    assert [item["meta_info"]["id"] for item in single] == ["s_0", "s_1"]


async def test_each_prompt_may_have_its_own_parameters() -> None:
    fields = {
        "text": ["a", "b"],
        "sampling_params": [{"temperature": 0, "max_new_tokens": 1}, {"n": 2}],
        "rid": ["one", "two"],
        "return_logprob": [True, False],
        "top_logprobs_num": [3, 0],
        "token_ids_logprob": [[5], None],
        "logprob_start_len": [0, -1],
    }
    async with serve() as server:
        body = (await server.post(PATH, fields)).json()
        first, second = (job.sampling for job in server.engine.jobs)
    assert [item["meta_info"]["id"] for item in body] == ["one", "two_0", "two_1"]
    assert (first.temperature, first.max_tokens, first.n) == (0, 1, 1)
    assert (first.logprobs, first.prompt_logprobs, first.logprob_start, first.logprob_token_ids) == (3, 3, 0, (5,))
    assert (second.n, second.max_tokens, second.logprobs, second.prompt_logprobs) == (2, 128, None, None)


async def test_every_sampling_field_reaches_the_engine() -> None:
    params = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "stop": ["\n"],
        "stop_token_ids": [66],
        "stop_regex": "[0-9]+",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.1,
        "n": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "no_stop_trim": True,
        "logit_bias": {"65": 1.5},
        "sampling_seed": 7,
        "regex": "[a-z]+",
        "stream_interval": 1,
    }
    more = {"priority": 5, "explain_cache": True, "cache_salt": "s", "log_metrics": True}
    async with serve() as server:
        response = await server.post(PATH, {"text": "a", "sampling_params": params, **more})
        assert response.status_code == 200, response.text
        job = server.engine.jobs[0]
    sampling = job.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.n, sampling.seed) == (9, 2, 2, 7)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, -1, 0.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.2, 0.3, 1.1)
    assert sampling.stop == ("\n",) and sampling.stop_token_ids == (66,) and sampling.stop_regex == ("[0-9]+",)
    assert sampling.ignore_eos and sampling.include_stop and not sampling.skip_special_tokens
    assert sampling.logit_bias == {65: 1.5} and sampling.constraint is not None
    assert (job.priority, job.explain) == (5, True)
    assert response.json()[0]["meta_info"]["cache"]["reason"] == "never_seen"


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "a+"},
        {"ebnf": 'root ::= "a"'},
        {"json_schema": '{"type": "object"}'},
        {"json_schema": {"type": "object"}},
        {"structural_tag": '{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}'},
    ],
)
async def test_constraints_are_passed_on(constraint: dict[str, Any]) -> None:
    async with serve() as server:
        response = await server.post(PATH, {"text": "a", "sampling_params": constraint})
        assert response.status_code == 200, response.text
        assert server.engine.jobs[0].sampling.constraint is not None


async def test_null_is_as_good_as_nothing() -> None:
    sampling = dict.fromkeys(GenerateSampling.__struct_fields__)
    body = {**dict.fromkeys(GenerateRequest.__struct_fields__), "text": "a", "sampling_params": sampling}
    async with serve() as server:
        response = await server.post(PATH, body)
        assert response.status_code == 200, response.text
        assert (await server.post(PATH, {**body, "sampling_params": None})).status_code == 200


# ---------------------------------------------------------------- logprobs


async def test_logprobs_of_the_output_alone_are_the_default() -> None:
    async with serve(Script(("hi",))) as server:
        meta = (await server.post(PATH, {"text": "ab", "return_logprob": True})).json()["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 104, None], [-0.5, 105, None]]
    assert meta["input_token_logprobs"] == []
    assert "input_top_logprobs" not in meta and "output_token_ids_logprobs" not in meta


async def test_prompt_logprobs_begin_where_they_are_wanted() -> None:
    fields = {"text": "abc", "return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": 1}
    async with serve(Script(("h",))) as server:
        whole = (await server.post(PATH, {**fields, "logprob_start_len": 0})).json()["meta_info"]
        later = (await server.post(PATH, {**fields, "logprob_start_len": 1})).json()["meta_info"]
        starts = [job.sampling.logprob_start for job in server.engine.jobs]
    assert whole["input_token_logprobs"] == [[None, 97, "a"], [-1.0, 98, "b"], [-1.0, 99, "c"]]
    assert later["input_token_logprobs"] == whole["input_token_logprobs"][1:]
    assert whole["input_top_logprobs"] == [None, [], []] and len(later["input_top_logprobs"]) == 2
    assert whole["output_top_logprobs"] == [[[-0.5, 104, "h"]]]
    assert starts == [0, 1]


async def test_a_prompt_that_is_only_scored_is_scored_whole() -> None:
    """The method of SGLang's client that normalizes by unconditional likelihoods sends no start."""
    fields = {"input_ids": [[5, 6], [5]], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    async with serve() as server:
        body = (await server.post(PATH, fields)).json()
    assert body[0]["meta_info"]["input_token_logprobs"] == [[None, 5, None], [-1.0, 6, None]]
    assert body[1]["meta_info"]["input_token_logprobs"] == [[None, 5, None]]
    assert body[0]["meta_info"]["output_token_logprobs"] == []


# ---------------------------------------------------------------- streams


async def test_every_event_repeats_the_text_so_far() -> None:
    async with serve(Script(("Hel", "lo"), cached_tokens=2)) as server:
        whole = (await server.post(PATH, {"text": "abc", "return_logprob": True, "logprob_start_len": 1})).json()
        events = await server.events(PATH, {"text": "abc", "return_logprob": True, "logprob_start_len": 1})
    assert [event["text"] for event in events] == ["Hel", "Hello", "Hello"]
    assert [event["meta_info"]["completion_tokens"] for event in events] == [3, 5, 5]
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None, None]
    last = events[-1]["meta_info"]
    same = ("finish_reason", "prompt_tokens", "cached_tokens", "input_token_logprobs", "output_token_logprobs")
    assert {name: last[name] for name in same} == {name: whole["meta_info"][name] for name in same}
    assert all(event["meta_info"]["cached_tokens"] == 2 and "index" not in event for event in events)
    assert len(events[0]["meta_info"]["output_token_logprobs"]) == 3
    # What does not change is not repeated.
    assert ["input_token_logprobs" in event["meta_info"] for event in events] == [False, False, True]


async def test_samples_of_a_stream_are_numbered() -> None:
    async with serve(_count) as server:
        events = await server.events(PATH, {"text": ["a", "bb"], "sampling_params": {"n": 2}})
    last = {event["index"]: event for event in events}
    assert {index: event["text"] for index, event in last.items()} == {0: "<1>", 1: "<1>", 2: "<2>", 3: "<2>"}
    assert all(event["meta_info"]["finish_reason"]["type"] == "stop" for event in last.values())
    finished = [event["index"] for event in events if event["meta_info"]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2, 3]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "text", "missing_required_parameter"),
        ({"text": "a", "input_ids": [1]}, "text", "missing_required_parameter"),
        ({"text": ""}, "text", "empty_prompt"),
        ({"text": []}, "text", "empty_prompt"),
        ({"text": ["a", ""]}, "text[1]", "empty_prompt"),
        ({"text": [1]}, "text[0]", "invalid_type"),
        ({"input_ids": []}, "input_ids", "empty_prompt"),
        ({"input_ids": [[]]}, "input_ids[0]", "empty_prompt"),
        ({"input_ids": [1, "a"]}, "input_ids[0]", "invalid_type"),
        ({"input_ids": [[1], "a"]}, "input_ids[1]", "invalid_type"),
        ({"input_ids": [[[1]]]}, "input_ids[0]", "invalid_type"),
        ({"input_ids": [True]}, "input_ids[0]", "invalid_type"),
        ({"input_ids": [1.5]}, "input_ids[0]", "invalid_type"),
        ({"input_ids": [-1]}, "input_ids", "invalid_value"),
        ({"input_ids": [10**30]}, "input_ids", "invalid_value"),
        ({"text": "a" * 600}, "text", "context_length_exceeded"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 512}}, "text", "context_length_exceeded"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", "invalid_value"),
        ({"text": "a", "sampling_params": {"max_new_tokens": "x"}}, "sampling_params.max_new_tokens", "invalid_type"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 1, "min_new_tokens": 2}},
            "sampling_params.min_new_tokens",
            "invalid_value",
        ),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature", "invalid_value"),
        ({"text": "a", "sampling_params": {"top_p": 0}}, "sampling_params.top_p", "invalid_value"),
        ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n", "invalid_value"),
        ({"text": "a", "sampling_params": {"stop": [""]}}, "sampling_params.stop", "invalid_value"),
        ({"text": "a", "sampling_params": {"stop": [1]}}, "sampling_params.stop[0]", "invalid_type"),
        (
            {"text": "a", "sampling_params": {"stop_token_ids": [999]}},
            "sampling_params.stop_token_ids",
            "invalid_value",
        ),
        ({"text": "a", "sampling_params": {"sampling_seed": 2**70}}, "sampling_params.sampling_seed", "invalid_value"),
        ({"text": "a", "sampling_params": {"no_stop_trim": 1}}, "sampling_params.no_stop_trim", "invalid_type"),
        ({"text": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias", "invalid_value"),
        ({"text": "a", "sampling_params": {"logit_bias": {"1_0": 1}}}, "sampling_params.logit_bias", "invalid_value"),
        ({"text": "a", "sampling_params": {"stop_regex": "("}}, "sampling_params.stop_regex", "unsupported_pattern"),
        ({"text": "a", "sampling_params": {"stop_regex": "^a"}}, "sampling_params.stop_regex", "unsupported_pattern"),
        ({"text": "a", "sampling_params": {"stop_regex": "a*"}}, "sampling_params.stop_regex", "invalid_value"),
        ({"text": "a", "sampling_params": {"stop_regex": ["a"] * 5}}, "sampling_params.stop_regex", "invalid_value"),
        ({"text": "a", "sampling_params": {"regex": ""}}, "sampling_params.regex", "invalid_type"),
        (
            {"text": "a", "sampling_params": {"regex": "a", "ebnf": 'root ::= "b"'}},
            "sampling_params.ebnf",
            "invalid_value",
        ),
        ({"text": "a", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema", "invalid_json"),
        ({"text": "a", "sampling_params": {"json_schema": "[]"}}, "sampling_params.json_schema", "invalid_type"),
        ({"text": "a", "sampling_params": {"structural_tag": "{"}}, "sampling_params.structural_tag", "invalid_json"),
        (
            {"text": "a", "sampling_params": {"structural_tag": {"triggers": []}}},
            "sampling_params.structural_tag.structures",
            "invalid_type",
        ),
        (
            {"text": "a", "sampling_params": {"spaces_between_special_tokens": False}},
            "sampling_params.spaces_between_special_tokens",
            "unsupported_feature",
        ),
        (
            {"text": "a", "sampling_params": {"custom_params": {}}},
            "sampling_params.custom_params",
            "unsupported_feature",
        ),
        (
            {"text": "a", "sampling_params": {"stream_interval": 4}},
            "sampling_params.stream_interval",
            "unsupported_feature",
        ),
        ({"text": "a", "sampling_params": {"beams": 2}}, "sampling_params.beams", "unknown_parameter"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params", "invalid_type"),
        ({"text": "a", "sampling_params": []}, "sampling_params", "invalid_type"),
        ({"text": ["a"], "sampling_params": []}, "sampling_params", "invalid_value"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params", "invalid_value"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 0}]}, "sampling_params[1].n", "invalid_value"),
        ({"text": "a", "rid": ""}, "rid", "invalid_value"),
        ({"text": "a", "rid": "x" * 300}, "rid", "invalid_value"),
        ({"text": "a", "rid": ["x"]}, "rid", "invalid_type"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "invalid_value"),
        ({"text": "a", "return_logprob": "yes"}, "return_logprob", "invalid_type"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "invalid_value"),
        ({"text": "ab", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len", "invalid_value"),
        ({"text": "ab", "logprob_start_len": 1}, "logprob_start_len", "invalid_value"),
        ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num", "invalid_value"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 129}, "top_logprobs_num", "invalid_value"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num", "invalid_value"),
        ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob", "invalid_value"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [999]}, "token_ids_logprob", "invalid_value"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [1] * 129}, "token_ids_logprob", "invalid_value"),
        ({"text": ["a"], "return_logprob": True, "token_ids_logprob": ["x"]}, "token_ids_logprob[0]", "invalid_type"),
        ({"text": "a", "priority": 2**40}, "priority", "invalid_type"),
        ({"text": "a", "cache_salt": ""}, "cache_salt", "invalid_value"),
        ({"text": "a", "image_data": "x.png"}, "image_data", "unsupported_feature"),
        ({"text": "a", "lora_path": "x"}, "lora_path", "unsupported_feature"),
        ({"text": "a", "session_params": {"id": 1}}, "session_params", "unsupported_feature"),
        ({"text": "a", "custom_logit_processor": "x"}, "custom_logit_processor", "unsupported_feature"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states", "unsupported_feature"),
        ({"text": "a", "nonsense": 1}, "nonsense", "unknown_parameter"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        for stream in (False, True):
            response = await server.post(PATH, {**body, "stream": stream})
            assert response.status_code == 400, response.text
            error = error_of(response)
            assert (error["param"], error["code"]) == (param, code), error
        assert server.engine.jobs == []


async def test_false_is_not_asking_for_it() -> None:
    async with serve() as server:
        assert (await server.post(PATH, {"text": "a", "return_hidden_states": False})).status_code == 200


# ---------------------------------------------------------------- aborts


async def test_an_abort_is_a_finish_reason() -> None:
    async with serve(Script(("ab",), gate=asyncio.Event())) as server:
        running = asyncio.ensure_future(server.post(PATH, {"text": ["a", "b"], "rid": ["one", "two"]}))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        assert (await server.post("/abort", {"rid": "two"})).json() == {"found": 1}
        assert server.engine.aborted == [server.engine.jobs[1].rid]
        assert (await server.post("/abort", {"rids": ["one", "two", "three"]})).json() == {"found": 2}
        body = (await running).json()
    reasons = [item["meta_info"]["finish_reason"] for item in body]
    assert [reason["type"] for reason in reasons] == [FinishReason.ABORT, FinishReason.ABORT]
    assert all(reason["message"] for reason in reasons)


async def test_a_name_in_use_is_refused_to_its_owner_only() -> None:
    async with serve(Script(gate=asyncio.Event()), api_key=("a", "b")) as server:
        mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("a", "b"))
        running = [
            asyncio.ensure_future(server.post(PATH, {"text": "p", "rid": "same"}, headers=headers))
            for headers in (mine, theirs)
        ]
        while len(server.engine.jobs) < 2:
            await asyncio.sleep(0)
        again = await server.post(PATH, {"text": "p", "rid": "same"}, headers=mine)
        assert again.status_code == 400 and error_of(again)["param"] == "rid"
        assert (await server.post("/abort", {"abort_all": True}, headers=theirs)).json() == {"found": 1}
        assert (await running[1]).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert server.service.num_active == 1
        assert (await server.post("/abort", {"rid": "same"}, headers=mine)).json() == {"found": 1}
        await running[0]


async def test_a_name_for_all_prompts_aborts_all_of_them() -> None:
    async with serve(Script(gate=asyncio.Event())) as server:
        running = asyncio.ensure_future(server.post(PATH, {"text": ["a", "b"], "rid": "batch"}))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        assert (await server.post("/abort", {"rid": "batch_1"})).json() == {"found": 1}
        assert (await server.post("/abort_request", {"rid": "batch"})).json() == {"found": 1}
        assert len((await running).json()) == 2
        assert (await server.post("/abort_request", {"rid": "batch"})).json() == {"found": 0}
