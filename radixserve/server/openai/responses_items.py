"""The items of ``/v1/responses``: from what clients send, and from earlier answers, to a conversation.

An item is one thing that happened: a message, a call, what a function gave back, a piece of reasoning. A conversation's
assistant messages hold several of them together, since that is how models were taught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.chat.conversation import Conversation, Message, PastCall, parse_content
from radixserve.chat.json_values import check_text
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.service import new_id

_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")
_FIELDS = {
    "message": {"type", "id", "status", "role", "content"},
    "function_call": {"type", "id", "status", "call_id", "name", "arguments"},
    "function_call_output": {"type", "id", "status", "call_id", "output"},
    "reasoning": {"type", "id", "status", "summary", "content", "encrypted_content"},
    "item_reference": {"type", "id"},
}
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}


@dataclass(frozen=True, slots=True)
class Item:
    """One checked item.

    ``message``: the item as a message of its own; reasoning is an assistant message without anything but that, which no
    conversation may hold (see `conversation_of`). ``shown``: as lists of items show it. ``size``: bytes of that as JSON.
    """

    id: str
    message: Message
    shown: dict[str, Any]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(msgspec.json.encode(self.shown)))


def parse_items(
    given: str | Iterable[object],
    *,
    param: str = "input",
    before: Sequence[Item] = (),
    find: Callable[[str], Item | None] = lambda _: None,
) -> list[Item]:
    """The checked items of an input; a text is a message of the user.

    ``before``: the items that they follow, which may hold the calls that outputs belong to. ``find``: a stored item by
    its id. Raises `InvalidRequest` naming the item, `UnsupportedFeature` for what is not text.
    """
    if isinstance(given, str):
        return [_parsed({"role": "user", "content": given}, param, {})]
    names = {call.id: call.name for item in before for call in item.message.tool_calls}
    items = []
    for index, value in enumerate(given):
        place = f"{param}[{index}]"
        item = _found(value, place, find) or _parsed(value, place, names)
        names.update((call.id, call.name) for call in item.message.tool_calls)
        items.append(item)
    return items


def conversation_of(
    instructions: str | None, items: Sequence[tuple[str, Item]]
) -> tuple[Conversation, Mapping[str, str]]:
    """The conversation that ``items`` are, each with the name of its place in the request.

    Also returns the names of arguments of calls: where they stand in the conversation -> where in the request.
    """
    messages = [] if instructions is None else [Message("system", instructions)]
    places: dict[str, str] = {}
    for place, item in items:
        message = item.message
        if message.content is None and not message.tool_calls and not message.reasoning:
            continue
        if messages and _joins(messages[-1], message):
            message = _joined(messages.pop(), message)
        messages.append(message)
        if item.message.tool_calls:
            call = f"messages[{len(messages) - 1}].tool_calls[{len(message.tool_calls) - 1}]"
            places[f"{call}.function.arguments"] = f"{place}.arguments"
    # Where content is still missing, nothing followed the reasoning: the answer was cut there.
    whole = [
        dataclasses.replace(message, content="") if message.content is None and not message.tool_calls else message
        for message in messages
    ]
    return tuple(whole), places


def _joins(last: Message, message: Message) -> bool:
    """Whether two messages are parts of one of the assistant's: reasoning, then content, then calls."""
    if last.role != "assistant" or message.role != "assistant" or message.reasoning is not None:
        return False
    return bool(message.tool_calls) or (last.content is None and not last.tool_calls)


def _joined(last: Message, message: Message) -> Message:
    content = last.content if message.content is None else message.content
    return dataclasses.replace(last, content=content, tool_calls=(*last.tool_calls, *message.tool_calls))


def _found(value: object, place: str, find: Callable[[str], Item | None]) -> Item | None:
    """The stored item where ``value`` refers to one, None where it is an item itself."""
    if not isinstance(value, Mapping):
        return None
    given = {key for key, item in value.items() if item is not None}
    if value.get("type") != "item_reference" and given != {"id"}:
        return None
    for key in given - _FIELDS["item_reference"]:
        raise _unknown(place, key, "item_reference")
    wanted = check_text(value.get("id"), f"{place}.id")
    item = find(wanted)
    if item is None:
        raise InvalidRequest(f"{place}.id", f"no item {wanted[:100]!r} is stored here", "not_found")
    return item


