"""What the fake backend answers: scripted texts, made to fit constraints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from radixlang.backends.base import Call
from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import Refused, Unsupported

WORDS = (
    "amber",
    "bridge",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "kettle",
    "lantern",
)
# Tried, in this order, where nothing in an answer matches a pattern.
COMMON = (
    "7",
    "42",
    "3.5",
    "-1",
    "yes",
    "no",
    "True",
    "False",
    "A",
    "B",
    "word",
    "two words",
    '"text"',
    "2024-05-17",
    "12:30",
    "a@b.org",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a script answers to: the prompt's text, which sample of how the call wants it, and how many calls there were before."""

    text: str
    sample: int
    call: Call
    number: int


# A function of the prompt, which may raise; or patterns, searched for in the prompt's text, and their answers, the first that matches;
# or one answer to all.
Script = Callable[[Prompt], str] | Mapping[str, str] | str


def answer(script: Script | None, prompt: Prompt) -> str:
    """The answer, made to fit the call's constraint. Prompts that the script says nothing about get words that depend on them."""
    text = _scripted(script, prompt)
    number = _number(prompt)
    if text is None:
        text = "".join(f" {WORDS[number // len(WORDS) ** at % len(WORDS)]}" for at in range(3 + number % 5))
    return text if prompt.call.constraint is None else constrained(text, prompt.call.constraint, number)


def _scripted(script: Script | None, prompt: Prompt) -> str | None:
    if script is None or isinstance(script, str):
        return script
    if isinstance(script, Mapping):
        return next((text for pattern, text in script.items() if re.search(pattern, prompt.text)), None)
    return script(prompt)


def _number(prompt: Prompt) -> int:
    """Drawn from the prompt; with a temperature also from seed and sample."""
    sampling = prompt.call.sampling
    drawn = (sampling.seed, prompt.sample) if sampling.temperature else ()
    return int.from_bytes(hashlib.sha256(repr((prompt.text, *drawn)).encode()).digest()[:6], "big")


def constrained(text: str, constraint: Constraint, number: int) -> str:
    """What in ``text`` fits, or something else that does. Raises `Refused` where nothing is found."""
    match constraint:
        case Choice(choices):
            found = [_found(choice, text) for choice in choices if choice in text]
            return min(found)[-1] if found else choices[number % len(choices)]
        case Regex(pattern):
            matches = (match.group() for match in re.finditer(pattern, text) if match.group())
            fitting = next(matches, None) or next((sample for sample in COMMON if re.fullmatch(pattern, sample)), None)
            if fitting is None:
                raise Refused("regex", f"the script has nothing that matches {pattern!r}")
            return fitting
        case JsonSchema(schema):
            for document in _documents(text):
                if fits(document, schema, schema):
                    return json.dumps(document, ensure_ascii=False)
            return json.dumps(instance(schema, schema, number), ensure_ascii=False)
        case Grammar():
            raise Unsupported("grammar", "fake", "it knows texts, patterns and schemas only")


def _found(choice: str, text: str) -> tuple[bool, int, int, str]:
    """Smaller where it is found better: as whole words, early, long."""
    words = re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text)
    return words is None, words.start() if words else text.find(choice), -len(choice), choice


def _documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    for at in range(len(text)):
        try:
            yield decoder.raw_decode(text, at)[0]
        except ValueError:
            continue


def fits(value: Any, schema: Any, root: Any) -> bool:
    """``value`` is valid, as far as the keywords that types of programs have go."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return fits(value, _referred(schema, root), root)
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema:
        return any(fits(value, option, root) for option in schema["anyOf"])
    if "type" in schema and not any(_is(value, kind) for kind in _kinds(schema)):
        return False
    if isinstance(value, dict):
        named = schema.get("properties", {})
        other = schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", ())) and all(
            fits(item, named.get(name, other), root) for name, item in value.items()
        )
    return not isinstance(value, list) or all(fits(item, schema.get("items", True), root) for item in value)


def instance(schema: Any, root: Any, number: int) -> Any:
    """A small valid value."""
    if isinstance(schema, bool):
        return WORDS[number % len(WORDS)]
    if "$ref" in schema:
        return instance(_referred(schema, root), root, number)
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], root, number)
    match _kinds(schema)[0]:
        case "object":
            named = schema.get("properties", {})
            return {name: instance(named[name], root, number + at) for at, name in enumerate(named)}
        case "array":
            if "prefixItems" in schema:
                return [instance(item, root, number) for item in schema["prefixItems"]]
            return [instance(schema.get("items", True), root, number + at) for at in range(schema.get("minItems", 2))]
        case "integer":
            return number % 100
        case "number":
            return number % 100 + 0.5
        case "boolean":
            return bool(number % 2)
        case "null":
            return None
        case _:
            return WORDS[number % len(WORDS)]


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    types: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": int | float,
        "null": type(None),
    }
    return kind in types and isinstance(value, types[kind])


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found
