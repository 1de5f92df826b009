"""A conversation as OpenAI's clients send it, checked and brought to one shape.

Whatever is wrong is refused by the name of its field; ``null`` stands for a field that is not there. Nothing here knows
a model's template: that is `radixserve.chat.prompt`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from radixserve.chat.json_values import check_depth, check_text
from radixserve.errors import InvalidRequest, UnsupportedFeature

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Fields of a message that say something, by role. ``annotations`` is what clients echo of an answer; it changes nothing.
_FIELDS = {
    "system": {"content", "name"},
    "developer": {"content", "name"},
    "user": {"content", "name"},
    "assistant": {
        "content",
        "name",
        "refusal",
        "tool_calls",
        "function_call",
        "reasoning_content",
        "reasoning",
        "annotations",
    },
    "tool": {"content", "name", "tool_call_id"},
    "function": {"content", "name"},
}
_KNOWN = set[str]().union(*_FIELDS.values()) | {"role", "audio"}

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_PARTS = {
    "image",
    "image_url",
    "input_image",
    "audio",
    "audio_url",
    "input_audio",
    "video",
    "video_url",
    "file",
    "input_file",
    "document",
}
_PART_FIELDS = {"type", "text", "refusal", "annotations", "logprobs"}


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that an assistant message made; ``arguments`` is its JSON text as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``content`` is None only beside ``tool_calls``.

    A ``tool`` message answers the call ``tool_call_id`` (None for the old ``function`` role); its ``name`` is that
    call's where the message itself has none.
    """

    role: Role
    content: str | None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[PastCall, ...] = ()
    reasoning: str | None = None


Conversation = tuple[Message, ...]


