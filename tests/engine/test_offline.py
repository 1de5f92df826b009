"""The offline API on a tiny model: results, bad input, failures, streams, threads and event loops."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from radixserve import Engine, SamplingParams
from radixserve.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineClosed,
    InvalidRequest,
    PoolTooSmall,
    UnsupportedFeature,
)
from radixserve.messages import FinishReason, GenerationOutput
from radixserve.model.generation_config import GenerationDefaults
from radixserve.runtime.model_runner import ModelRunner
from radixserve.scheduler.plan import StepPlan, StepResult
from tests.tiny_model import tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model("llama"), num_blocks=64, check_every_step=True, threads=1) as engine:
        yield engine
        engine.check()
        assert engine.cache_stats()["blocks"]["private"] == 0


def test_one_prompt_or_several(engine: Engine) -> None:
    one = engine.generate("hello", GREEDY)
    assert isinstance(one, GenerationOutput)
    assert one.prompt_tokens == len(engine.tokenize("hello")) and one.completion_tokens == 6 == len(one.token_ids)
    assert one.finish_reason is FinishReason.LENGTH and one.error is None and one.samples == []
    several = engine.generate(["hello", "other"], GREEDY)
    assert several[0].token_ids == one.token_ids
    by_ids = engine.generate([engine.tokenize("hello"), engine.tokenize("other")], GREEDY)
    assert [output.token_ids for output in by_ids] == [output.token_ids for output in several]
    assert engine.generate(engine.tokenize("hello"), GREEDY).token_ids == one.token_ids


def test_each_prompt_may_have_its_own_sampling(engine: Engine) -> None:
    outputs = engine.generate(["ab", "ab"], [GREEDY, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)])
    assert [output.completion_tokens for output in outputs] == [6, 2]


def test_stream_equals_the_whole(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=12, n=2, logprobs=1, ignore_eos=True)
    whole = engine.generate("stream", params)
    texts, tokens, reasons = ["", ""], [[], []], [[], []]  # type: ignore[var-annotated]
    outputs = []
    for chunk in engine.generate("stream", params, stream=True):
        texts[chunk.index] += chunk.text
        tokens[chunk.index] += chunk.token_ids
        reasons[chunk.index] += [chunk.finish_reason] if chunk.finish_reason else []
        outputs += [chunk.output] if chunk.output else []
    assert [sample.text for sample in whole.samples] == texts
    assert [sample.token_ids for sample in whole.samples] == tokens
    assert [len(item) for item in reasons] == [1, 1], "exactly one finish reason a sample"
    assert len(outputs) == 1 and outputs[0].samples == whole.samples


def test_leaving_a_stream_early_aborts(engine: Engine) -> None:
    stream = engine.generate("leave", SamplingParams(max_tokens=500, temperature=0, ignore_eos=True), stream=True)
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    assert engine.generate("after", GREEDY).completion_tokens == 6
    stats = engine.cache_stats()
    assert stats["running"] == 0 and stats["scheduler"]["finished"]["abort"] == 1


def test_abort_by_rid_gives_a_last_chunk(engine: Engine) -> None:
    stream = engine.generate("abort", SamplingParams(max_tokens=500, temperature=0, ignore_eos=True), stream=True)
    first = next(stream)
    engine.abort(first.rid)
    engine.abort("nobody")
    chunks = list(stream)
    assert chunks[-1].output is not None and chunks[-1].finish_reason is FinishReason.ABORT
    engine.abort(first.rid)


def test_stop_strings_and_stop_tokens(engine: Engine) -> None:
    free = engine.generate("stop", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    stop = free.text[4:6]
    stopped = engine.generate("stop", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,)))
    assert stopped.text == free.text[: free.text.index(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == (FinishReason.STOP, stop)
    token = free.token_ids[3]
    first = free.token_ids.index(token)
    by_token = engine.generate(
        "stop", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=(token,))
    )
    assert by_token.token_ids == free.token_ids[: first + 1]
    assert (by_token.finish_reason, by_token.stop_reason) == (FinishReason.STOP, token)


def test_no_tokens_wanted_computes_the_prompt_only(engine: Engine) -> None:
    output = engine.generate("0123456789" * 4, SamplingParams(max_tokens=0, prompt_logprobs=1, temperature=0))
    assert output.token_ids == [] and output.finish_reason is FinishReason.LENGTH
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == output.prompt_tokens
    assert output.prompt_logprobs[0] is None and all(entry is not None for entry in output.prompt_logprobs[1:])
    again = engine.generate("0123456789" * 4, SamplingParams(max_tokens=1, temperature=0))
    assert again.cached_tokens == again.prompt_tokens - 1


def test_score_is_the_sum_of_the_logprobs_of_generation(engine: Engine) -> None:
    prompt = engine.tokenize("score this")
    output = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=4, logprobs=0, ignore_eos=True))
    assert output.logprobs is not None
    best, other = engine.score(prompt, [output.token_ids, [1, 2, 3, 4]])
    assert best.logprobs == [entry.logprob for entry in output.logprobs]
    assert best.total == sum(best.logprobs) and best.total > other.total
    assert best.cached_tokens == len(prompt) - 1


def test_four_turns_hit_all_that_came_before(engine: Engine) -> None:
    tokens = engine.tokenize("a first question of some length")
    for _ in range(4):
        held = engine.explain(tokens).cached_tokens
        output = engine.generate(tokens, GREEDY)
        assert output.cached_tokens == held
        # All but the last drawn token have KV; it is computed in the next turn.
        tokens = [*tokens, *output.token_ids]
        assert engine.explain([*tokens, 7, 8]).cached_tokens == len(tokens) - 1
        tokens = [*tokens, *engine.tokenizer.encode(" and another")]


def test_explain_and_flush(engine: Engine) -> None:
    assert engine.explain("never sent before").reason == "never_seen"
    output = engine.generate("some shared text, then this", GREEDY, explain=True)
    assert output.explanation is not None and output.explanation.reason == "never_seen"
    why = engine.explain("some shared text, or that")
    held = len(engine.tokenize("some shared text, "))
    assert (why.reason, why.position, why.text) == ("diverged", held, "or that")
    assert engine.explain("some shared text, then this").reason == "capped"
    assert engine.explain("some shared text, then this", cache_salt="tenant").reason == "namespace"
    assert engine.flush_cache() > 0
    assert engine.cache_stats()["blocks"]["free"] == 64
    assert engine.explain("some shared text, then this").reason == "never_seen"


def test_a_salt_parts_prefixes(engine: Engine) -> None:
    text = "a prompt that is long enough to fill some blocks"
    first = engine.generate(text, GREEDY, cache_salt="a")
    assert engine.generate(text, GREEDY, cache_salt="b").cached_tokens == 0
    assert engine.generate(text, GREEDY, cache_salt="a").cached_tokens == first.prompt_tokens - 1
    assert engine.generate(text, GREEDY).cached_tokens == 0


def test_chat_uses_the_template_and_reuses_the_turn(engine: Engine) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello there"}]
    first = engine.chat(messages, GREEDY)
    assert first.prompt_token_ids == engine.apply_chat_template(messages)
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]}]
    assert engine.chat(parts, GREEDY).token_ids == first.token_ids
    streamed = "".join(chunk.text for chunk in engine.chat(messages, GREEDY, stream=True))
    assert streamed == first.text


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([1, -1], "prompt"),
        ([10**6], "prompt"),
        ([10**30], "prompt"),
        ([1.5], "prompt"),
        ([True], "prompt"),
        ([None], "prompt"),
        (["ok", 3], "prompt"),
        (None, "prompt"),
        (7, "prompt"),
        ({"text": "x"}, "prompt"),
        ("\ud800", "prompt"),
    ],
)
def test_bad_prompts_are_refused_by_name(engine: Engine, prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(prompt, GREEDY)
    assert caught.value.param == param
    assert engine.generate("fine", GREEDY).error is None


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -1.0}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": "hot"},
        {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2}, {"top_k": 1.5}, {"min_p": -0.1}, {"max_tokens": -1},
        {"max_tokens": 1.5}, {"min_tokens": -1}, {"min_tokens": 7}, {"n": 0}, {"n": 65}, {"n": 10**9},
        {"repetition_penalty": 0.0}, {"frequency_penalty": math.nan}, {"presence_penalty": 3.0},
        {"logit_bias": {10**9: 1.0}}, {"logit_bias": {1: math.nan}}, {"stop": ("x" * 1_000_000,)}, {"stop": ("",)},
        {"stop": "text"}, {"stop": (3,)}, {"stop": ("x",) * 65}, {"stop_token_ids": (-1,)}, {"stop_token_ids": (10**9,)},
        {"logprobs": -1}, {"logprobs": 10**6}, {"prompt_logprobs": -1}, {"logprob_start": -1}, {"seed": 2**70},
        {"seed": 1.5}, {"logprobs_mode": "loud"}, {"include_stop": 1}, {"ignore_eos": None},
    ],
    ids=str,
)  # fmt: skip
def test_absurd_sampling_is_refused_by_name(engine: Engine, field: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 6, **field})
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(["good", "bad"], [GREEDY, params])
    assert caught.value.param == next(iter(field))
    assert engine.cache_stats()["waiting"] == engine.cache_stats()["running"] == 0, "nothing was queued"


def test_what_cannot_fit_is_refused_with_the_numbers(engine: Engine) -> None:
    context = engine.config.model.context_length
    assert context is not None
    with pytest.raises(ContextLengthExceeded, match=f"maximum context length is {context} tokens"):
        engine.generate([5] * 10, SamplingParams(max_tokens=context))
    with pytest.raises(ContextLengthExceeded):
        engine.generate([5] * context)
    with pytest.raises(PoolTooSmall, match="needs 65 KV blocks, but the whole pool holds 64"):
        engine.generate([5] * 10, SamplingParams(max_tokens=64 * 16 - 9))
    exact = engine.generate([5] * 1000, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
    assert exact.completion_tokens == 24
    filled = engine.generate([5] * 1000, SamplingParams(temperature=0, ignore_eos=True))
    assert filled.completion_tokens == 24, "without max_tokens the output is what the pool leaves"


def test_other_bad_arguments(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="sampling"):
        engine.generate("x", [GREEDY, GREEDY])
    with pytest.raises(InvalidRequest, match="sampling"):
        engine.generate("x", {"temperature": 0})  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="priority"):
        engine.generate("x", GREEDY, priority=2**40)
    with pytest.raises(InvalidRequest, match="cache_salt"):
        engine.generate("x", GREEDY, cache_salt="")
    for messages in ([], "hello", [{"content": "x"}], [{"role": "user", "content": 3}]):
        with pytest.raises(InvalidRequest, match="messages"):
            engine.chat(messages, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFeature, match="image_url"):
        engine.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], GREEDY)
    with pytest.raises(InvalidRequest, match=r"tools\[0\]"):
        engine.chat([{"role": "user", "content": "x"}], GREEDY, tools=[{"type": "function"}])
    with pytest.raises(InvalidRequest, match="continuations"):
        engine.score("x", [])
    with pytest.raises(ConfigError, match="lora"):
        Engine.from_model(tiny_model("llama"), lora="x")


def test_pressure_preempts_and_changes_nothing() -> None:
    params = [
        SamplingParams(temperature=0.8, seed=index, max_tokens=40, ignore_eos=True, logprobs=1) for index in range(6)
    ]
    prompts = [[5, 6, 7] * 8 + [index + 10] for index in range(6)]
    model = tiny_model("llama")
    with Engine.from_model(model, num_blocks=200, threads=1) as roomy:
        calm = roomy.generate(prompts, params)
    with Engine.from_model(model, num_blocks=9, check_every_step=True, watermark=0.0, threads=1) as tight:
        squeezed = tight.generate(prompts, params)
        stats = tight.cache_stats()
    assert stats["scheduler"]["preemptions"] > 0 and stats["cache"]["evicted_blocks"] > 0
    assert [output.logprobs for output in squeezed] == [output.logprobs for output in calm]


def test_a_failing_step_fails_only_the_request_that_fails_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate(["good one", "good two"], GREEDY)
    execute = ModelRunner.execute

    def poisoned(self: ModelRunner, plan: StepPlan) -> StepResult:
        if any(99 in row.tokens for row in plan.rows):
            raise RuntimeError("a kernel fell over")
        return execute(self, plan)

    monkeypatch.setattr(ModelRunner, "execute", poisoned)
    first, second = engine.tokenize("good one"), engine.tokenize("good two")
    outputs = engine.generate([first, [99, 99, 3], second], GREEDY)
    assert [output.token_ids for output in (outputs[0], outputs[2])] == [output.token_ids for output in expected]
    assert outputs[1].finish_reason is FinishReason.ERROR and outputs[1].error == "a kernel fell over"


def test_non_finite_logits_fail_their_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    weights = dict(model.weights)
    weights["embed"] = weights["embed"].clone()
    weights["embed"][200] = math.nan
    if not model.config.tied_head:
        with Engine.from_model(dataclasses.replace(model, weights=weights), num_blocks=64, threads=1) as engine:
            good, bad = engine.generate([[5, 6, 7], [5, 6, 200]], GREEDY)
            assert good.error is None and good.completion_tokens == 6
            assert bad.finish_reason is FinishReason.ERROR and bad.error is not None and "non-finite" in bad.error
            assert engine.explain([5, 6, 200, 9]).cached_tokens <= 3
            engine.check()


def test_generation_config_is_honoured() -> None:
    model = tiny_model("llama")
    free = SamplingParams(temperature=0, max_tokens=10)
    with Engine.from_model(model, num_blocks=64, threads=1) as engine:
        tokens = engine.generate([9, 8, 7], dataclasses_free(free)).token_ids
    defaults = GenerationDefaults(
        eos_ids=(*model.generation.eos_ids, tokens[3]), temperature=0.0, top_k=7, repetition_penalty=1.0, max_tokens=9
    )
    with Engine.from_model(dataclasses.replace(model, generation=defaults), num_blocks=64, threads=1) as engine:
        assert engine.default_sampling == SamplingParams(temperature=0.0, top_k=7, max_tokens=9)
        output = engine.generate([9, 8, 7])
        assert output.token_ids == tokens[: tokens.index(tokens[3]) + 1]
        assert output.finish_reason is FinishReason.STOP and output.stop_reason is None


def dataclasses_free(params: SamplingParams) -> SamplingParams:
    """The same parameters, ignoring the model's own end tokens."""
    import msgspec

    return msgspec.structs.replace(params, ignore_eos=True)


