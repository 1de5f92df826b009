"""Chat templates: what they are given, what they refuse, and that they are kept inside their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Backend

from radixserve.errors import InvalidRequest, ModelLoadError
from radixserve.model import chat_template
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.loader import LoadedModel
from tests.tiny_model import TEMPLATE, byte_tokenizer

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
    with pytest.raises(InvalidRequest, match="or a part of it"):
        ChatTemplate("{{ messages[-1].content[2:] }}").render(messages, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="no message"):
        template.render([], continue_final_message=True)
    asked = ChatTemplate("{{ add_generation_prompt }}:{{ messages[-1].content }}")
    assert asked.render(messages, continue_final_message=True) == "False:I am"
    twice = ChatTemplate("{{ messages[-1].content }}/{{ messages[-1].content }}!")
    assert twice.render(messages, continue_final_message=True) == "I am/I am"


def test_a_final_message_of_parts_is_continued() -> None:
    template = ChatTemplate("{% for part in messages[-1].content %}({{ part.text }}){% endfor %}end")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "assistant", "content": parts}]
    assert template.render(messages, continue_final_message=True) == "(a)(b"
    assert parts[-1]["text"] == "b", "the caller's message is left alone"
    with pytest.raises(InvalidRequest, match="no text"):
        template.render([{"role": "assistant", "content": [{"type": "image"}]}], continue_final_message=True)


def test_generation_blocks_only_mark_the_answer() -> None:
    source = (
        "{% set x = 1 %}{% for m in messages %}\n{%- generation %}{% set x = 2 %}<{{ m.content }}>{% endgeneration -%}\n"
        "{% endfor %}{{ x }}"
    )
    assert ChatTemplate(source).render(USER) == "<hi>1"


def test_options_of_tojson() -> None:
    def render(options: str) -> str:
        return ChatTemplate("{{ extra | tojson" + options + " }}").render(USER, extra={"b": "é", "a": [1, 2]})

    assert render("") == '{"b": "é", "a": [1, 2]}'
    assert render("(ensure_ascii=true)") == '{"b": "\\u00e9", "a": [1, 2]}'
    assert render("(sort_keys=true, separators=(',', ':'))") == '{"a":[1,2],"b":"é"}'
    assert render("(indent=1)").startswith('{\n "b": "é",\n')


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedTokenizerFast:
    backend = Backend.from_str(byte_tokenizer()._backend.to_str())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "  Be <b>brief</b> & kind.\n"},
    {"role": "user", "content": "What's 2+2?\n"},
    {"role": "assistant", "content": "Fo"},
]
SOURCES = {
    "plain": TEMPLATE,
    "system": "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = 'none' %}{% set rest = messages %}{% endif %}{{ bos_token }}[{{ system }}]\n"
    "{% for m in rest %}\n  {% if m.role == 'user' %}\nQ: {{ m.content }}\n  {% else %}\nA: {{ m.content }}{{ eos_token }}\n"
    "  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}",
    "tools": "{%- if tools is not none %}{{ tools | tojson(indent=2) }}{%- endif %}"
    "{%- set ns = namespace(count=0) %}{%- for m in messages %}{%- set ns.count = ns.count + 1 %}"
    "{{- m.role.upper() ~ ': ' ~ m['content'] }}\n{%- endfor %}{{ ns.count }}{% if documents is none %}.{% endif %}",
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f", "description": "<ü>"}}]])
@pytest.mark.parametrize("mode", ["add_generation_prompt", "continue_final_message", None])
def test_the_text_equals_the_librarys(
    theirs: transformers.PreTrainedTokenizerFast, name: str, tools: list[dict[str, Any]] | None, mode: str | None
) -> None:
    source = SOURCES[name]
    options = {option: option == mode for option in ("add_generation_prompt", "continue_final_message")}
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(source, special).render(CONVERSATION, tools=tools, **options)
    assert ours == theirs.apply_chat_template(
        CONVERSATION, chat_template=source, tools=tools, tokenize=False, **options
    )


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% generation %}x", "{% unknown_tag %}", "{{ 1 | no_filter }}"]
)
def test_a_template_that_does_not_compile_is_the_models_error(source: str) -> None:
    with pytest.raises(ModelLoadError, match="does not compile"):
        ChatTemplate(source)


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
