"""What an output must look like: the constraints that `SamplingParams.constraint` may hold.

These are msgspec structs because they travel between processes; fields are only ever appended. They say what is wanted
and nothing about how it is enforced: that is `radixserve.grammar`. `check_constraint` refuses what is of the wrong type or
too large to be looked at.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixserve.errors import InvalidRequest

MAX_CONSTRAINT_CHARACTERS = 512 * 1024
MAX_PATTERN_CHARACTERS = 64 * 1024
MAX_CHOICES = 10_000
MAX_TAGS = 512
MAX_TRIGGERS = 64


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True):
    """A JSON document that ``schema`` (itself a JSON text) accepts.

    ``whitespace``: ``compact`` writes none that is not needed; ``flexible`` allows a bounded amount between tokens.
    """

    schema: str
    whitespace: Literal["compact", "flexible"] = "compact"


class JsonObject(msgspec.Struct, frozen=True, tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""

    whitespace: Literal["compact", "flexible"] = "compact"


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    """The whole output matches ``pattern``."""

    pattern: str


class Grammar(msgspec.Struct, frozen=True, tag="grammar", forbid_unknown_fields=True):
    """The whole output is a sentence of a context-free grammar.

    ``syntax``: ``lark`` or ``gbnf``; ``auto`` tells them apart by their rule sign (``:`` or ``::=``).
    """

    text: str
    syntax: Literal["auto", "lark", "gbnf"] = "auto"


class Choice(msgspec.Struct, frozen=True, tag="choice", forbid_unknown_fields=True):
    """Exactly one of these texts."""

    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        _keep_tuple(self, "choices")


# What may stand between the begin and the end of a tag.
TagContent = JsonSchema | JsonObject | Regex | Grammar | Choice


class Tag(msgspec.Struct, frozen=True, tag="tag", forbid_unknown_fields=True):
    """``begin``, then ``content``, then ``end``.

    Where the vocabulary has a special token whose name occurs in ``begin`` or ``end``, that token is meant, and not the
    characters of its name.
    """

    begin: str
    content: TagContent
    end: str


class StructuralTag(msgspec.Struct, frozen=True, tag="structural_tag", forbid_unknown_fields=True):
    """Free text in which one of ``triggers`` opens one of ``tags``, whose content is then enforced.

    Every tag's ``begin`` starts with a trigger. ``required``: the output is tags from its very first token on, at least
    one. ``single``: at most one tag; the output ends with it. ``separator``: text between tags that directly follow one another (with
    ``required``). ``otherwise`` (with ``required``): what the output may be in place of tags. ``most`` (with
    ``required``): most tags in an output, 0 is without bound.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...]
    required: bool = False
    single: bool = False
    separator: str = ""
    otherwise: TagContent | None = None
    most: int = 0

    def __post_init__(self) -> None:
        _keep_tuple(self, "tags")
        _keep_tuple(self, "triggers")


Constraint = JsonSchema | JsonObject | Regex | Grammar | Choice | StructuralTag


def check_constraint(constraint: object) -> None:
    """Raise `InvalidRequest` unless ``constraint`` is one, of the right types and of a size that is looked at."""
    if not isinstance(constraint, Constraint):
        kinds = "JsonSchema, JsonObject, Regex, Grammar, Choice or StructuralTag"
        raise _wrong("constraint", f"must be {kinds}, not {type(constraint).__name__}")
    if isinstance(constraint, StructuralTag):
        _check_structural_tag(constraint)
    else:
        _check_content(constraint, "constraint")
    size = _characters(constraint)
    if size > MAX_CONSTRAINT_CHARACTERS:
        raise _too_large("constraint", f"has {size} characters, at most {MAX_CONSTRAINT_CHARACTERS} are taken")


