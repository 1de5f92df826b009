"""What a measured step holds: decodes at a context, tokens of a prompt over a cached prefix, or both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from radixserve.errors import ConfigError

DEFAULT_CASES = (
    "1@512",
    "1@1500",
    "4@1000",
    "16@1000",
    "16@1000/shared",
    "64@1000",
    "64@1000/shared",
    "p512@1000",
    "16@1000+p256@1000",
)
# Tokens of its own that a request has behind a shared prefix.
OWN_TOKENS = 8
_FORM = re.compile(
    r"(?:(?P<rows>\d+)@(?P<context>\d+)(?P<shared>/shared)?)?(?P<plus>\+)?(?:p(?P<extend>\d+)@(?P<cached>\d+))?"
)


@dataclass(frozen=True, slots=True)
class StepCase:
    """``rows`` decodes at ``context`` tokens, whose prompts are ``shared`` but for the last few; and ``extend`` tokens of a
    prompt of which ``cached`` are in place.
    """

    rows: int = 0
    context: int = 0
    shared: bool = False
    extend: int = 0
    cached: int = 0

    @classmethod
    def parse(cls, text: str) -> StepCase:
        """From ``16@1000``, ``16@1000/shared``, ``p512@1000`` or two of them with a plus; raises `ConfigError`."""
        found = _FORM.fullmatch(text)
        if found is None or bool(found["plus"]) != bool(found["rows"] and found["extend"]):
            raise ConfigError(
                "case", f"must be like 16@1000, 16@1000/shared, p512@1000 or 16@1000+p256@1000, not {text!r}"
            )
        rows, context, extend, cached = (int(found[name] or 0) for name in ("rows", "context", "extend", "cached"))
        if not rows and not extend:
            raise ConfigError("case", f"{text!r} has nothing to compute")
        if rows and context <= OWN_TOKENS:
            raise ConfigError("case", f"{text!r}: decodes need a context of more than {OWN_TOKENS} tokens")
        return cls(rows, context, found["shared"] is not None, extend, cached)

    @property
    def name(self) -> str:
        """As it is parsed."""
        decodes = f"{self.rows}@{self.context}{'/shared' * self.shared}" if self.rows else ""
        extends = f"p{self.extend}@{self.cached}" if self.extend else ""
        return "+".join(filter(None, (decodes, extends)))

    @property
    def title(self) -> str:
        """For people."""
        shared = ", one prefix" if self.shared else ""
        parts = [f"{self.rows} decode{'s' * (self.rows > 1)} at {self.context}{shared}"] if self.rows else []
        parts += [f"{self.extend} of a prompt over {self.cached}"] if self.extend else []
        return " + ".join(parts)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, without those that are drawn while it is measured."""
        return max(self.context, self.cached + self.extend)
