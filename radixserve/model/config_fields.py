"""Checked access to the fields of a JSON configuration file; every error names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixserve.errors import ModelLoadError

MAX_JSON_BYTES = 256 * 1024 * 1024
"""No configuration, index or tokenizer file comes near this; a larger one is not read."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises `ModelLoadError` if it cannot be read or is not an object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return value


class Fields:
    """The fields of one JSON object. A field that is null counts as missing, as in the files' own library."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        """The raw value, None where missing."""
        return self.values.get(name)

    def error(self, name: str, expected: str) -> ModelLoadError:
        """The error for a field that is not what it should be."""
        return ModelLoadError(f"{self.source}: {name} must be {expected}, not {self.values.get(name)!r}")

    def optional_integer(self, name: str, *, low: int = 1) -> int | None:
        """An integer of at least ``low``, or None where missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(name, f"an integer of at least {low}")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int = 1) -> int:
        """An integer of at least ``low``; required where no default is given."""
        value = self.optional_integer(name, low=low)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.source}: {name} is missing")
        return value

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None where missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, "a finite number")
        return float(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0; required where no default is given."""
        value = self.optional_number(name)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.source}: {name} is missing")
        if value <= 0:
            raise self.error(name, "above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value
