"""How a schema is refused: by keyword and JSON path."""

from __future__ import annotations

from typing import NamedTuple

from radixserve.errors import InvalidRequest

UNSUPPORTED = "unsupported_schema"
INVALID = "invalid_schema"
UNSATISFIABLE = "unsatisfiable_schema"
TOO_COMPLEX = "schema_too_complex"


class Origin(NamedTuple):
    """A keyword of the caller's schema. ``path``: JSON pointer with ``#``, the keyword included."""

    keyword: str
    path: str


class SchemaRefused(InvalidRequest):
    """A schema that is not enforced.

    ``code`` is `UNSUPPORTED` (a keyword cannot be enforced exactly), `INVALID` (not a schema), `UNSATISFIABLE` (no document validates)
    or `TOO_COMPLEX` (a limit was reached).
    """

    def __init__(self, origin: Origin, reason: str, code: str = UNSUPPORTED, param: str = "schema") -> None:
        super().__init__(param, f"{origin.keyword} at {origin.path}: {reason}", code)
        self.origin = origin
        self.reason = reason

    def under(self, param: str) -> SchemaRefused:
        """The same refusal, for a request that has its schema in the field ``param``."""
        return SchemaRefused(self.origin, self.reason, self.code, param)
