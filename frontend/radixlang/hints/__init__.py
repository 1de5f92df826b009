"""Hints to the engine: what a program will need next, and what it does not need any more.

They change when things happen and what that costs, never what comes out.
"""

from __future__ import annotations

from typing import cast

from radixlang.backends.base import Backend, TokenBackend
from radixlang.hints.base import Hints, NoHints, StateView
from radixlang.hints.engine import EngineHints

__all__ = ["EngineHints", "Hints", "NoHints", "StateView", "hints_for"]


def hints_for(backend: Backend, *, on: bool = True) -> Hints:
    """The hints of a new run or batch. Text backends have no holds, and their servers no priorities that all know: they get none."""
    return EngineHints(cast("TokenBackend", backend)) if on and backend.token_exact else NoHints()
