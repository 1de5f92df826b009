"""radixserve: an engine for programs of many language-model calls, in which no token is computed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.messages import GenerationOutput, SamplingParams

if TYPE_CHECKING:
    from radixserve.engine.offline import Engine

__all__ = ["Engine", "GenerationOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # The engine brings torch along; what only needs the vocabulary does not wait for it.
    if name == "Engine":
        from radixserve.engine.offline import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