def _parsed(value: object, place: str, names: Mapping[str, str]) -> Item:
    if not isinstance(value, Mapping):
        raise InvalidRequest(place, "must be an item: an object with a type or a role", "invalid_type")
    given = {key: item for key, item in value.items() if item is not None}
    kind = given.get("type", "message" if "role" in given else None)
    if not isinstance(kind, str):
        raise InvalidRequest(f"{place}.type", "must name the kind of item", "missing_required_parameter")
    if kind not in _PREFIXES:
        raise UnsupportedFeature(
            f"{place}.type", f"items of type {kind[:100]!r} are not taken; those of {', '.join(_PREFIXES)} are"
        )
    for key in given:
        if key not in _FIELDS[kind]:
            raise _unknown(place, key, kind)
    status = given.get("status", "completed")
    if status not in _STATUSES:
        raise InvalidRequest(f"{place}.status", f"must be one of {', '.join(_STATUSES)}")
    name = check_text(given.get("id") or new_id(_PREFIXES[kind]), f"{place}.id")
    message, shown = _PARSERS[kind](given, place, names)
    return Item(name, message, {"type": kind, "id": name, "status": status, **shown})


_Parsed = tuple[Message, dict[str, Any]]


def _message(given: Mapping[str, Any], place: str, names: Mapping[str, str]) -> _Parsed:
    role = given.get("role")
    if role in ("tool", "function"):
        raise InvalidRequest(f"{place}.role", "what functions give back are items of type 'function_call_output'")
    if role not in _ROLES:
        raise InvalidRequest(f"{place}.role", f"must be one of {', '.join(_ROLES)}")
    content = parse_content(given.get("content"), f"{place}.content")
    if content is None:
        raise InvalidRequest(f"{place}.content", "is required", "missing_required_parameter")
    parts = given["content"]
    if isinstance(parts, str):
        text = {"type": "input_text", "text": parts}
        parts = [{"type": "output_text", "text": parts, "annotations": []} if role == "assistant" else text]
    message = Message("system" if role == "developer" else role, content)
    return message, {"role": role, "content": parts}


def _call(given: Mapping[str, Any], place: str, names: Mapping[str, str]) -> _Parsed:
    shown = {key: _required(given, key, place) for key in ("call_id", "name", "arguments")}
    for key in ("call_id", "name"):
        if not shown[key]:
            raise InvalidRequest(f"{place}.{key}", "must not be empty")
    call = PastCall(shown["call_id"], shown["name"], shown["arguments"])
    return Message("assistant", None, tool_calls=(call,)), shown


def _output(given: Mapping[str, Any], place: str, names: Mapping[str, str]) -> _Parsed:
    call_id = _required(given, "call_id", place)
    if call_id not in names:
        raise InvalidRequest(f"{place}.call_id", f"no function call {call_id[:100]!r} stands before its output")
    output = parse_content(given.get("output"), f"{place}.output")
    if output is None:
        raise InvalidRequest(f"{place}.output", "is required", "missing_required_parameter")
    message = Message("tool", output, names[call_id], tool_call_id=call_id)
    return message, {"call_id": call_id, "output": given["output"]}


def _reasoning(given: Mapping[str, Any], place: str, names: Mapping[str, str]) -> _Parsed:
    """Reasoning as it was, or what sums it up where that is all there is."""
    content, summary = given.get("content", []), given.get("summary", [])
    text = _texts(content, f"{place}.content", "reasoning_text") or _texts(summary, f"{place}.summary", "summary_text")
    if not text and "encrypted_content" in given:
        raise UnsupportedFeature(f"{place}.encrypted_content", "cannot be read here, and there is no other content")
    return Message("assistant", None, reasoning=text), {"summary": summary, "content": content}


def _texts(parts: object, param: str, kind: str) -> str:
    if not isinstance(parts, list):
        raise InvalidRequest(param, "must be a list of parts", "invalid_type")
    texts = []
    for index, part in enumerate(parts):
        place = f"{param}[{index}]"
        if not isinstance(part, Mapping) or part.get("type") != kind:
            raise InvalidRequest(place, f"must be a part of type {kind!r}", "invalid_type")
        for key in part:
            if key not in ("type", "text"):
                raise _unknown(place, key, kind)
        texts.append(check_text(part.get("text"), f"{place}.text"))
    return "\n\n".join(texts) if kind == "summary_text" else "".join(texts)


def _required(given: Mapping[str, Any], key: str, place: str) -> str:
    if key not in given:
        raise InvalidRequest(f"{place}.{key}", "is required", "missing_required_parameter")
    return check_text(given[key], f"{place}.{key}")


def _unknown(place: str, key: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"{place}.{key}"[:200], f"is not a field of {kind!r}", "unknown_parameter")


_PARSERS: dict[str, Callable[[Mapping[str, Any], str, Mapping[str, str]], _Parsed]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "reasoning": _reasoning,
}
