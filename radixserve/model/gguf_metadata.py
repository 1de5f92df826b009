"""The key-value pairs of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np

from radixserve.errors import ModelLoadError


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a file, with access that checks types and names the key that is wrong.

    Values are int, float, bool, str, list[str], or a numpy array for arrays of numbers.
    """

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def typed(self, key: str, kind: type[int]) -> int | None: ...
    @overload
    def typed(self, key: str, kind: type[float]) -> float | None: ...
    @overload
    def typed(self, key: str, kind: type[str]) -> str | None: ...
    def typed(self, key: str, kind: type[Any]) -> Any:
        """The value of ``key`` as a ``kind`` (bool, int, float, str or list of strings), None where the key is missing.

        An int may be read as float. Raises `ModelLoadError` if the value is of another type.
        """
        value = self._values.get(key)
        if value is None:
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(f"{self._source}: {key} is of type {type(value).__name__}, not {kind.__name__}")
        return value

    def strings(self, key: str) -> list[str] | None:
        """The value of ``key``, a list of strings, or None where the key is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise ModelLoadError(f"{self._source}: {key} is not an array of strings")
        return value

    def numbers(self, key: str, length: int) -> np.ndarray[Any, Any] | None:
        """The value of ``key``, an array of ``length`` numbers, or None where the key is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != length:
            raise ModelLoadError(f"{self._source}: {key} is not an array of {length} numbers")
        return value
