"""What an output must look like. The backends translate these; what one cannot enforce it refuses by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON document that validates against ``schema``."""

    schema: dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that matches ``pattern`` as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text of a grammar in GBNF."""

    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Exactly one of ``choices``."""

    choices: tuple[str, ...]


Constraint = JsonSchema | Regex | Grammar | Choice
