"""What `run` and its like take besides a program's own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixlang.backends.base import Backend
from radixlang.defaults import backend_or_default
from radixlang.errors import InvalidProgram
from radixlang.sampling import SPELLINGS, Sampling

_OWN = frozenset({"backend", "stream", "hints", "heal", "timeout"})


@dataclass(frozen=True, slots=True)
class Options:
    """``sampling``: what a `gen` takes where it says nothing. ``timeout``: seconds for one program."""

    backend: Backend
    sampling: Sampling
    stream: bool = False
    hints: bool = True
    heal: bool | None = None
    timeout: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options as a user spells them. Raises `InvalidProgram` naming the one that is wrong."""
        timeout = given.get("timeout")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise InvalidProgram("timeout", f"is a number of seconds above 0, not {timeout!r}")
        for name in ("stream", "hints", "heal"):
            if not isinstance(given.get(name), bool | None):
                raise InvalidProgram(name, f"is True or False, not {given[name]!r}")
        return cls(
            backend=backend_or_default(given.get("backend")),
            sampling=Sampling.of(**{name: value for name, value in given.items() if name in SPELLINGS}),
            stream=bool(given.get("stream", False)),
            hints=bool(given.get("hints", True)),
            heal=given.get("heal"),
            timeout=timeout,
        )


def split(keywords: Mapping[str, Any], signature: inspect.Signature) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program's own keywords and the options. A name that the program has a parameter of is the program's."""
    options = {
        name: value for name, value in keywords.items() if name in _OWN | SPELLINGS and name not in signature.parameters
    }
    return {name: value for name, value in keywords.items() if name not in options}, options
