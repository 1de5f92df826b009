"""What a plan may be told besides the engine's options."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.errors import ConfigError
from radixserve.planner.step_cost import NOMINAL, StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """``output_tokens``: how long an output is taken to be where nothing tells (never longer than its ``max_tokens``).

    ``cost``: how long steps take. ``concurrency``: programs, or calls of a log, at a time. ``pools``: sizes of the pool, in blocks,
    to try the same calls in. ``advise``: look for what could be better.
    """

    output_tokens: int = 64
    cost: StepCost = NOMINAL
    concurrency: int = 64
    pools: tuple[int, ...] = ()
    advise: bool = True

    def __post_init__(self) -> None:
        for name in ("output_tokens", "concurrency"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(name, f"must be a whole number of at least 1, not {value!r}")
        sizes: tuple[object, ...] = self.pools
        for blocks in sizes:
            if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 2:
                raise ConfigError("pools", f"must be whole numbers of at least 2, not {blocks!r}")
