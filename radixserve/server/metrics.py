"""What ``/metrics`` tells, in Prometheus' text format.

Latencies are measured here, where clients feel them; counts of tokens, blocks and steps come from the engine when they
are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_ITL = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_E2E = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class Metrics:
    """All series of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine = EngineCollector()
        self.registry.register(self._engine)
        self.responses = Counter(
            "radixserve_http_responses", "HTTP responses", ("path", "status"), registry=self.registry
        )
        self.requests = Counter(
            "radixserve_requests", "Generation requests by how they ended", ("finish_reason",), registry=self.registry
        )
        self.time_to_first_token = Histogram(
            "radixserve_time_to_first_token_seconds",
            "From arrival to first token",
            buckets=_TTFT,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "radixserve_inter_token_seconds", "Between two deliveries of a stream", buckets=_ITL, registry=self.registry
        )
        self.end_to_end = Histogram(
            "radixserve_request_seconds", "From arrival to the last token", buckets=_E2E, registry=self.registry
        )
        self.prompt_tokens = Counter("radixserve_prompt_tokens", "Prompt tokens received", registry=self.registry)
        self.cached_tokens = Counter(
            "radixserve_prompt_cached_tokens", "Prompt tokens served from the cache", registry=self.registry
        )
        self.output_tokens = Counter("radixserve_output_tokens", "Tokens delivered", registry=self.registry)

    def render(self, stats: dict[str, Any]) -> bytes:
        """The exposition, with the engine's ``stats`` as they are now; empty ones for an engine that is gone."""
        self._engine.stats = stats
        return generate_latest(self.registry)


class EngineCollector:
    """Turns ``EngineClient.stats()`` into series; ``stats`` is set just before each collection."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing can be known before the engine was asked."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series that the stats hold."""
        stats = self.stats
        yield GaugeMetricFamily("radixserve_engine_up", "Whether the engine answers", value=bool(stats))
        if not stats:
            return
        held = stats["blocks"]
        blocks = GaugeMetricFamily("radixserve_kv_blocks", "KV blocks by state; the states add up", labels=("state",))
        for state, key in _STATES.items():
            blocks.add_metric((state,), held[key])
        yield blocks
        yield GaugeMetricFamily("radixserve_kv_blocks_capacity", "KV blocks in the pool", value=held["total"])
        yield GaugeMetricFamily("radixserve_holds", "Prefixes that are held", value=stats["holds"]["count"])
        yield GaugeMetricFamily(
            "radixserve_kv_blocks_held", "KV blocks that holds keep", value=stats["holds"]["blocks"]
        )
        yield GaugeMetricFamily(
            "radixserve_kv_blocks_evictable", "Cached KV blocks that no request uses", value=held["evictable"]
        )
        finished = CounterMetricFamily(
            "radixserve_finished_samples", "Sequences by how they ended", labels=("finish_reason",)
        )
        for reason, count in stats["scheduler"]["finished"].items():
            finished.add_metric((str(reason),), count)
        yield finished
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"radixserve_{name}", text, value=stats[name])
        for name, (part, key, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"radixserve_{name}", text, value=stats[part][key])
        for name, text in _HISTOGRAMS.items():
            yield _histogram(f"radixserve_{name}", text, stats["steps"][name])


# What a block is to an operator -> its state in the books.
_STATES = {"free": "free", "cached": "tree", "used": "private", "retired": "retired"}
_GAUGES = {
    "running": "Sequences in the running batch",
    "waiting": "Requests waiting to be scheduled",
    "nodes": "Nodes of the radix tree",
    "ghosts": "Evicted paths that are remembered",
    "hit_rate": "Share of prompt tokens that were found in the cache",
}
_COUNTERS = {
    "steps": ("scheduler", "steps", "Engine steps"),
    "failed_steps": ("scheduler", "failed_steps", "Engine steps whose forward pass failed"),
    "computed_tokens": ("scheduler", "computed_tokens", "Tokens computed by forward passes"),
    "generated_tokens": ("scheduler", "generated_tokens", "Tokens drawn"),
    "preemptions": ("scheduler", "preemptions", "Requests that gave their blocks back and were queued again"),
    "cache_hit_tokens": ("cache", "hit_tokens", "Prompt tokens found in the cache"),
    "cache_queried_tokens": ("cache", "queried_tokens", "Prompt tokens looked up in the cache"),
    "evicted_blocks": ("cache", "evicted_blocks", "KV blocks evicted"),
    "copied_tokens": ("cache", "copied_tokens", "Cached tokens inside a block, copied for a request of its own"),
    "holds_taken": ("holds", "taken", "Prefixes that were held"),
    "holds_gave_way": ("holds", "gave_way", "Holds that ended early under pressure or for others' share"),
    "holds_expired": ("holds", "expired", "Holds that ended because nobody released them in time"),
    "cache_repairs": ("cache", "repairs", "Times that the cache's books were wrong and it was emptied"),
}
_HISTOGRAMS = {
    "step_seconds": "Wall time of a step",
    "batch_rows": "Rows of a step",
    "batch_tokens": "Tokens of a step",
}


def _histogram(name: str, text: str, values: dict[str, Any]) -> HistogramMetricFamily:
    """``values``: ``edges``, cumulative ``counts`` with one more entry than edges, and ``sum``."""
    edges = [*(str(float(edge)) for edge in values["edges"]), "+Inf"]
    pairs = list(zip(edges, values["counts"], strict=True))
    return HistogramMetricFamily(name, text, buckets=pairs, sum_value=values["sum"])
