"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a request, checked and brought to one shape.

Both of OpenAI's shapes are read: the nested one of chat completions (``{"type": "function", "function": {"name": ...}}``)
and the flat one of responses (``{"type": "function", "name": ...}``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixserve.chat.argument_schema import arguments_schema
from radixserve.chat.json_values import check_depth, check_text
from radixserve.errors import InvalidRequest, UnsupportedFeature

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call.

    ``definition`` is what templates are given: the nested shape with the fields that were set, in the order they came.
    ``strict`` is kept for echoing; arguments are always held to the schema. ``place``: where in the request the function is.
    """

    name: str
    definition: dict[str, Any]
    strict: bool | None = None
    place: str = "tools"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema that the arguments are held to."""
        return arguments_schema(self.definition["function"].get("parameters"))

    @property
    def schema_text(self) -> str:
        """`schema` as JSON."""
        return json.dumps(self.schema, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request and how they may be used.

    The model is shown all ``tools``, so that a choice leaves the prompt, and what is cached of it, alone. It may call
    those in ``allowed``: with ``auto`` if it wants to, with ``required`` it must, with ``none`` never. ``parallel``:
    whether one answer may hold several calls. ``named``: one function was chosen by name.
    """

    tools: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "none"
    allowed: tuple[Tool, ...] = ()
    parallel: bool = True
    named: bool = False

    @property
    def active(self) -> bool:
        """Whether the answer may hold calls."""
        return self.mode != "none" and bool(self.allowed)

    @property
    def forced(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.mode == "required"

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """What templates are given."""
        return [tool.definition for tool in self.tools]


def parse_tools(
    tools: object = None,
    tool_choice: object = None,
    parallel_tool_calls: object = None,
    *,
    functions: object = None,
    function_call: object = None,
) -> Toolbox:
    """The checked tools of a request; None and an empty list are no tools.

    ``functions`` and ``function_call`` are refused: they are what ``tools`` and ``tool_choice`` replaced. Raises
    `InvalidRequest` naming the field.
    """
    for param, value, instead in (("functions", functions, "tools"), ("function_call", function_call, "tool_choice")):
        if value is not None:
            raise UnsupportedFeature(param, f"was replaced by {instead}, which is what this server takes")
    if parallel_tool_calls is not None and not isinstance(parallel_tool_calls, bool):
        raise InvalidRequest("parallel_tool_calls", "must be true or false", "invalid_type")
    if tools is not None and not isinstance(tools, list | tuple):
        raise InvalidRequest("tools", "must be a list of tools", "invalid_type")
    checked = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    if len(checked) > MAX_TOOLS:
        raise InvalidRequest("tools", f"{len(checked)} tools, at most {MAX_TOOLS} are taken")
    seen = set[str]()
    for tool in checked:
        if tool.name in seen:
            raise InvalidRequest(f"{tool.place}.name", f"{tool.name!r} is given twice")
        seen.add(tool.name)
    parallel = parallel_tool_calls is not False
    if not checked:
        if tool_choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "is only allowed where tools are given")
        return Toolbox(parallel=parallel)
    return _choose(checked, tool_choice, parallel)


def _tool(tool: object, param: str) -> Tool:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(param, "must be a mapping with type and function", "invalid_type")
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"{param}.type", "must be 'function'", "missing_required_parameter")
    if kind != "function":
        raise UnsupportedFeature(
            f"{param}.type", f"tools of type {kind!r} are not part of this release, only functions"
        )
    if "function" in tool:
        for key, value in tool.items():
            if key not in ("type", "function") and value is not None:
                raise InvalidRequest(f"{param}.{key}", "is not a field of a tool", "unknown_parameter")
        param, fields = f"{param}.function", tool["function"]
    else:
        fields = {key: value for key, value in tool.items() if key != "type"}
    if not isinstance(fields, Mapping):
        raise InvalidRequest(param, "must be a mapping with a name", "invalid_type")
    for key, value in fields.items():
        if key not in _FUNCTION_FIELDS and value is not None:
            raise InvalidRequest(f"{param}.{key}", "is not a field of a function", "unknown_parameter")
    name = check_text(fields.get("name"), f"{param}.name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{param}.name", f"is {name!r}; names are 1 to 64 of the characters a-z A-Z 0-9 _ -")
    strict = fields.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"{param}.strict", "must be true or false", "invalid_type")
    if fields.get("description") is not None:
        check_text(fields["description"], f"{param}.description")
    if fields.get("parameters") is not None:
        _check_parameters(fields["parameters"], f"{param}.parameters")
    shown = {key: value for key, value in fields.items() if key in _FUNCTION_FIELDS[:3] and value is not None}
    return Tool(name, {"type": "function", "function": shown}, strict, param)


def _check_parameters(parameters: object, param: str) -> None:
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(param, "must be a JSON schema of an object", "invalid_type")
    if parameters.get("type", "object") != "object":
        raise InvalidRequest(f"{param}.type", f"is {parameters['type']!r}; arguments are always an 'object'")
    check_depth(parameters, param)
    try:
        check_text(json.dumps(parameters, ensure_ascii=False, allow_nan=False), param)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(param, f"is not JSON: {error}", "invalid_json") from error


def _choose(tools: tuple[Tool, ...], choice: object, parallel: bool) -> Toolbox:
    if choice is None or choice == "auto":
        return Toolbox(tools, "auto", tools, parallel)
    if choice == "required":
        return Toolbox(tools, "required", tools, parallel)
    if choice == "none":
        return Toolbox(tools, "none", (), parallel)
    if isinstance(choice, str):
        raise InvalidRequest("tool_choice", f"is {choice!r}; known are 'none', 'auto', 'required' and a named function")
    if not isinstance(choice, Mapping):
        raise InvalidRequest("tool_choice", "must be a text or a mapping with a type", "invalid_type")
    kind = choice.get("type")
    if kind == "function":
        # A choice by name is one call: that is what clients that name a function read.
        return Toolbox(tools, "required", (_named(tools, choice, "tool_choice"),), parallel=False, named=True)
    if kind == "allowed_tools":
        return _allowed(tools, choice, parallel)
    raise UnsupportedFeature("tool_choice.type", f"a choice of type {kind!r} is not part of this release")


def _allowed(tools: tuple[Tool, ...], choice: Mapping[str, Any], parallel: bool) -> Toolbox:
    param = "tool_choice"
    if "allowed_tools" in choice:
        param, choice = "tool_choice.allowed_tools", choice["allowed_tools"]
        if not isinstance(choice, Mapping):
            raise InvalidRequest(param, "must be a mapping with mode and tools", "invalid_type")
    mode = choice.get("mode")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{param}.mode", f"must be 'auto' or 'required', not {mode!r}")
    listed = choice.get("tools")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise InvalidRequest(f"{param}.tools", "must be a non-empty list of tools", "invalid_type")
    chosen = {_named(tools, item, f"{param}.tools[{index}]").name for index, item in enumerate(listed)}
    return Toolbox(tools, mode, tuple(tool for tool in tools if tool.name in chosen), parallel)


def _named(tools: tuple[Tool, ...], item: object, param: str) -> Tool:
    """The tool that ``item`` names, in either shape."""
    if not isinstance(item, Mapping) or item.get("type") != "function":
        raise InvalidRequest(param, "must be a mapping of type 'function' with a name", "invalid_type")
    fields: Mapping[str, Any] = item
    if isinstance(item.get("function"), Mapping):
        param, fields = f"{param}.function", item["function"]
    name = check_text(fields.get("name"), f"{param}.name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise InvalidRequest(f"{param}.name", f"{name!r} is not among the tools")