def _check_content(content: TagContent, name: str) -> None:
    if isinstance(content, (JsonSchema, JsonObject)) and content.whitespace not in ("compact", "flexible"):
        raise InvalidRequest(f"{name}.whitespace", f"must be 'compact' or 'flexible', not {content.whitespace!r}")
    if isinstance(content, JsonSchema):
        _text(f"{name}.schema", content.schema)
    elif isinstance(content, Regex):
        _text(f"{name}.pattern", content.pattern, MAX_PATTERN_CHARACTERS)
    elif isinstance(content, Grammar):
        _text(f"{name}.text", content.text)
        if content.syntax not in ("auto", "lark", "gbnf"):
            raise InvalidRequest(f"{name}.syntax", f"must be 'auto', 'lark' or 'gbnf', not {content.syntax!r}")
    elif isinstance(content, Choice):
        _texts(f"{name}.choices", content.choices, MAX_CHOICES)
        if not content.choices:
            raise InvalidRequest(f"{name}.choices", "must hold at least one text")
        if len(set(content.choices)) != len(content.choices):
            raise InvalidRequest(f"{name}.choices", "holds a text twice")


def _check_structural_tag(constraint: StructuralTag) -> None:
    _texts("constraint.triggers", constraint.triggers, MAX_TRIGGERS)
    if not constraint.tags:
        raise _wrong("constraint.tags", "must be a sequence of at least one Tag")
    if len(constraint.tags) > MAX_TAGS:
        raise _too_large("constraint.tags", f"holds {len(constraint.tags)} tags, at most {MAX_TAGS} are taken")
    for name in ("required", "single"):
        if not isinstance(getattr(constraint, name), bool):
            raise _wrong(f"constraint.{name}", "must be true or false")
    _text("constraint.separator", constraint.separator)
    if isinstance(constraint.most, bool) or not isinstance(constraint.most, int):
        raise _wrong("constraint.most", "must be an integer")
    if not 0 <= constraint.most <= MAX_TAGS:
        raise InvalidRequest("constraint.most", f"must be between 0 and {MAX_TAGS}, not {constraint.most}")
    if constraint.most and (constraint.single or not constraint.required):
        raise InvalidRequest("constraint.most", "bounds required tags that are not single")
    if constraint.otherwise is not None:
        if not constraint.required:
            raise InvalidRequest("constraint.otherwise", "stands in place of required tags only")
        if not isinstance(constraint.otherwise, TagContent):
            raise _wrong(
                "constraint.otherwise", f"must be a constraint on text, not {type(constraint.otherwise).__name__}"
            )
        _check_content(constraint.otherwise, "constraint.otherwise")
    for index, tag in enumerate(constraint.tags):
        name = f"constraint.tags[{index}]"
        if not isinstance(tag, Tag):
            raise _wrong(name, f"must be a Tag, not {type(tag).__name__}")
        _text(f"{name}.begin", tag.begin)
        _text(f"{name}.end", tag.end)
        if not isinstance(tag.content, TagContent):
            raise _wrong(f"{name}.content", f"must be a constraint on text, not {type(tag.content).__name__}")
        _check_content(tag.content, f"{name}.content")


def _characters(constraint: object) -> int:
    """Characters of all texts in it."""
    if isinstance(constraint, str):
        return len(constraint)
    if isinstance(constraint, tuple):
        return sum(map(_characters, constraint))
    if isinstance(constraint, msgspec.Struct):
        return sum(_characters(getattr(constraint, name)) for name in constraint.__struct_fields__)
    return 0


def _text(name: str, value: object, limit: int = MAX_CONSTRAINT_CHARACTERS) -> None:
    if not isinstance(value, str):
        raise _wrong(name, f"must be a text, not {type(value).__name__}")
    if len(value) > limit:
        raise _too_large(name, f"has {len(value)} characters, at most {limit} are taken")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(name, f"is not a valid Unicode text: {error}") from None


def _texts(name: str, values: object, limit: int) -> None:
    if not isinstance(values, tuple):
        raise _wrong(name, "must be a sequence of texts")
    if len(values) > limit:
        raise _too_large(name, f"holds {len(values)} texts, at most {limit} are taken")
    for value in values:
        _text(name, value)


def _wrong(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(name, message, "invalid_type")


def _too_large(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(name, message, "constraint_too_large")


def _keep_tuple(struct: msgspec.Struct, name: str) -> None:
    """What was given as a list becomes a tuple, which nobody can change afterwards."""
    value = getattr(struct, name)
    if isinstance(value, list):
        msgspec.structs.force_setattr(struct, name, tuple(value))
    elif not isinstance(value, tuple):
        raise _wrong(f"constraint.{name}", f"must be a sequence, not {type(value).__name__}")
