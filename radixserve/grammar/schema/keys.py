"""Sets of property names."""

from __future__ import annotations

from radixserve.grammar.schema.patterns import Languages
from radixserve.grammar.schema.shapes import Keys


def covers(keys: Keys, name: str, languages: Languages) -> bool:
    """Whether ``name`` is one of ``keys``."""
    if keys.name is not None:
        return keys.name == name
    if keys.pattern is not None:
        return languages.matches(keys.pattern, name)
    return name not in keys.names and not any(languages.matches(pattern, name) for pattern in keys.patterns)
