"""Chat templates: what they are given, what they refuse, and that they are kept inside their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequest
from radixserve.model import chat_template
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.loader import LoadedModel

LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def test_variables() -> None:
    template = ChatTemplate(
        LOOP + "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}>{{ extra }}{% endif %}",
        {"bos_token": "<s>"},
    )
    assert template.render(USER, extra="!") == "[user:hi]>!"
    assert template.render(USER, add_generation_prompt=False) == "[user:hi]"
    assert template.render(USER, tools=[]) == "[user:hi]>"
    assert template.render(USER, tools=[{"a": "<b>&'ü"}]) == '[user:hi][{"a": "<b>&\'ü"}]>'


def test_blocks_are_trimmed_as_templates_expect() -> None:
    template = ChatTemplate(
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert template.render(USER) == "hi\n"


def test_loop_controls_and_clock() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert template.render([*USER, {"role": "user", "content": "two"}]) == "two"
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(USER).isdigit()


def test_a_final_message_is_continued() -> None:
    template = ChatTemplate(LOOP + "{% if add_generation_prompt %}>{% endif %}")
    messages = [*USER, {"role": "assistant", "content": "I am"}]
    assert template.render(messages, continue_final_message=True) == "[user:hi][assistant:I am"
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        template.render([*USER, {"role": "assistant", "content": None}], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="leaves out the final message"):
        ChatTemplate("nothing").render(messages, continue_final_message=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system messages') }}",
        "{{ messages[3].content }}" * 2,
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% include 'other' %}",
    ],
)
def test_what_a_template_cannot_do_is_the_callers_error(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render(USER)
    assert caught.value.param == "messages"


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    template = ChatTemplate("{% for i in range(500) %}{{ messages[0].content }}{% endfor %}")
    assert len(template.render(USER)) == 1000
    with pytest.raises(InvalidRequest, match="1000 characters"):
        template.render([{"role": "user", "content": "long"}])


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.0)
    with pytest.raises(InvalidRequest, match="takes longer"):
        ChatTemplate("{% for i in range(90000) %}{{ i }}{% endfor %}").render(USER)


def test_the_embedded_models_template(smollm2: LoadedModel) -> None:
    assert smollm2.chat_template is not None
    text = smollm2.chat_template.render(USER)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    turn = smollm2.chat_template.render([*USER, {"role": "assistant", "content": "yo"}, *USER])
    assert turn.startswith(text + "yo<|im_end|>\n"), "a turn is a prefix of the next"
