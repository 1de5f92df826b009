"""From a checked conversation to the text of a prompt, as one template wants it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixserve.chat.conversation import Conversation, Message, PastCall
from radixserve.chat.data_marks import choose_mark, marked, unmarked
from radixserve.chat.generic_syntax import as_plain_messages
from radixserve.chat.json_values import check_depth, check_text, parse_object
from radixserve.chat.template_traits import TemplateTraits
from radixserve.chat.tools import Toolbox
from radixserve.errors import InvalidRequest
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.tokenizer import Tokenizer

# Variables that the server itself gives to a template.
_OWN = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A prompt's text. ``data``: indices of characters that no special token may cover (see `data_marks`)."""

    text: str
    data: frozenset[int] = frozenset()


def render_prompt(
    template: ChatTemplate,
    traits: TemplateTraits,
    tokenizer: Tokenizer,
    conversation: Conversation,
    toolbox: Toolbox,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_options: Mapping[str, Any] | None,
) -> RenderedText:
    """The conversation as ``template`` writes it, with the tools of ``toolbox``.

    Raises `InvalidRequest` for what the template refuses, for arguments of past calls that are no JSON object where the
    template wants one, and for options that are not the caller's.
    """
    options = _checked_options(template_options)
    if continue_final_message and (conversation[-1].role != "assistant" or conversation[-1].tool_calls):
        raise InvalidRequest("continue_final_message", "the final message must be the assistant's, without tool calls")
    tools = toolbox.definitions if traits.native else []
    if traits.native:
        messages = [_native(message, f"messages[{at}]", traits) for at, message in enumerate(conversation)]
    else:
        messages = [_plain(message) for message in as_plain_messages(conversation, toolbox, system=traits.system)]

    def render(messages: Sequence[Any], tools: Sequence[Any], options: Mapping[str, Any]) -> str:
        text = template.render(
            messages,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **options,
        )
        return check_text(text, "messages")

    given = [messages, tools, options]
    mark = choose_mark(given, tokenizer)
    if mark is None:
        return RenderedText(render(messages, tools, options))
    text, data = unmarked(render(*(marked(value, mark, tokenizer) for value in given)), mark)
    if text != render(messages, tools, options):
        raise InvalidRequest(
            "messages", "name a special token of the model in a place where the chat template changes it"
        )
    return RenderedText(text, data)


def _checked_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    param = "chat_template_kwargs"
    if not isinstance(options, Mapping):
        raise InvalidRequest(param, "must be a mapping of names to values", "invalid_type")
    for key in options:
        if not isinstance(key, str) or key in _OWN or not key.isidentifier() or key.startswith("_"):
            raise InvalidRequest(f"{param}.{key}", "is not for a caller to set")
    check_depth(dict(options), param)
    return dict(options)


def _native(message: Message, param: str, traits: TemplateTraits) -> dict[str, Any]:
    shown = _plain(message)
    if message.tool_call_id is not None:
        shown["tool_call_id"] = _call_id(message.tool_call_id, traits)
    if message.tool_calls:
        shown["content"] = message.content or traits.empty_content
        shown["tool_calls"] = [
            {
                "id": _call_id(call.id, traits),
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _arguments(call, f"{param}.tool_calls[{index}].function.arguments", traits),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return shown


def _plain(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        shown["name"] = message.name
    if message.reasoning is not None:
        shown["reasoning_content"] = message.reasoning
    return shown


def _arguments(call: PastCall, param: str, traits: TemplateTraits) -> Any:
    return parse_object(call.arguments, param) if traits.arguments == "object" else call.arguments


def _call_id(call_id: str, traits: TemplateTraits) -> str:
    """The id, or nine letters and digits that stand for it where the template takes no others."""
    if not traits.short_ids or (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.blake2b(call_id.encode()).hexdigest()[:9]
