"""From what happened to a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from radixlang.report import Report
from radixserve.model.tokenizer import Tokenizer
from radixserve.planner.advice.elsewhere import came_together, same_in_namespaces, tokenized_anew
from radixserve.planner.advice.evidence import Evidence
from radixserve.planner.advice.order import shuffled
from radixserve.planner.advice.parting import varying_first
from radixserve.planner.advice.spelling import spelled_apart
from radixserve.planner.options import PlanOptions
from radixserve.planner.plan import Advice, Blocks, Plan, PoolSize, SharedPrefix, Tokens
from radixserve.planner.prompt_tree import TreeNode, build_trees
from radixserve.planner.replay import Prompt, prompts_of, tokens_to_compute
from radixserve.planner.rerun import pool_size
from radixserve.planner.trace import CallTrace
from radixserve.planner.traced_core import TracedCore

_MOST_SHARED = 20
_QUOTED = 60


def summarize(
    source: str,
    core: TracedCore,
    report: Report,
    tokenizer: Tokenizer,
    options: PlanOptions,
    core_of: Callable[[int], TracedCore],
    *,
    unknown: int = 0,
    strays: int = 0,
    refused: Sequence[str] = (),
    skipped: int = 0,
) -> Plan:
    """The plan of what ``core`` did. ``report``: the account of it; ``core_of``: another core with so many blocks."""
    trace, cache = core.trace, core.cache
    calls = [call for call in trace.calls if call.intent.kind != "hold"]
    prompts = prompts_of(calls)
    trees = build_trees(prompts)
    blocks = Blocks(
        size=cache.block_size,
        pool=cache.pool.total,
        held=max((step.held for step in trace.steps), default=0),
        kept=max((step.kept for step in trace.steps), default=0),
        evicted=cache.stats.evicted_blocks,
        preempted=core.scheduler.stats.preemptions,
    )
    tokens = _tokens(report)
    return Plan(
        source=source,
        calls=report.total.calls,
        tokens=tokens,
        blocks=blocks,
        steps=len(trace.steps),
        rows=sum(step.rows for step in trace.steps),
        step_tokens=sum(step.tokens for step in trace.steps),
        seconds=None if core.cost.nominal else trace.seconds,
        report=report,
        shared=tuple(_shared(trees.values(), tokenizer)),
        advice=tuple(_advice(core, calls, prompts, tokenizer)) if options.advise else (),
        pools=tuple(_pools(core, options.pools, core_of)),
        unknown=unknown,
        strays=strays,
        refused=tuple(refused),
        skipped=skipped,
        trace=trace,
        trees=trees,
        decode=tokenizer.decode,
    )


def _tokens(report: Report) -> Tokens:
    total = report.total
    assert total.cached is not None and total.computed is not None and total.needed is not None, "an engine tells them"
    return Tokens(
        sent=total.prompt,
        cached=total.cached,
        computed=total.computed,
        needed=total.needed,
        generated=total.generated,
        forced=total.forced or 0,
    )


def _shared(roots: Iterable[TreeNode], tokenizer: Tokenizer) -> list[SharedPrefix]:
    """The pieces whose sharing saves most."""
    found = [
        (node.length * (node.sent - 1), node)
        for root in roots
        for node, _ in root.walk()
        if node.sent > 1 and node.length
    ]
    found.sort(key=lambda item: (-item[0], item[1].start))
    return [
        SharedPrefix(
            start=node.start,
            tokens=node.length,
            sent=node.sent,
            text=" ".join(tokenizer.decode(node.tokens[:_QUOTED]).split())[:_QUOTED],
        )
        for _, node in found[:_MOST_SHARED]
    ]


def _advice(
    core: TracedCore, calls: Sequence[CallTrace], prompts: Sequence[Prompt], tokenizer: Tokenizer
) -> list[Advice]:
    if core.config.cache.prefix_cache != "on" or not prompts:
        return []
    evidence = Evidence(prompts, tokenizer, core.cache.block_size)
    found = [
        *varying_first(evidence),
        *shuffled(evidence),
        *spelled_apart(evidence),
        *same_in_namespaces(evidence),
        *tokenized_anew(evidence),
    ]
    if core.cache.stats.evicted_blocks or core.scheduler.stats.preemptions:
        found += _too_small(core, prompts)
    else:
        found += came_together(evidence, [call.computed for call in calls])
    return sorted(found, key=lambda advice: -advice.saves)


def _too_small(core: TracedCore, prompts: Sequence[Prompt]) -> list[Advice]:
    cache = core.cache
    computed = sum(call.computed for call in core.trace.calls)
    saves = computed - tokens_to_compute(prompts, cache.block_size)
    if saves <= 0:
        return []
    return [
        Advice(
            kind="pool",
            text=(
                f"a pool of {cache.pool.total:,} blocks is too small: {cache.stats.evicted_blocks:,} blocks were evicted and "
                f"{core.scheduler.stats.preemptions:,} calls preempted; a larger one saves up to {saves:,} tokens"
            ),
            saves=saves,
            calls=len(prompts),
        )
    ]


def _pools(core: TracedCore, sizes: Sequence[int], core_of: Callable[[int], TracedCore]) -> list[PoolSize]:
    return [pool_size(core.trace, core_of(blocks)) for blocks in sizes]
