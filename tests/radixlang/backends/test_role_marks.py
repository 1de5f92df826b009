"""Marks of roles, by many templates: a conversation that is put together from them is the one that the template writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from radixlang.backends.base import Message, RoleMarks
from radixlang.backends.role_marks import RoleMarker
from radixlang.errors import Refused, Unsupported
from radixserve.errors import InvalidRequest
from radixserve.model.chat_template import ChatTemplate
from tests.chat import templates

SMOLLM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
# A system message is part of the first turn, and is shown with it only.
SYSTEM_IN_TURN = """{% if messages[0].role == 'system' %}{% set system = '<<SYS>>' + messages[0].content + '<</SYS>>' %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif -%}
{% for message in messages %}{% if message.role == 'user' %}{{ bos_token + '[INST] ' }}{{ system if loop.first else '' }}
{{- message.content + ' [/INST]' }}
{%- else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %}"""
# A system message is part of the last turn: it moves as the conversation grows.
SYSTEM_IN_LAST = """{% for message in messages if message.role != 'system' %}{% if message.role == 'user' %}[INST]
{%- if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}{{ message.content }}[/INST]
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""
STRICT = """{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('turns must alternate') }}{% endif %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
# The end of a message is written before the next one only.
UNENDED = """{% for message in messages %}{{ '## ' + message.role + '\n' + message.content }}{% if not loop.last %}{{ '\n\n' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '\n\n## assistant\n' }}{% endif %}"""
TWICE = "{% for message in messages %}{{ message.role }}: {{ message.content }} ({{ message.content }})\n{% endfor %}"

SYSTEM, USER, ANSWER, AGAIN = (
    Message("system", "Be brief."),
    Message("user", "One?"),
    Message("assistant", "Two."),
    Message("user", "Three?"),
)


class Template:
    """A template, and how often it was rendered."""

    def __init__(self, source: str) -> None:
        self.template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
        self.rendered = 0

    async def render(self, messages: Sequence[Message], asking: bool) -> str:
        self.rendered += 1
        return self.text(messages, asking)

    def text(self, messages: Sequence[Message], asking: bool) -> str:
        shown = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self.template.render(shown, add_generation_prompt=asking)
        except InvalidRequest as error:
            raise Refused(error.param, error.message, error.code) from error


def marks_of(source: str, role: str, *earlier: Message) -> RoleMarks:
    return asyncio.run(RoleMarker(Template(source).render, "test").marks(role, earlier))


async def put_together(marker: RoleMarker, messages: Sequence[Message], *, asking: bool) -> str:
    """The conversation as a program writes it: marks and contents one after the other."""
    text = ""
    for index, message in enumerate(messages):
        marks = await marker.marks(message.role, messages[:index])
        text += (marks.begin if marks.written is None else marks.written) + message.content + marks.end
    return text + (await marker.marks("assistant", messages)).begin if asking else text


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize(
    "source",
    [
        templates.CHATML,
        templates.QWEN,
        templates.LLAMA,
        templates.MISTRAL,
        templates.OTHER_TOOLS,
        SMOLLM,
        SYSTEM_IN_TURN,
        UNENDED,
    ],
    ids=["chatml", "qwen", "llama", "mistral", "plain", "smollm", "system_in_turn", "unended"],
)
def test_a_conversation_of_marks_is_what_the_template_writes(source: str, system: bool) -> None:
    template = Template(source)
    marker = RoleMarker(template.render, "test")
    messages = [*([SYSTEM] if system else []), USER, ANSWER, AGAIN]
    for length in range(2 if system else 1, len(messages) + 1):
        begun = messages[:length]
        asking = begun[-1].role == "user"
        assert asyncio.run(put_together(marker, begun, asking=asking)) == template.text(begun, asking)


def test_what_a_template_trims_stays_as_it_was_written() -> None:
    spaced = Message("user", " One? ")
    template = Template(templates.LLAMA)
    text = asyncio.run(put_together(RoleMarker(template.render, "test"), [spaced], asking=True))
    assert text.replace(" One? ", "One?") == template.text([spaced], True)


def test_reasoning_that_a_template_drops_later_stays() -> None:
    template = Template(templates.THINKER)
    marker = RoleMarker(template.render, "test")
    thought = Message("assistant", "Hm.</think>\nTwo.")
    # An answer begins in its reasoning; the template shows none of it in what came before.
    asked = asyncio.run(marker.marks("assistant", [USER]))
    assert (asked.begin, asked.written) == ("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n")
    assert asyncio.run(marker.marks("user", [USER, thought])) == RoleMarks("<|im_start|>user\n", "<|im_end|>\n")


def test_a_system_message_that_the_template_puts_in_is_part_of_the_first_mark() -> None:
    first = marks_of(SMOLLM, "user")
    assert first.begin.startswith("<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n")
    assert marks_of(SMOLLM, "user", SYSTEM).begin == "<|im_start|>user\n"


def test_an_answer_may_come_first() -> None:
    assert marks_of(templates.CHATML, "assistant") == RoleMarks("<|im_start|>assistant\n", "<|im_end|>\n")


def test_the_order_of_roles_is_all_that_marks_depend_on() -> None:
    template = Template(templates.CHATML)
    marker = RoleMarker(template.render, "test")

    async def ask() -> None:
        await asyncio.gather(*(marker.marks("user", [Message("system", str(number))]) for number in range(50)))

    asyncio.run(ask())
    once = template.rendered
    asyncio.run(ask())
    assert once == template.rendered <= 3


def test_a_role_that_the_template_lacks_is_refused() -> None:
    with pytest.raises(Refused, match=r"'system' is refused by the chat template here: .*no system messages"):
        marks_of(templates.MISTRAL_LIST, "system")
    with pytest.raises(Refused, match="turns must alternate") as refused:
        marks_of(STRICT, "user", USER)
    assert refused.value.param == "role"


def test_a_role_that_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(Refused, match="leaves out messages of role 'judge'"):
        marks_of("{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}", "judge")


@pytest.mark.parametrize("source", [SYSTEM_IN_LAST, TWICE], ids=["moves", "repeats"])
def test_a_template_that_changes_what_it_wrote_is_not_spoken(source: str) -> None:
    marker = RoleMarker(Template(source).render, "test")
    with pytest.raises(Unsupported, match=r"^roles: not possible on test: its chat template moves or repeats"):
        asyncio.run(put_together(marker, [SYSTEM, USER, ANSWER, AGAIN], asking=True))
