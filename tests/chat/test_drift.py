"""Templates that write history otherwise than it was."""

from __future__ import annotations

import pytest

from radixserve.chat.drift import find_drift
from radixserve.chat.format import ChatFormat
from radixserve.model.loader import LoadedModel
from tests.chat import templates
from tests.chat.models import chat_format


def cases(chat: ChatFormat) -> list[str]:
    return [drift.case for drift in find_drift(chat)]


@pytest.mark.parametrize("source", [templates.CHATML, templates.QWEN])
def test_templates_that_keep_history(source: str) -> None:
    assert cases(chat_format(source)) == []


def test_the_embedded_template(smollm2: LoadedModel) -> None:
    assert find_drift(ChatFormat(smollm2.chat_template, smollm2.tokenizer)) == []


def test_trimmed_white_space() -> None:
    (drift,) = find_drift(chat_format(templates.LLAMA))
    assert drift.case == "white space around an answer"
    assert drift.generated.endswith("\n\n\n The capital of France ") and "\n\nThe capital" in drift.rendered
    assert f"token {drift.position}" in str(drift) and "cache ends there" in str(drift)


def test_reasoning_that_is_left_out() -> None:
    (drift,) = find_drift(chat_format(templates.THINKER))
    assert drift.case == "an answer with reasoning"
    assert "<think>\nThe user" in drift.generated and "assistant\nThe capital" in drift.rendered
    thought = "'<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n'"
    shown = "{%- if message.reasoning_content %}{{- '<|im_start|>assistant\\n' + THOUGHT + content }}{%- else %}"
    writing = "{{- '<|im_start|>' + message.role + '\\n' + content }}"
    keeping = templates.THINKER.replace(
        "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}",
        shown.replace("THOUGHT", thought) + writing + "{%- endif %}{{- '<|im_end|>\\n' }}",
    )
    assert keeping != templates.THINKER
    assert cases(chat_format(keeping)) == []


def test_the_time_of_day() -> None:
    source = "{{ strftime_now('%H:%M') }}\n" + templates.CHATML
    (drift,) = find_drift(chat_format(source))
    assert drift.case == "the time of day"
    assert drift.generated.startswith("%H:%M early") and drift.rendered.startswith("%H:%M late")


def test_calls_that_are_written_otherwise() -> None:
    source = templates.QWEN.replace("call.arguments | tojson", "call.arguments | tojson(sort_keys=true)")
    assert cases(chat_format(source)) == []
    with_id = templates.MISTRAL_LIST.replace("no system messages", "none")
    assert cases(chat_format(with_id)) == ["a tool call"], "the template adds an id"


def test_the_position_is_the_first_token_that_differs() -> None:
    chat = chat_format(templates.CHATML.replace("{{ message.content }}", "{{ message.content | trim }}"))
    (drift,) = find_drift(chat)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert drift.position in (len(chat.tokenizer.encode(text)) - 1, len(chat.tokenizer.encode(text)))