def parse_conversation(messages: object, *, param: str = "messages") -> Conversation:
    """The checked messages, one for each that was sent; ``param`` names them in errors.

    Raises `InvalidRequest`, and `UnsupportedFeature` for content that is not text.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequest(param, "must be a non-empty list of messages", "invalid_type")
    names: dict[str, str] = {}
    checked = []
    for index, item in enumerate(messages):
        message = _message(item, f"{param}[{index}]", names)
        names.update((call.id, call.name) for call in message.tool_calls)
        checked.append(message)
    return tuple(checked)


def _message(item: object, param: str, names: Mapping[str, str]) -> Message:
    if not isinstance(item, Mapping):
        raise InvalidRequest(param, "must be a mapping with a role", "invalid_type")
    fields = {key: value for key, value in item.items() if value is not None or key not in _KNOWN}
    role = fields.pop("role", None)
    if not isinstance(role, str):
        raise InvalidRequest(f"{param}.role", "must be given", "missing_required_parameter")
    if role not in _ROLES:
        raise InvalidRequest(f"{param}.role", f"is {role!r}; known are {', '.join(_ROLES)}")
    for key in fields:
        if key == "audio":
            raise UnsupportedFeature(f"{param}.audio", "audio is not part of this release, only text")
        if key not in _FIELDS[role]:
            raise InvalidRequest(f"{param}.{key}", f"is not a field of a message of role {role!r}", "unknown_parameter")
    name = fields.get("name")
    if name is not None:
        check_text(name, f"{param}.name")
    content = parse_content(fields.get("content"), f"{param}.content")
    if role == "assistant":
        return _assistant(fields, content, name, param)
    if role == "tool":
        call_id = check_text(fields.get("tool_call_id"), f"{param}.tool_call_id")
        return Message("tool", content or "", name or names.get(call_id), tool_call_id=call_id)
    if role == "function":
        if name is None:
            raise InvalidRequest(f"{param}.name", "must name the function that answers", "missing_required_parameter")
        return Message("tool", content or "", name)
    if content is None:
        raise InvalidRequest(f"{param}.content", "must be given", "missing_required_parameter")
    return Message(_ROLES[role], content, name)


def _assistant(fields: Mapping[str, Any], content: str | None, name: str | None, param: str) -> Message:
    refusal = fields.get("refusal")
    if refusal is not None:
        refusal = check_text(refusal, f"{param}.refusal")
        content = refusal if content is None else content
    reasoning = None
    for key in ("reasoning", "reasoning_content"):
        if key in fields:
            reasoning = check_text(fields[key], f"{param}.{key}")
    calls = _calls(fields.get("tool_calls", []), f"{param}.tool_calls")
    if "function_call" in fields:
        if calls:
            raise InvalidRequest(f"{param}.function_call", "stands beside tool_calls; one of them is enough")
        calls = (_function(fields["function_call"], "", f"{param}.function_call"),)
    if content is None and not calls:
        raise InvalidRequest(
            f"{param}.content", "must be given unless there are tool_calls", "missing_required_parameter"
        )
    return Message("assistant", content, name, tool_calls=calls, reasoning=reasoning or None)


def _calls(calls: object, param: str) -> tuple[PastCall, ...]:
    if not isinstance(calls, list | tuple):
        raise InvalidRequest(param, "must be a list of calls", "invalid_type")
    checked = []
    for index, call in enumerate(calls):
        at = f"{param}[{index}]"
        if not isinstance(call, Mapping):
            raise InvalidRequest(at, "must be a mapping with id and function", "invalid_type")
        if call.get("type", "function") == "custom":
            raise UnsupportedFeature(f"{at}.type", "custom tools are not part of this release, only functions")
        if call.get("type", "function") != "function":
            raise InvalidRequest(f"{at}.type", f"is {call['type']!r}; known is 'function'")
        # ``index`` is what clients leave in that put a call together from a stream.
        for key in call:
            if key not in ("id", "type", "function", "index"):
                raise InvalidRequest(f"{at}.{key}", "is not a field of a tool call", "unknown_parameter")
        checked.append(_function(call.get("function"), check_text(call.get("id"), f"{at}.id"), f"{at}.function"))
    return tuple(checked)


def _function(function: object, call_id: str, param: str) -> PastCall:
    if not isinstance(function, Mapping):
        raise InvalidRequest(param, "must be a mapping with name and arguments", "invalid_type")
    for key in function:
        if key not in ("name", "arguments"):
            raise InvalidRequest(f"{param}.{key}", "is not a field of a function call", "unknown_parameter")
    name = check_text(function.get("name"), f"{param}.name")
    if not name:
        raise InvalidRequest(f"{param}.name", "must not be empty")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        check_depth(arguments, f"{param}.arguments")
        try:
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{param}.arguments", f"is not JSON: {error}", "invalid_json") from error
    return PastCall(call_id, name, check_text("" if arguments is None else arguments, f"{param}.arguments"))


def parse_content(content: object, param: str) -> str | None:
    """The text of a content, a text or a list of parts, which are joined as they are; None where there is none.

    Raises `InvalidRequest`, and `UnsupportedFeature` for parts that are not text; ``param`` names the content in errors.
    """
    if content is None:
        return None
    if isinstance(content, list | tuple):
        return "".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidRequest(param, "must be a text or a list of parts", "invalid_type")
    return check_text(content, param)


def _part(part: object, param: str) -> str:
    if isinstance(part, str):
        return check_text(part, param)
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequest(param, "must be a mapping with a type", "invalid_type")
    kind = cast(str, part["type"])
    if kind in _OTHER_PARTS:
        raise UnsupportedFeature(param, f"parts of type {kind!r} are not part of this release, only text")
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(f"{param}.type", f"is {kind!r}; known are {', '.join(_TEXT_PARTS)}")
    for key, value in part.items():
        if key not in _PART_FIELDS and value is not None:
            raise InvalidRequest(f"{param}.{key}", "is not a field of a text part", "unknown_parameter")
    field = _TEXT_PARTS[kind]
    return check_text(part.get(field), f"{param}.{field}")
