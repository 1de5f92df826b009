from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from radixserve.messages import SamplingParams
from tests.cli.conftest import CommandLine

Make = Callable[..., CommandLine]


def test_raw_prompt_is_continued(command_line: Make) -> None:
    ran = command_line()("generate", "one two")
    assert (ran.code, ran.out) == (0, "one~ two~ \n")
    assert "2 prompt tokens (0 cached), 2 new, 2.0 tokens/s, first token after 0.50 s, ended by stop" in ran.err
    assert ran.engine is not None
    assert ran.engine.generated == [(["one two"], SamplingParams(temperature=0.5, max_tokens=256), 0, None)]
    assert ran.engine.closed


def test_flags_reach_sampling_engine_and_request(command_line: Make) -> None:
    ran = command_line()(
        *("generate", "hi", "--temperature", "0", "--max-tokens", "7", "--stop", "a", "--stop", "b", "--seed", "3"),
        *("--stop-token-ids", "5", "--logit-bias", "11=-2.5", "--ignore-eos", "--no-skip-special-tokens"),
        *("--logprobs-mode", "processed", "--engine-seed", "9", "--block-size", "8", "--no-chunked-prefill"),
        *("--policy", "dfs-weight", "--itl-target-ms", "40", "--priority", "2", "--cache-salt", "me"),
    )
    assert ran.code == 0, ran.err
    assert ran.engine is not None
    ((_, sampling, priority, salt),) = ran.engine.generated
    assert sampling == SamplingParams(
        temperature=0.0,
        max_tokens=7,
        stop=("a", "b"),
        seed=3,
        stop_token_ids=(5,),
        logit_bias={11: -2.5},
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs_mode="processed",
    )
    assert (priority, salt) == (2, "me")
    assert ran.engine.options == {
        "seed": 9,
        "block_size": 8,
        "chunked_prefill": False,
        "policy": "dfs-weight",
        "itl_target_ms": 40.0,
    }


def test_several_prompts_and_samples_are_printed_in_order(command_line: Make) -> None:
    ran = command_line()("generate", "a b", "c", "--n", "2")
    assert ran.out == (
        "--- prompt 1, sample 1\na~ b~ \n"
        "--- prompt 1, sample 2\nother\n"
        "--- prompt 2, sample 1\nc~ \n"
        "--- prompt 2, sample 2\nother\n"
    )
    assert ran.err.index("prompt 1: 2 prompt tokens") < ran.err.index("prompt 2: 1 prompt tokens")


def test_chat_answers_each_prompt_in_its_own_conversation(command_line: Make) -> None:
    ran = command_line()("generate", "--chat", "--system", "be brief", "a", "b", "--no-stream")
    assert ran.out == "--- prompt 1, sample 1\na~ \n--- prompt 2, sample 1\nb~ \n"
    assert ran.engine is not None
    assert [messages for messages, _ in ran.engine.chats] == [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}] for text in "ab"
    ]


def test_json_gives_chunks_or_outputs(command_line: Make) -> None:
    chunks = [json.loads(line) for line in command_line()("generate", "a b", "--json").out.splitlines()]
    assert [chunk["text"] for chunk in chunks] == ["a~ ", "b~ ", ""]
    assert chunks[-1]["output"]["text"] == "a~ b~ "
    (output,) = command_line()("generate", "a b", "--json", "--no-stream").out.splitlines()
    assert json.loads(output)["finish_reason"] == "stop"


def test_standard_input_is_a_prompt(command_line: Make) -> None:
    ran = command_line()("generate", "--stdin", "first", stdin="second\nline")
    assert ran.engine is not None
    assert ran.engine.generated[0][0] == ["first", "second\nline"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "prompt: give at least one PROMPT"),
        (["x", "--system", "y"], "system: a system message needs --chat"),
        (["x", "--block-size", "0"], "block_size: must be between 1 and 1024, not 0"),
        (["x", "--logit-bias", "one=1"], "logit_bias: must be ID=BIAS"),
        (["x", "--policy", "best"], "--policy"),
        (["x", "--best-of", "3"], "--best-of"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command_line: Make, arguments: list[str], named: str) -> None:
    ran = command_line()("generate", *arguments)
    assert (ran.code, ran.exception) == (2, None)
    assert named in ran.err
    assert "Traceback" not in ran.err


def test_a_failed_generation_is_told(command_line: Make) -> None:
    ran = command_line(error="logits were not [finite]")("generate", "a")
    assert ran.code == 1
    assert "error: logits were not [finite]\n" in ran.err
    assert command_line(error="bad")("generate", "a", "--json").code == 1
