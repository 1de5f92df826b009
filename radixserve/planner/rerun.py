"""The calls of a trace once more, with the answers they got, on an engine with other options."""

from __future__ import annotations

import dataclasses

from radixserve.errors import InvalidRequest
from radixserve.planner.plan import PoolSize
from radixserve.planner.trace import Answer, CallTrace, Intent, Trace, intended
from radixserve.planner.traced_core import TracedCore


def rerun(trace: Trace, core: TracedCore) -> list[str]:
    """Play the calls on ``core``, each when all have ended that had ended when it came. Returns the refusals.

    Holds are calls like others here: what they computed is computed, but it is not held.
    """
    refused: list[str] = []
    waiting = list(trace.calls)
    running: dict[str, CallTrace] = {}
    open_ends = {call.ended for call in trace.calls if call.ended is not None}
    while waiting or running:
        first_open = min(open_ends, default=len(trace.calls))
        while waiting and waiting[0].after <= first_open:
            call = waiting.pop(0)
            rid = f"again-{call.number}"
            try:
                with intended(_with_answers(call)):
                    core.add(rid, list(call.prompt), call.sampling, priority=call.priority, salt=call.salt)
            except InvalidRequest as error:
                refused.append(str(error))
                if call.ended is not None:
                    open_ends.discard(call.ended)
            else:
                running[rid] = call
            first_open = min(open_ends, default=len(trace.calls))
        for chunk in core.step():
            if chunk.output is not None:
                ended = running.pop(chunk.rid).ended
                if ended is not None:
                    open_ends.discard(ended)
    return refused


def pool_size(trace: Trace, core: TracedCore) -> PoolSize:
    """What the calls of ``trace`` cost in the pool of ``core``."""
    refused = rerun(trace, core)
    return PoolSize(
        blocks=core.cache.pool.total,
        refused=len(refused),
        computed=sum(call.computed for call in core.trace.calls),
        evicted=core.cache.stats.evicted_blocks,
        preempted=core.scheduler.stats.preemptions,
        steps=len(core.trace.steps),
    )


def _with_answers(call: CallTrace) -> Intent:
    answers = tuple(Answer(output) for output in call.outputs) or None
    return dataclasses.replace(call.intent, answers=answers)
