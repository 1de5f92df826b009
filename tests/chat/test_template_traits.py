"""What is found out about templates by rendering them."""

from __future__ import annotations

import pytest

from radixserve.chat.template_traits import TemplateTraits, find_traits
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.loader import LoadedModel
from tests.chat import templates
from tests.chat.models import byte_level


def traits(source: str) -> TemplateTraits:
    return find_traits(ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}), byte_level())


@pytest.mark.parametrize(
    ("source", "syntax", "native", "several"),
    [
        (templates.CHATML, "generic", False, True),
        (templates.QWEN, "hermes", True, True),
        (templates.LLAMA, "llama", True, False),
        (templates.MISTRAL_LIST, "mistral_list", True, True),
        (templates.MISTRAL, "mistral", True, True),
        (templates.OTHER_TOOLS, "generic", False, True),
    ],
)
def test_families(source: str, syntax: str, native: bool, several: bool) -> None:
    found = traits(source)
    assert (found.syntax.name, found.native, found.syntax.several) == (syntax, native, several)


def test_details() -> None:
    assert (traits(templates.QWEN).arguments, traits(templates.QWEN).short_ids) == ("object", False)
    assert traits(templates.MISTRAL_LIST).short_ids and not traits(templates.MISTRAL_LIST).system
    assert traits(templates.MISTRAL).arguments == "text"
    assert traits(templates.THINKER).reasoning and not traits(templates.QWEN).reasoning
    concatenating = templates.QWEN.replace("if message.content %}", "if true %}")
    assert (traits(templates.QWEN).empty_content, traits(concatenating).empty_content) == (None, "")
    forgetful = templates.QWEN.replace("message.role == 'tool'", "message.role == 'nobody'")
    assert not traits(forgetful).native, "a template that leaves out results cannot be used for them"


def test_a_think_token_means_reasoning() -> None:
    tokenizer = byte_level(added=("<think>", "</think>"))
    assert find_traits(ChatTemplate(templates.CHATML), tokenizer).reasoning


def test_the_embedded_template(smollm2: LoadedModel) -> None:
    assert smollm2.chat_template is not None
    found = find_traits(smollm2.chat_template, smollm2.tokenizer)
    assert (found.syntax.name, found.native, found.system, found.reasoning) == ("generic", False, True, False)
