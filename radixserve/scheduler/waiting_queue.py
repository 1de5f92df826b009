"""The queue that a configuration asks for."""

from __future__ import annotations

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.scheduler.policy import ByPriority, FirstComeFirstServed, WaitingQueue
from radixserve.scheduler.tree_policy import DepthFirstWeight, LongestPrefixMatch


def waiting_queue(config: SchedulerConfig, cache: PrefixCache, context_length: int) -> WaitingQueue:
    """The queue for ``config.policy``; without a prefix cache the orders that look at it are plain arrival."""
    if config.policy == "priority":
        return ByPriority()
    if config.policy == "fcfs" or cache.config.prefix_cache != "on":
        return FirstComeFirstServed()
    if config.policy == "lpm":
        return LongestPrefixMatch(cache, config.age_weight, context_length)
    return DepthFirstWeight(cache)
