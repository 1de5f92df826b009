"""What the cache counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CacheStats:
    """Counters since the start, in tokens or blocks; gauges are properties of `PrefixCache`."""

    queries: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    copied_tokens: int = 0
    evicted_blocks: int = 0
    evictions: int = 0
    deduplicated_blocks: int = 0
    repairs: int = 0
    failed_checks: list[str] = field(default_factory=list)
