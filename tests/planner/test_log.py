from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixserve.config import EngineConfig
from radixserve.errors import InvalidRequest
from radixserve.planner.log import Log, read_log
from radixserve.planner.model import PlanModel
from radixserve.planner.options import PlanOptions
from radixserve.planner.plan import Plan
from radixserve.planner.planning import plan_log
from radixserve.planner.trace import CallTrace


def write(tmp_path: Path, lines: list[Any]) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def planned(tmp_path: Path, lines: list[Any], model: PlanModel, **options: Any) -> Plan:
    history = options.pop("history", True)
    config = EngineConfig.from_options(num_blocks=600, check_every_step=True)
    return plan_log(write(tmp_path, lines), model=model, config=config, options=PlanOptions(**options), history=history)


def read(tmp_path: Path, lines: list[Any], model: PlanModel) -> Log:
    from radixserve.engine.intake import Limits

    limits = Limits(model.text.tokenizer.vocab_size, model.context_length, 1000, 16, 64)
    return read_log(write(tmp_path, lines), model.text, limits)


def named(plan: Plan) -> dict[str, CallTrace]:
    return {call.intent.name: call for call in plan.trace.calls}


SHARED = "All prompts begin with these words, which are more than a block of them. "


def test_every_shape_of_a_line(tmp_path: Path, tiny_text: PlanModel) -> None:
    encode = tiny_text.text.tokenizer.encode
    lines = [
        json.dumps("plain"),
        [1, 2, 3],
        {"prompt": "text", "max_tokens": 5},
        {"prompt": [[4, 5], [6, 7, 8]], "max_tokens": 5},
        {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7, "n": 2},
        {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 3}},
        {"input_ids": [9, 9], "sampling_params": {"max_new_tokens": 3}},
        {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "batch", "max_tokens": 2}},
        "",
        {"time": "t", "level": "info", "logger": "x", "message": "started"},
        {
            "logger": "x",
            "message": "POST",
            "prompts": ["<|im_start|>user\nq"],
            "outputs": [["one", "two"]],
            "prompt_tokens": 9,
        },
    ]
    log = read(tmp_path, lines, tiny_text)
    assert log.skipped == 1
    prompts = [call.prompt if isinstance(call.prompt, list) else "chat" for call in log.calls]
    assert prompts == [
        encode("plain"),
        [1, 2, 3],
        encode("text"),
        [4, 5],
        [6, 7, 8],
        "chat",
        encode("a"),
        encode("b"),
        [9, 9],
        encode("batch"),
        encode("<|im_start|>user\nq"),
    ]
    assert [call.sampling.max_tokens for call in log.calls] == [16, 16, 5, 5, 5, 7, 3, 3, 3, 2, None]
    assert [call.sampling.n for call in log.calls] == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2]
    assert log.calls[-1].output == ("one", "two")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON"),
        ("7", "line 2: must be a text, a list of token ids or an object"),
        ({"messages": [{"role": "user"}]}, r"line 2: messages\[0\].content: must be given"),
        ({"messages": [], "temprature": 1}, "line 2: temprature: this field is not known"),
        ({"prompt": [1, "a"]}, r"line 2: prompt\[0\]: must be a text or a list of token ids"),
        ({"prompt": "a", "suffix": "b"}, "line 2: suffix: inserting text"),
        ({"input": "embed me"}, "line 2: input: requests of /v1/responses"),
        ({"max_tokens": 3}, "line 2: holds none of messages, prompt, text, input_ids and body"),
        ({"body": {"prompt": "a"}, "extra": 1}, "line 2: extra: is not a field of a line with a body"),
        ({"prompt": "a", "output": "b", "output_ids": [1]}, "line 2: output: stands beside output_ids"),
        ({"prompt": ["a", "b"], "output": "c"}, "line 2: output: may stand beside a single prompt only"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, tiny_text: PlanModel, line: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(tmp_path, [json.dumps("fine"), line], tiny_text)


def test_a_log_without_prompts_says_how_to_get_them(tmp_path: Path, tiny_text: PlanModel) -> None:
    with pytest.raises(InvalidRequest, match="holds no prompts; a server writes them with --log-prompts"):
        read(tmp_path, [{"logger": "x", "message": "POST /v1/completions 200"}], tiny_text)


def test_prefixes_are_shared_as_in_the_engine(tmp_path: Path, tiny_text: PlanModel) -> None:
    prompts = [SHARED + f"Question {number}" for number in range(6)]
    plan = planned(tmp_path, [{"prompt": prompt, "max_tokens": 4} for prompt in prompts], tiny_text, concurrency=1)
    # One byte is one token: all but the number is found, one after the other.
    length = len(prompts[0])
    assert [call.cached for call in plan.trace.calls] == [0, *[length - 1] * 5]
    assert plan.tokens.computed == plan.tokens.needed == length + 5
    assert plan.tokens.share_of_best == 1.0
    assert plan.shared[0].saved == 5 * (length - 1)


def test_calls_that_come_together_share_whole_blocks(tmp_path: Path, tiny_text: PlanModel) -> None:
    prompts = [SHARED + f"Question {number}" for number in range(10, 40)]
    plan = planned(tmp_path, [{"prompt": prompt, "max_tokens": 4} for prompt in prompts], tiny_text, concurrency=30)
    shared = (len(prompts[0]) - 1) // 16 * 16
    assert [call.cached for call in plan.trace.calls] == [0, *[shared] * 29]
    (advice,) = plan.advice
    assert advice.kind == "came_together"
    assert advice.saves == plan.tokens.computed - plan.tokens.needed > 0


def turns(count: int) -> list[dict[str, Any]]:
    """The requests of one conversation; each quotes the answers before."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SHARED}]
    lines = []
    for number in range(count):
        messages = [*messages, {"role": "user", "content": f"Question {number}?"}]
        lines.append({"messages": messages, "max_tokens": 60})
        messages = [*messages, {"role": "assistant", "content": f"Answer number {number}."}]
    return lines


def test_answers_that_later_requests_quote_are_taken_as_outputs(tmp_path: Path, tiny_text: PlanModel) -> None:
    plan = planned(tmp_path, turns(3), tiny_text)
    decode = tiny_text.text.tokenizer.decode
    first, second, third = (named(plan)[f"line {number}"] for number in (1, 2, 3))
    assert decode(first.outputs[0]).startswith("Answer number 0.")
    # Prompt and answer of the turn before are found; the end token was drawn and not computed.
    assert second.cached == len(first.prompt) + len("Answer number 0.")
    assert third.cached == len(second.prompt) + len("Answer number 1.")
    assert plan.unknown == 1


def test_a_turn_waits_for_the_answer_that_it_quotes(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = turns(2)
    plan = planned(
        tmp_path, [*lines, *({"prompt": f"other {number}", "max_tokens": 2} for number in range(3))], tiny_text
    )
    calls = named(plan)
    first, second = calls["line 1"], calls["line 2"]
    assert first.ended is not None
    assert second.after > first.ended
    assert calls["line 3"].arrived == 0


def test_outputs_beside_a_body_are_what_came_of_it(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = [
        {"prompt": "one", "max_tokens": 9, "output": "said"},
        {"prompt": "two", "max_tokens": 9, "output_ids": [70, 71]},
    ]
    plan = planned(tmp_path, lines, tiny_text)
    outputs = [call.outputs[0] for call in plan.trace.calls]
    assert outputs == [(*b"said", 257), (70, 71, 257)]
    assert plan.unknown == 0


def test_namespaces_share_nothing(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = [{"prompt": SHARED + "x", "max_tokens": 2, "cache_salt": f"tenant {number}"} for number in range(4)]
    plan = planned(tmp_path, lines, tiny_text)
    assert plan.tokens.cached == 0
    (advice,) = plan.advice
    assert (advice.kind, advice.saves, advice.calls) == ("namespaces", 3 * len(SHARED + "x") - 4, 4)


def test_what_the_engine_refuses_is_told_and_the_rest_is_planned(tmp_path: Path, tiny_text: PlanModel) -> None:
    plan = planned(tmp_path, [{"prompt": "a" * 5000, "max_tokens": 1}, {"prompt": "b", "max_tokens": 1}], tiny_text)
    (refused,) = plan.refused
    assert refused.startswith("line 1: prompt: this model's maximum context length is 4096")
    assert plan.calls == 1


def test_made_up_outputs_are_as_long_as_was_said(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = [
        {"prompt": "a", "max_tokens": 50},
        {"prompt": "b", "max_tokens": 3},
        {"prompt": "c", "max_tokens": 50, "min_tokens": 20},
    ]
    plan = planned(tmp_path, lines, tiny_text, output_tokens=10)
    assert [call.generated for call in plan.trace.calls] == [10, 3, 20]
    assert [call.finish_reason for call in plan.trace.calls] == ["stop", "length", "stop"]


def test_constraints_are_kept_by_made_up_outputs(tmp_path: Path, smollm2_text: PlanModel) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    lines = [
        {
            "prompt": "a",
            "max_tokens": 90,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        }
    ]
    plan = planned(tmp_path, lines, smollm2_text, output_tokens=8)
    (call,) = plan.trace.calls
    document = json.loads(smollm2_text.text.tokenizer.decode(call.outputs[0], skip_special=True))
    assert isinstance(document["name"], str)
    assert call.finish_reason == "stop"


def test_pools_are_tried_with_the_same_calls(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = [{"prompt": f"{number}" * 100, "max_tokens": 4} for number in (1, 2, 3, 1, 2, 3)]
    plan = planned(tmp_path, lines, tiny_text, concurrency=1, pools=(8, 12, 64))
    least, small, large = plan.pools
    assert (least.refused, small.refused, large.refused) == (0, 0, 0)
    assert least.computed > large.computed
    assert least.evicted > small.evicted > large.evicted == 0
    assert large.computed == plan.tokens.computed == 303
    assert plan.blocks.kept <= 64


def test_the_smallest_pool_without_eviction_is_just_that(tmp_path: Path, tiny_text: PlanModel) -> None:
    lines = [{"prompt": f"{number}" * 100, "max_tokens": 4} for number in (1, 2, 3, 1, 2, 3)]
    ample = planned(tmp_path, lines, tiny_text, concurrency=1)
    sizes = (ample.blocks.kept, ample.blocks.kept - 1)
    exact, smaller = planned(tmp_path, lines, tiny_text, concurrency=1, pools=sizes).pools
    assert exact.evicted == 0
    assert smaller.evicted > 0
