"""The schema of the structured workload, and whether a text, perhaps cut off, is the beginning of one of its documents."""

from __future__ import annotations

import re
from typing import Any

_CLASSES = ("warrior", "wizard", "ranger", "healer")
_SKILLS = ("fireball", "shield", "stealth", "heal", "charge", "arrow_rain")
_LEVEL = {"type": "integer", "minimum": 1, "maximum": 99}
_SKILL_COUNT = 8

CHARACTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "class": {"type": "string", "enum": list(_CLASSES)},
        "level": _LEVEL,
        "active": {"type": "boolean"},
        "skills": {
            "type": "array",
            "minItems": _SKILL_COUNT,
            "maxItems": _SKILL_COUNT,
            "items": {
                "type": "object",
                "properties": {
                    "skill_name": {"type": "string", "enum": list(_SKILLS)},
                    "description": {"type": "string", "pattern": "^[a-z]{3,8} [a-z]{3,8}$"},
                    "power": _LEVEL,
                },
                "required": ["skill_name", "description", "power"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "class", "level", "active", "skills"],
    "additionalProperties": False,
}


class _CutOff(Exception):
    """The text ends inside the document."""


class _Wrong(Exception):
    """No document begins like this."""


def begins_document(text: str) -> bool:
    """Whether ``text`` is the beginning of a document of `CHARACTER_SCHEMA`, or all of it, with its keys in order."""
    reader = _Reader(text)
    try:
        _read_character(reader)
    except _CutOff:
        return True
    except _Wrong:
        return False
    return reader.at_end()


def _read_character(reader: _Reader) -> None:
    reader.mark("{")
    reader.key("name")
    reader.string(r"[A-Z][a-z]{2,9}")
    reader.mark(",")
    reader.key("class")
    reader.one_of(*(f'"{name}"' for name in _CLASSES))
    reader.mark(",")
    reader.key("level")
    reader.number()
    reader.mark(",")
    reader.key("active")
    reader.one_of("true", "false")
    reader.mark(",")
    reader.key("skills")
    reader.mark("[")
    for index in range(_SKILL_COUNT):
        if index:
            reader.mark(",")
        reader.mark("{")
        reader.key("skill_name")
        reader.one_of(*(f'"{name}"' for name in _SKILLS))
        reader.mark(",")
        reader.key("description")
        reader.string(r"[a-z]{3,8} [a-z]{3,8}")
        reader.mark(",")
        reader.key("power")
        reader.number()
        reader.mark("}")
    reader.mark("]")
    reader.mark("}")


class _Reader:
    """Takes one piece of JSON after the other off a text; white space may stand before each.

    Raises `_CutOff` where the text ends first, `_Wrong` where something else stands there.
    """

    def __init__(self, text: str) -> None:
        self._rest = text

    def at_end(self) -> bool:
        """Whether only white space is left."""
        return not self._rest.strip()

    def mark(self, text: str) -> None:
        """Exactly ``text``."""
        self.one_of(text)

    def key(self, name: str) -> None:
        """A member's name and its colon."""
        self.one_of(f'"{name}"')
        self.mark(":")

    def one_of(self, *choices: str) -> None:
        """One of ``choices``, none of which begins another."""
        self._skip()
        for choice in choices:
            if self._rest.startswith(choice):
                self._rest = self._rest[len(choice) :]
                return
            if choice.startswith(self._rest):
                raise _CutOff
        raise _Wrong

    def string(self, pattern: str) -> None:
        """A string whose whole content matches ``pattern``; one that is cut off may be anything of its letters and length."""
        self.mark('"')
        content, closed, rest = self._rest.partition('"')
        if not closed:
            if re.fullmatch(r"[A-Za-z]?[a-z]{0,9}|[a-z]{3,8} [a-z]{0,8}", content):
                raise _CutOff
            raise _Wrong
        if not re.fullmatch(pattern, content):
            raise _Wrong
        self._rest = rest

    def number(self) -> None:
        """An integer from 1 to 99."""
        self._skip()
        digits = re.match(r"[1-9][0-9]?", self._rest)
        if digits is None:
            raise _Wrong
        self._rest = self._rest[digits.end() :]
        if not self._rest:
            raise _CutOff

    def _skip(self) -> None:
        self._rest = self._rest.lstrip(" \n\t")
        if not self._rest:
            raise _CutOff
