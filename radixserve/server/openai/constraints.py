"""The many spellings of "the output must look like this" to one `Constraint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from radixserve.constraints import (
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    Tag,
)
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.openai.fields import ConstraintFields


def constraint_of(fields: ConstraintFields) -> Constraint | None:
    """The constraint that ``fields`` ask for, None where they ask for none.

    Raises `InvalidRequest` naming the field, also where two of them ask for something.
    """
    found: dict[str, Constraint] = {}
    for name, parse in _PARSERS.items():
        value = getattr(fields, name)
        if value is not None:
            constraint = parse(value, name)
            if constraint is not None:
                found[name] = constraint
    first = next(iter(found), None)
    if first is None:
        return None
    for name, constraint in found.items():
        # Some clients send the same constraint under several names, for servers of different age.
        if constraint != found[first]:
            raise InvalidRequest(name, f"asks for something else than {first}: one constraint is enforced")
    return found[first]


def constraint_field(fields: ConstraintFields) -> str:
    """The name of the field that says what the output must look like; of several that say the same, the first."""
    return next((name for name in _PARSERS if getattr(fields, name) is not None), "response_format")


def renamed(error: InvalidRequest, field: str) -> InvalidRequest:
    """``error``, about ``field`` where it is about the engine's constraint, which no client knows by that name."""
    if (error.param or "").partition(".")[0] == "constraint":
        error.param = field
    return error


def parse_format(value: Mapping[str, Any], name: str) -> Constraint | None:
    """OpenAI's ``response_format``, and the further types of vLLM and SGLang."""
    kind = value.get("type")
    if kind == "text":
        _only(value, name, "type")
        return None
    if kind == "json_object":
        _only(value, name, "type", "schema")
        schema = value.get("schema")
        return JsonObject() if schema is None else _schema(schema, f"{name}.schema")
    if kind == "json_schema":
        _only(value, name, "type", "json_schema")
        return parse_named_schema(value.get("json_schema"), f"{name}.json_schema")
    if kind == "regex":
        _only(value, name, "type", "pattern", "regex")
        return _regex(value.get("pattern", value.get("regex")), f"{name}.pattern")
    if kind in ("grammar", "ebnf"):
        _only(value, name, "type", "grammar")
        return _grammar(value.get("grammar"), f"{name}.grammar")
    if kind == "structural_tag":
        return _structural_tag(value, name)
    raise InvalidRequest(
        f"{name}.type",
        f"must be text, json_object, json_schema, regex, grammar or structural_tag, not {str(kind)[:100]!r}",
    )


def parse_named_schema(value: Any, name: str) -> Constraint:
    """``{"name": ..., "schema": ..., "strict": ..., "description": ...}``.

    The schema is enforced whether or not it is ``strict``: a model that may leave it helps nobody.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, "must be an object with a schema", "invalid_type")
    _only(value, name, "name", "schema", "strict", "description")
    for key, kind in (("name", str), ("description", str), ("strict", bool)):
        if value.get(key) is not None and not isinstance(value[key], kind):
            raise InvalidRequest(
                f"{name}.{key}", f"must be {'true or false' if kind is bool else 'a text'}", "invalid_type"
            )
    if value.get("schema") is None:
        raise InvalidRequest(f"{name}.schema", "is required", "missing_required_parameter")
    return _schema(value["schema"], f"{name}.schema")


def _structured(value: Mapping[str, Any], name: str) -> Constraint | None:
    """The ``structured_outputs`` of vLLM."""
    given = {key: item for key, item in value.items() if item is not None}
    _only(given, name, *_STRUCTURED_FIELDS)
    if "whitespace_pattern" in given:
        raise UnsupportedFeature(f"{name}.whitespace_pattern", "white space is compact; other patterns are not done")
    for key in ("disable_any_whitespace", "disable_fallback"):
        # White space is compact and nothing is fallen back to, whatever they say.
        if given.pop(key, True) is not True:
            raise UnsupportedFeature(f"{name}.{key}", "only true is done")
    if given.get("json_object") is False:
        del given["json_object"]
    if len(given) > 1:
        raise InvalidRequest(name, f"{' and '.join(sorted(given))} are given; one constraint is enforced")
    for key, item in given.items():
        place = f"{name}.{key}"
        if key == "json_object":
            if item is not True:
                raise InvalidRequest(place, "must be true or false", "invalid_type")
            return JsonObject()
        if key == "structural_tag":
            return _structural_tag(_json(item, place), place)
        return _STRUCTURED[key](item, place)
    return None


def _structural_tag(value: Any, name: str) -> Constraint:
    """``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, "must be an object", "invalid_type")
    if "format" in value:
        raise UnsupportedFeature(f"{name}.format", "formats are not done; structures and triggers are")
    _only(value, name, "type", "structures", "triggers")
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise InvalidRequest(f"{name}.structures", "must be a non-empty list", "invalid_type")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(item, str) and item for item in triggers):
        raise InvalidRequest(f"{name}.triggers", "must be a non-empty list of non-empty texts", "invalid_type")
    tags = []
    for index, item in enumerate(structures):
        place = f"{name}.structures[{index}]"
        if not isinstance(item, Mapping):
            raise InvalidRequest(place, "must be an object", "invalid_type")
        _only(item, place, "begin", "schema", "end")
        begin, end = item.get("begin"), item.get("end")
        if not isinstance(begin, str) or not isinstance(end, str) or not begin:
            raise InvalidRequest(place, "begin and end must be texts, begin not an empty one", "invalid_type")
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise InvalidRequest(f"{place}.begin", "must start with one of the triggers")
        schema = _schema(item.get("schema") if item.get("schema") is not None else {}, f"{place}.schema")
        tags.append(Tag(begin=begin, content=schema, end=end))
    return StructuralTag(tags=tuple(tags), triggers=tuple(triggers))


def _schema(value: Any, name: str) -> JsonSchema:
    schema = _json(value, name)
    if not isinstance(schema, (Mapping, bool)):
        raise InvalidRequest(name, "must be a JSON schema: an object, true or false", "invalid_type")
    return JsonSchema(schema=value if isinstance(value, str) else msgspec.json.encode(schema).decode())


def _regex(value: Any, name: str) -> Regex:
    return Regex(pattern=_text(value, name))


def _grammar(value: Any, name: str) -> Grammar:
    return Grammar(text=_text(value, name))


def _choice(value: Any, name: str) -> Choice:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(name, "must be a non-empty list of texts", "invalid_type")
    return Choice(choices=tuple(value))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(name, "must be a non-empty text", "invalid_type")
    return value


def _json(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(name, f"is not valid JSON: {error}", "invalid_json") from None


def _only(value: Mapping[str, Any], name: str, *known: str) -> None:
    for key in value:
        if key not in known:
            raise InvalidRequest(f"{name}.{key}"[:200], "this field is not known", "unknown_parameter")


_STRUCTURED_FIELDS = (
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_fallback",
)
_STRUCTURED: dict[str, Callable[[Any, str], Constraint]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
_PARSERS: dict[str, Callable[[Any, str], Constraint | None]] = {
    "response_format": parse_format,
    "structured_outputs": _structured,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
    "json_schema": _schema,
}