def test_threads_share_the_engine(engine: Engine) -> None:
    alone = {text: engine.generate(text, GREEDY).token_ids for text in ("one", "two", "three", "four")}
    engine.flush_cache()
    got: dict[str, list[int]] = {}

    def work(text: str) -> None:
        got[text] = engine.generate(text, GREEDY).token_ids

    threads = [threading.Thread(target=work, args=(text,)) for text in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == alone


def test_the_asynchronous_face(engine: Engine) -> None:
    expected = engine.generate(["one", "two"], GREEDY)

    async def both() -> list[GenerationOutput]:
        single, listed = await asyncio.gather(engine.agenerate("one", GREEDY), engine.agenerate(["two"], GREEDY))
        assert isinstance(single, GenerationOutput) and isinstance(listed, list)
        texts = [chunk.text async for chunk in engine.astream("one", GREEDY)]
        assert "".join(texts) == single.text
        return [single, *listed]

    assert [output.token_ids for output in asyncio.run(both())] == [output.token_ids for output in expected]


def test_cancelling_a_task_aborts_its_request(engine: Engine) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(
            engine.agenerate("x", SamplingParams(max_tokens=900, temperature=0, ignore_eos=True))
        )
        while engine.cache_stats()["running"] == 0:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert engine.generate("after", GREEDY).error is None
    assert engine.cache_stats()["scheduler"]["finished"]["abort"] == 1


def test_a_closed_engine_says_so() -> None:
    engine = Engine.from_model(tiny_model("llama"), num_blocks=64, threads=1)
    stream = engine.generate("x", SamplingParams(max_tokens=900, temperature=0, ignore_eos=True), stream=True)
    next(stream)
    engine.close()
    with pytest.raises(EngineClosed):
        list(stream)
    with pytest.raises(EngineClosed):
        engine.generate("x", GREEDY)
    engine.close()


def test_numpy_ids_are_not_taken_for_granted(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        engine.generate([np.int64(3)], GREEDY)  # type: ignore[list-item]
