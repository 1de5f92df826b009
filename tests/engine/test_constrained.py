"""Constrained outputs on a tiny model: what they look like, and that constraints change nothing but that."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixserve import Engine, SamplingParams
from radixserve.constraints import (
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    Tag,
)
from radixserve.engine.streams import ChunkStream
from radixserve.errors import InvalidRequest, MatcherFailed
from radixserve.grammar.base import MaskArray
from radixserve.grammar.llguidance_matcher import LLGuidanceMatcher
from radixserve.messages import FinishReason, GenerationOutput
from radixserve.runtime.model_runner import ModelRunner
from radixserve.scheduler.plan import StepPlan, StepResult
from tests.grammar.vocabularies import structural
from tests.tiny_model import tiny_model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["alpha", "beta"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
JSON = JsonSchema(json.dumps(SCHEMA))
LISTS = Grammar('root ::= list\nlist ::= "(" (item ("," item){0,2})? ")"\nitem ::= [a-c] | list')
TAGS = structural(
    [Tag("<fn=one>", JSON, "</fn>"), Tag("<fn=two>", Regex("[0-9]{2}"), "</fn>")], ["<fn="], required=True, single=True
)
CONSTRAINTS: list[Constraint] = [JSON, Regex("(ab|cd)[0-9]{3}x*"), Choice(("yes", "no", "yesterday")), LISTS, TAGS]


def engine_with(**options: Any) -> Engine:
    return Engine.from_model(
        tiny_model("llama"), **{"num_blocks": 200, "check_every_step": True, "threads": 1, **options}
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_with() as engine:
        yield engine
        engine.check()
        assert engine.cache_stats()["blocks"]["private"] == 0


def params(constraint: Constraint | None, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"constraint": constraint, "max_tokens": 120, "temperature": 1.0, "seed": 1, **changes})


def fits(constraint: Constraint, text: str) -> bool:
    """Whether a finished output is what was asked for, as others than the engine see it."""
    match constraint:
        case JsonSchema():
            jsonschema.validate(json.loads(text), json.loads(constraint.schema))
            return True
        case JsonObject():
            return isinstance(json.loads(text), dict)
        case Regex():
            return re.fullmatch(constraint.pattern, text) is not None
        case Choice():
            return text in constraint.choices
        case Grammar():
            return re.fullmatch(r"[()a-c,]*", text) is not None and text.count("(") == text.count(")")
        case StructuralTag():
            head, content = text[: len("<fn=one>")], text[len("<fn=one>") : -len("</fn>")]
            tag = next(tag for tag in constraint.tags if tag.begin == head)
            return text.endswith(tag.end) and fits(tag.content, content)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: type(constraint).__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_every_finished_output_fits(engine: Engine, constraint: Constraint, temperature: float) -> None:
    finished = 0
    for seed in range(4):
        output = engine.generate("say", params(constraint, temperature=temperature, seed=seed))
        assert output.error is None
        if output.finish_reason is FinishReason.STOP:
            finished += 1
            assert fits(constraint, output.text), output.text
        else:
            assert output.finish_reason is FinishReason.LENGTH and len(output.token_ids) == 120
    assert finished or isinstance(constraint, (Regex, Grammar))


def test_filters_and_penalties_stay_within_the_constraint(engine: Engine) -> None:
    for changes in (
        {"top_k": 1},
        {"top_p": 0.1},
        {"min_p": 0.5},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 2.0},
    ):
        output = engine.generate("say", params(JSON, temperature=1.5, **changes))
        assert output.finish_reason is FinishReason.STOP and fits(JSON, output.text)


def test_a_bias_cannot_bring_in_what_the_constraint_leaves_out(engine: Engine) -> None:
    output = engine.generate("say", params(Regex("[0-9]{6}"), logit_bias={ord("x"): 1e4, ord("7"): 50.0}))
    assert output.text == "777777"


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: type(constraint).__name__)
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.0}, {"logprobs": 2}, {"logprobs": 0, "n": 3}, {"n": 3}])
def test_fast_forward_changes_nothing_but_the_number_of_steps(
    engine: Engine, constraint: Constraint, changes: dict[str, Any]
) -> None:
    prompts = ["say", "say it", "something else"]
    wanted = params(constraint, prompt_logprobs=1, **changes)
    before = engine.cache_stats()["scheduler"]["steps"]
    fast = engine.generate(prompts, wanted)
    steps = engine.cache_stats()["scheduler"]["steps"] - before
    with engine_with(fast_forward=False) as slow:
        assert describe(slow.generate(prompts, wanted)) == describe(fast)
        slow_steps = slow.cache_stats()["scheduler"]["steps"]
    assert (steps < slow_steps) if constraint in (JSON, TAGS) else (steps <= slow_steps), (steps, slow_steps)


def describe(outputs: list[GenerationOutput]) -> list[object]:
    def samples(output: GenerationOutput) -> list[Any]:
        return [*output.samples] or [output]

    return [
        [
            (sample.token_ids, sample.text, sample.logprobs, sample.finish_reason, sample.stop_reason)
            for sample in samples(output)
        ]
        + [output.prompt_logprobs]
        for output in outputs
    ]


def test_forced_tokens_say_so_and_have_the_models_own_logprobs(engine: Engine) -> None:
    output = engine.generate("say", params(JSON, logprobs=0))
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    forced = [entry.forced for entry in output.logprobs]
    assert forced[: len('{"name":"')] == [True] * len('{"name":"') and not all(forced)
    scored = engine.score("say", [output.token_ids])[0]
    assert scored.logprobs == [entry.logprob for entry in output.logprobs]


def test_a_row_has_the_same_bits_alone_and_in_any_batch(engine: Engine) -> None:
    wanted = [params(None, max_tokens=40, logprobs=1, seed=4), *(params(item, logprobs=1) for item in CONSTRAINTS)]
    prompts = [f"prompt number {index}" for index in range(len(wanted))]
    alone = [engine.generate(prompt, sampling) for prompt, sampling in zip(prompts, wanted, strict=True)]
    together = engine.generate(prompts, wanted)
    assert describe(together) == describe(alone)


@pytest.mark.parametrize(
    "options", [{"prefix_cache": "off"}, {"max_batch_tokens": 8, "max_running": 4}, {"block_size": 3}]
)
def test_cold_equals_warm(engine: Engine, options: dict[str, Any]) -> None:
    wanted = [params(item, logprobs=1, n=2) for item in CONSTRAINTS]
    prompts = ["a shared beginning and then " + text for text in ("one", "two", "three", "four", "five")]
    warm = [engine.generate(prompts, wanted) for _ in range(2)]
    assert describe(warm[0]) == describe(warm[1])
    with engine_with(**options) as other:
        assert describe(other.generate(prompts, wanted)) == describe(warm[0])


def test_preemption_keeps_the_place_in_the_grammar(engine: Engine) -> None:
    prompts = [f"number {index} of many" for index in range(6)]
    wanted = params(Regex("([a-z]{3}, and )*"), logprobs=0)
    with engine_with(num_blocks=30, block_size=8, max_running=6) as tight:
        squeezed = tight.generate(prompts, wanted)
        assert tight.cache_stats()["scheduler"]["preemptions"] > 0
    assert describe(squeezed) == describe(engine.generate(prompts, wanted))


def test_a_failed_step_leaves_the_matchers_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_with() as engine:
        prompts, wanted = ["one", "two"], params(JSON, logprobs=0)
        expected = engine.generate(prompts, wanted)
        execute, steps = ModelRunner.execute, iter(range(10_000))

        def failing(self: ModelRunner, plan: StepPlan, *choices: Any) -> StepResult:
            if len(plan.rows) > 1 and next(steps) % 3 == 0:
                raise RuntimeError("a kernel fell over")
            return execute(self, plan, *choices)

        monkeypatch.setattr(ModelRunner, "execute", failing)
        assert describe(engine.generate(prompts, wanted)) == describe(expected)
        assert engine.cache_stats()["scheduler"]["failed_steps"] > 0


@pytest.mark.parametrize("where", ["mask", "token"])
def test_a_matcher_that_fails_fails_its_own_request_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = engine.generate("good", params(LISTS))
    fill, consume = LLGuidanceMatcher.fill_mask, LLGuidanceMatcher.consume

    def failing_fill(self: LLGuidanceMatcher, mask: MaskArray) -> None:
        fill(self, mask)
        if where == "mask" and int(np.unpackbits(mask.view(np.uint8)).sum()) == 26:
            raise MatcherFailed("too complex")

    def failing_consume(self: LLGuidanceMatcher, token: int) -> None:
        if where == "token" and ord("A") <= token <= ord("Z"):
            raise MatcherFailed("too complex")
        consume(self, token)

    engine.generate("bad", params(Regex("[A-Z]{4}")))
    monkeypatch.setattr(LLGuidanceMatcher, "fill_mask", failing_fill)
    monkeypatch.setattr(LLGuidanceMatcher, "consume", failing_consume)
    bad, good = engine.generate(["bad", "good"], [params(Regex("[A-Z]{4}"), n=2), params(LISTS)])
    assert good.token_ids == expected.token_ids and good.error is None
    assert [sample.finish_reason for sample in bad.samples] == [FinishReason.ERROR] * 2
    assert bad.error is not None and "too complex" in bad.error
    assert bad.error_param == "constraint", "it is the request's fault, which a server must be able to say"


def test_an_abort_drops_everything(engine: Engine) -> None:
    before = engine.cache_stats()["blocks"]
    for count in (1, 3, 6):
        chunks = engine.generate("go", params(Regex("[a-z]*"), max_tokens=60), stream=True)
        assert isinstance(chunks, ChunkStream)
        for _ in range(count):
            next(chunks)
        chunks.close()
    assert engine.cache_stats()["running"] == engine.cache_stats()["waiting"] == 0
    after = engine.cache_stats()["blocks"]
    assert after["private"] == 0 and after["total"] == before["total"]


def test_an_output_that_is_cut_says_so(engine: Engine) -> None:
    whole = engine.generate("say", params(JSON))
    for limit in (1, 9, 10, 11, len(whole.token_ids) // 2, len(whole.token_ids) - 2, len(whole.token_ids) - 1):
        cut = engine.generate("say", params(JSON, max_tokens=limit))
        assert cut.finish_reason is FinishReason.LENGTH and cut.token_ids == whole.token_ids[:limit]
    exact = engine.generate("say", params(JSON, max_tokens=len(whole.token_ids)))
    assert (exact.finish_reason, exact.text) == (FinishReason.STOP, whole.text)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("constraint", [JSON, JsonObject(), Regex("(ab)*c[0-9]{4}"), TAGS])
def test_finish_json_ends_every_output_in_time(constraint: Constraint, fast_forward: bool) -> None:
    with engine_with(fast_forward=fast_forward) as engine:
        refused = 0
        for limit in range(1, 90, 6):
            wanted = params(constraint, max_tokens=limit, finish_json=True, n=2, logprobs=0, temperature=1.3)
            try:
                outputs = engine.generate("say", wanted).samples
            except InvalidRequest as error:
                if error.param != "finish_json":
                    raise
                refused += 1
                continue
            for output in outputs:
                assert output.finish_reason is FinishReason.STOP and output.error is None
                assert len(output.token_ids) <= limit
                assert output.stop_reason in (None, "finish_json")
                assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
                assert fits(constraint, output.text), output.text
        assert refused < 12


def test_finish_json_changes_nothing_that_ends_by_itself(engine: Engine) -> None:
    plain = engine.generate("say", params(JSON, logprobs=1))
    assert describe([engine.generate("say", params(JSON, logprobs=1, finish_json=True))]) == describe([plain])


def test_the_grammar_beats_min_tokens_and_ignore_eos(engine: Engine) -> None:
    fixed = engine.generate("say", params(Regex("[0-9]{3}"), min_tokens=50))
    assert fixed.finish_reason is FinishReason.STOP and len(fixed.text) == 3
    longer = engine.generate("say", params(Regex("[0-9]+"), min_tokens=20, temperature=0.0, logit_bias={257: 100.0}))
    assert longer.finish_reason is FinishReason.STOP and len(longer.text) == 20
    endless = engine.generate(
        "say", params(Regex("[0-9]{2,}"), max_tokens=30, ignore_eos=True, logit_bias={257: 100.0})
    )
    assert endless.finish_reason is FinishReason.LENGTH and len(endless.text) == 30


def test_end_tokens_come_exactly_where_the_grammar_accepts(engine: Engine) -> None:
    for end in engine.info.eos_ids:
        output = engine.generate("say", params(Regex("[0-9]{2,9}"), logit_bias={end: 1e4}))
        assert output.text == output.text[:2] and output.token_ids[2:] == [end]
    output = engine.generate("say", params(Regex("[0-9]{2,9}"), stop_token_ids=(258,), logit_bias={258: 1e4}))
    assert (len(output.text), output.token_ids[2:], output.stop_reason) == (2, [258], 258)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_stops_work_inside_forced_tokens(fast_forward: bool) -> None:
    with engine_with(fast_forward=fast_forward) as engine:
        for logprobs in (None, 0):
            text = engine.generate("say", params(JSON, stop=("me",), logprobs=logprobs))
            assert (text.text, text.finish_reason, text.stop_reason) == ('{"na', FinishReason.STOP, "me")
            assert text.token_ids == list(b'{"name')
            token = engine.generate("say", params(JSON, stop_token_ids=(ord("m"),), logprobs=logprobs))
            assert (token.token_ids, token.stop_reason) == (list(b'{"nam'), ord("m"))
            several = engine.generate("say", params(JSON, stop=("me",), n=3, logprobs=logprobs))
            assert [sample.text for sample in several.samples] == ['{"na'] * 3


def test_an_output_that_is_wholly_forced(engine: Engine) -> None:
    output = engine.generate("say", params(Choice(("only this",)), n=2))
    assert [(sample.text, sample.finish_reason) for sample in output.samples] == [("only this", FinishReason.STOP)] * 2
    scored = engine.generate("say", params(Choice(("only this",)), logprobs=0, prompt_logprobs=0))
    assert scored.logprobs is not None and all(entry.forced for entry in scored.logprobs)
    assert scored.prompt_logprobs is not None and len(scored.prompt_logprobs) == scored.prompt_tokens
    cut = engine.generate("say", params(Choice(("only this",)), max_tokens=4))
    assert (cut.text, cut.finish_reason) == ("only", FinishReason.LENGTH)
    nothing = engine.generate("say", params(Choice(("only this",)), max_tokens=0))
    assert (nothing.text, nothing.finish_reason) == ("", FinishReason.LENGTH)


def test_streams_bring_what_the_whole_brings(engine: Engine) -> None:
    wanted = params(JSON, n=2, logprobs=1)
    whole = engine.generate("say", wanted)
    texts, logprobs = ["", ""], [[], []]  # type: list[str], list[list[Any]]
    for chunk in engine.generate("say", wanted, stream=True):
        texts[chunk.index] += chunk.text
        logprobs[chunk.index] += chunk.logprobs
    assert texts == [sample.text for sample in whole.samples]
    assert logprobs == [sample.logprobs for sample in whole.samples]


def test_free_text_may_hold_no_trigger_that_opens_nothing(engine: Engine) -> None:
    tags = structural([Tag("<fn=a>", Choice(("x", "y")), "</fn>")], ["<fn="])
    biased = {ord(letter): 20.0 for letter in "<fn="}
    for seed in range(3):
        output = engine.generate("say", params(tags, logit_bias=biased, max_tokens=80, seed=seed))
        complete = (
            output.text[: output.text.rfind("<fn=")] if output.finish_reason is FinishReason.LENGTH else output.text
        )
        assert complete.count("<fn=") == len(re.findall("<fn=a>[xy]</fn>", complete))


def test_both_faces_refuse_before_anything_is_queued(engine: Engine) -> None:
    bad = params(Regex("(?=x)"))
    with pytest.raises(InvalidRequest, match="constraint: cannot be enforced"):
        engine.generate("say", bad)
    with pytest.raises(InvalidRequest, match="constraint: cannot be enforced"):
        engine.generate(["say", "more"], [params(JSON), bad])

    async def run() -> None:
        with pytest.raises(InvalidRequest, match="constraint: cannot be enforced"):
            await engine.agenerate("say", bad)
        output = await engine.agenerate("say", params(JSON))
        assert isinstance(output, GenerationOutput) and fits(JSON, output.text)

    asyncio.run(run())
    assert engine.cache_stats()["running"] == engine.cache_stats()["waiting"] == 0


def test_an_event_loop_goes_on_while_a_constraint_is_compiled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = engine._loop.compiler
    assert compiler is not None
    compile_, gate = type(compiler).compile, threading.Event()

    def slow(self: Any, constraint: Constraint) -> Any:
        assert gate.wait(60)
        return compile_(self, constraint)

    monkeypatch.setattr(type(compiler), "compile", slow)

    async def run() -> None:
        waiting = asyncio.ensure_future(engine.agenerate("say", params(Regex("[0-9]{4}"))))
        free = await engine.agenerate("say", params(None, max_tokens=5, ignore_eos=True))
        assert isinstance(free, GenerationOutput) and len(free.token_ids) == 5
        assert not waiting.done()
        gate.set()
        output = await waiting
        assert isinstance(output, GenerationOutput) and len(output.text) == 4

    asyncio.run(run())
