"""What a model's template can show, found by rendering small conversations with it and looking at what comes out.

Templates are programs without a description; reading their source for names of families guesses, rendering does not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.chat import reasoning
from radixserve.chat.generic_syntax import GenericSyntax
from radixserve.chat.hermes_syntax import CLOSE, OPEN, HermesSyntax
from radixserve.chat.llama_syntax import LlamaSyntax
from radixserve.chat.mistral_syntax import ARGUMENTS, CALLS, MistralListSyntax, MistralSyntax
from radixserve.chat.tool_syntax import ToolSyntax
from radixserve.errors import InvalidRequest
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.tokenizer import Tokenizer

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {"type": "object", "properties": {"probe_argument": {"type": "string"}}},
    },
}
_USER: dict[str, Any] = {"role": "user", "content": "probe_question"}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "probe_system"}
_LONG_IDS = ("call_0123456789abcdef01234567", "call_89abcdef0123456789abcdef")
_SHORT_IDS = ("a1b2c3d4e", "f5g6h7i8j")

_ARGUMENTS = r'\{"probe_argument": ?"probe_value"\}'
_SPELLINGS: tuple[tuple[type[ToolSyntax], str], ...] = (
    (HermesSyntax, rf'{OPEN}\s*\{{"name": ?"probe_tool", ?"arguments": ?{_ARGUMENTS}\}}\s*{CLOSE}'),
    (MistralListSyntax, rf'{re.escape(CALLS)}\s*\[\{{"name": ?"probe_tool", ?"arguments": ?{_ARGUMENTS}'),
    (MistralSyntax, rf"{re.escape(CALLS)}\s*probe_tool{re.escape(ARGUMENTS)}\s*{_ARGUMENTS}"),
    (LlamaSyntax, rf'\{{"name": ?"probe_tool", ?"parameters": ?{_ARGUMENTS}\}}'),
)


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """How conversations are given to one template.

    ``syntax``: how calls are written; it is the generic one, and ``native`` False, where the template does not show
    tools, past calls and results in a way that is known. The rest is about past calls in a native template: whether
    arguments are given as ``object`` or as JSON ``text``, whether ids must be 9 letters and digits, what stands for the
    missing ``content``. ``system``: whether it takes a system message. ``reasoning``: whether the model's output may
    begin with a block of reasoning.
    """

    syntax: ToolSyntax
    native: bool = False
    arguments: Literal["object", "text"] = "object"
    short_ids: bool = False
    empty_content: str | None = None
    system: bool = True
    reasoning: bool = False


def find_traits(template: ChatTemplate, tokenizer: Tokenizer) -> TemplateTraits:
    """The traits of ``template``; what it refuses to render it does not have."""
    system = "probe_system" in _render(template, [_SYSTEM, _USER])
    thinks = reasoning.CLOSE in template.source or tokenizer.id_of(reasoning.CLOSE) is not None
    if all(name in _render(template, [_USER], tools=True) for name in ("probe_tool", "probe_argument")):
        for arguments, short_ids, content in itertools.product(("object", "text"), (False, True), (None, "")):
            ids = _SHORT_IDS if short_ids else _LONG_IDS
            as_object = arguments == "object"
            text = _render(template, _with_calls(ids[:1], as_object, content), tools=True)
            syntax = next((kind for kind, spelling in _SPELLINGS if re.search(spelling, text)), None)
            if syntax is None or "probe_result_0" not in text or "None" in text:
                continue
            both = _render(template, _with_calls(ids, as_object, content), tools=True)
            return TemplateTraits(
                syntax(several="probe_result_1" in both and both.count("probe_value") == 2),
                native=True,
                arguments="object" if as_object else "text",
                short_ids=short_ids,
                empty_content=content,
                system=system,
                reasoning=thinks,
            )
    return TemplateTraits(GenericSyntax(), system=system, reasoning=thinks)


def _with_calls(ids: Sequence[str], as_object: bool, content: str | None) -> list[dict[str, Any]]:
    """A conversation in which the assistant called the probe tool once for each of ``ids``."""
    arguments: Any = {"probe_argument": "probe_value"} if as_object else '{"probe_argument": "probe_value"}'
    function = {"name": "probe_tool", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = [
        {"role": "tool", "name": "probe_tool", "tool_call_id": call_id, "content": f"probe_result_{index}"}
        for index, call_id in enumerate(ids)
    ]
    return [_USER, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


def _render(template: ChatTemplate, messages: Sequence[dict[str, Any]], *, tools: bool = False) -> str:
    """The rendered text, empty where the template refuses."""
    try:
        return template.render(messages, tools=[_TOOL] if tools else None)
    except InvalidRequest:
        return ""
