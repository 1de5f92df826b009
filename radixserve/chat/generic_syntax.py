"""Tools for models whose template has no place for them.

The tools are described in the system message (or, where the template takes none, in the first message of the user),
calls are asked for as lines of JSON between tags, and calls and results of the past are written in the same way as
plain messages. So tools are never silently dropped, and what is generated reads exactly like what is rendered.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from radixserve.chat.call_parser import CallPatterns
from radixserve.chat.call_pattern import Hole
from radixserve.chat.conversation import Conversation, Message, PastCall
from radixserve.chat.hermes_syntax import CLOSE, OPEN
from radixserve.chat.tool_syntax import TaggedSyntax, json_call
from radixserve.chat.tools import Tool, Toolbox
from radixserve.constraints import JsonSchema, Tag

RESULT_OPEN = "<tool_response>"
RESULT_CLOSE = "</tool_response>"

_PREAMBLE = f"""You can call these functions, each described by a line of JSON:
<tools>
{{tools}}
</tools>
To call a function, write a line with its name and its arguments in this form:
{OPEN}{{{{"name": "the function's name", "arguments": {{{{"argument": "value"}}}}}}}}{CLOSE}
What a function gives back comes to you between {RESULT_OPEN} and {RESULT_CLOSE}. Call functions only where they help."""


@dataclass(frozen=True, slots=True)
class GenericSyntax(TaggedSyntax):
    """A line of JSON between two tags."""

    name: ClassVar[str] = "generic"
    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)
    patterns: ClassVar[CallPatterns] = CallPatterns(
        openings=((OPEN, Hole.SPACE, *json_call("arguments")),),
        closings=((Hole.SPACE, "}", Hole.SPACE, CLOSE),),
    )
    triggers: ClassVar[tuple[str, ...]] = (OPEN,)
    separator: ClassVar[str] = "\n"

    def tags(self, tool: Tool) -> Sequence[Tag]:
        """The one spelling; nothing was trained on it, so its JSON is compact."""
        return (Tag(f'{OPEN}{{"name": "{tool.name}", "arguments": ', JsonSchema(tool.schema_text), f"}}{CLOSE}"),)


def preamble(toolbox: Toolbox) -> str:
    """What tells the model of its tools."""
    lines = [json.dumps(tool.definition["function"], ensure_ascii=False) for tool in toolbox.tools]
    return _PREAMBLE.format(tools="\n".join(lines))


def as_plain_messages(conversation: Conversation, toolbox: Toolbox, *, system: bool) -> list[Message]:
    """The conversation without anything that a template must know about tools.

    Results that follow one another become one message of the user, since templates want the roles to alternate.
    ``system``: whether the template takes a system message.
    """
    plain: list[Message] = []
    behind_result = False
    for message in conversation:
        is_result = message.role == "tool"
        if is_result:
            content = f"{RESULT_OPEN}\n{message.content}\n{RESULT_CLOSE}"
            if behind_result:
                content = f"{plain.pop().content}\n{content}"
            message = Message("user", content)
        elif message.tool_calls:
            lines = [message.content] if message.content else []
            lines += [_call(call) for call in message.tool_calls]
            message = dataclasses.replace(message, content="\n".join(lines), tool_calls=())
        plain.append(message)
        behind_result = is_result
    return _with_preamble(plain, preamble(toolbox), system=system) if toolbox.tools else plain


def _with_preamble(plain: list[Message], text: str, *, system: bool) -> list[Message]:
    if system and plain[0].role == "system":
        # The operator's own words come first.
        return [dataclasses.replace(plain[0], content=f"{plain[0].content}\n\n{text}"), *plain[1:]]
    if system:
        return [Message("system", text), *plain]
    at = next((index for index, message in enumerate(plain) if message.role == "user"), None)
    if at is None:
        return [Message("user", text), *plain]
    first = dataclasses.replace(plain[at], content=f"{text}\n\n{plain[at].content}")
    return [*plain[:at], first, *plain[at + 1 :]]


def _call(call: PastCall) -> str:
    arguments = call.arguments.strip() or "{}"
    return f'{OPEN}{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}{CLOSE}'
