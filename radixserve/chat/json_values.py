"""JSON values that came from a caller: what is asked of all of them, and where an object in a stream of text ends."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from radixserve.errors import InvalidRequest

MAX_DEPTH = 100

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


def check_depth(value: object, param: str) -> None:
    """Raise `InvalidRequest` where ``value`` is nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list | tuple)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidRequest(param, f"is nested more than {MAX_DEPTH} levels deep")


def parse_object(text: str, param: str) -> dict[str, Any]:
    """The object that ``text`` is the JSON of; a blank text is an empty object, as clients write a call without arguments."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(param, f"is not a JSON object: {error}", "invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(param, "is not a JSON object", "invalid_json")
    check_depth(value, param)
    return value


def check_text(value: object, param: str) -> str:
    """``value``, unless it is not a text of whole Unicode characters."""
    if not isinstance(value, str):
        raise InvalidRequest(param, f"must be a text, not {type(value).__name__}", "invalid_type")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(param, f"is not a valid Unicode text: {error}", "invalid_type") from error
    return value


class ObjectScanner:
    """Finds where a JSON object ends in text that arrives in pieces. It looks at strings and brackets only."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of ``text`` still belong to the object, None if all do and it is still open."""
        position = 0
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if match is None:
                return None
            position = match.end()
            char = match[0]
            if char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if char in "{[" else -1
                if self._depth == 0:
                    return position
        return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
