"""Holds in the engine: computed if needed, ended by time also where nothing runs, and without a say in any output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from radixserve import Engine, SamplingParams
from radixserve.config import SchedulerConfig
from radixserve.engine.core import EngineCore
from radixserve.errors import InvalidRequest, RequestFailed
from radixserve.messages import FinishReason, GenerationOutput
from tests.engine.clients import PATIENCE
from tests.engine.schedules import Bench
from tests.tiny_decoder import tiny_decoder
from tests.tiny_model import tiny_model

NOTHING = SamplingParams(max_tokens=0, temperature=0)
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(tiny_decoder(), 4, 100)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def core(bench: Bench, clock: Clock) -> EngineCore:
    return bench.core(SchedulerConfig(), 40, clock=clock)


def run(bench: Bench, core: EngineCore, rid: str, prompt: list[int], **fields: Any) -> GenerationOutput:
    outputs: dict[str, GenerationOutput] = {}
    core.add(rid, prompt, fields.pop("sampling", GREEDY), **fields)
    while core.has_work or core.has_news:
        bench.step(core, outputs)
    return outputs[rid]


def hold(bench: Bench, core: EngineCore, rid: str, prompt: list[int], seconds: float = 30.0) -> GenerationOutput:
    return run(bench, core, rid, prompt, sampling=NOTHING, hold_s=seconds)


def test_a_prefix_is_computed_and_stays(bench: Bench, core: EngineCore) -> None:
    prompt = list(range(22))
    output = hold(bench, core, "h", prompt)
    assert output.hold is not None and output.finish_reason is FinishReason.LENGTH
    assert (output.hold.tokens, output.hold.computed_tokens, output.hold.expires_in_s) == (22, 22, 30)
    for index in range(5):
        run(bench, core, f"r{index}", [60 + index, *range(90)])
    assert core.stats()["cache"]["evicted_blocks"] > 0
    assert run(bench, core, "next", [*prompt, 5]).cached_tokens == 22


def test_what_is_there_is_not_computed_again(bench: Bench, core: EngineCore) -> None:
    prompt = list(range(22))
    run(bench, core, "first", prompt, sampling=NOTHING)
    computed = core.stats()["scheduler"]["computed_tokens"]
    output = hold(bench, core, "h", prompt)
    assert output.hold is not None and (output.hold.tokens, output.hold.computed_tokens) == (22, 0)
    assert output.cached_tokens == 22 and core.stats()["scheduler"]["computed_tokens"] == computed
    longer = hold(bench, core, "longer", [*prompt, 7, 8])
    assert longer.hold is not None and (longer.hold.tokens, longer.hold.computed_tokens) == (24, 2)


def test_its_time_is_the_shorter_of_both(bench: Bench, core: EngineCore, clock: Clock) -> None:
    assert core.seconds_to_expiry() is None
    output = hold(bench, core, "long", list(range(8)), 1e6)
    assert output.hold is not None and output.hold.expires_in_s == core.config.cache.hold_max_s == 60
    hold(bench, core, "short", list(range(20, 28)), 5)
    assert core.seconds_to_expiry() == 5
    clock.now += 4.9
    core.expire_holds()
    assert core.stats()["holds"]["count"] == 2
    clock.now += 0.1
    run(bench, core, "r", [1])
    assert core.stats()["holds"] | {"blocks": 0} == core.stats()["holds"] | {"blocks": 0, "count": 1, "expired": 1}
    clock.now += 60
    core.expire_holds()
    assert core.stats()["holds"]["count"] == 0 and core.seconds_to_expiry() is None


def test_one_that_is_aborted_holds_nothing(bench: Bench, core: EngineCore) -> None:
    core.add("h", list(range(30)), NOTHING, hold_s=10.0)
    core.abort("h")
    outputs: dict[str, GenerationOutput] = {}
    bench.step(core, outputs)
    assert outputs["h"].hold is None and len(core.cache.holds) == 0


@pytest.mark.parametrize("mode", ["off", "force_miss"])
def test_nothing_is_computed_where_nothing_can_be_held(bench: Bench, mode: str) -> None:
    core = bench.core(SchedulerConfig(), 40, prefix_cache=mode)
    output = hold(bench, core, "h", list(range(20)))
    assert output.hold is not None and (output.hold.tokens, output.hold.computed_tokens) == (0, 0)
    assert output.finish_reason is FinishReason.LENGTH and core.stats()["steps"]["count"] == 0


def test_a_name_holds_one_thing(bench: Bench, core: EngineCore) -> None:
    hold(bench, core, "h", list(range(20)))
    with pytest.raises(InvalidRequest) as caught:
        hold(bench, core, "h", list(range(20)))
    assert caught.value.param == "rid"
    assert core.release(["h"]) == 1
    hold(bench, core, "h", list(range(20)))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"hold_s": 0}, "hold_s"),
        ({"hold_s": -1.0}, "hold_s"),
        ({"hold_s": float("inf")}, "hold_s"),
        ({"hold_s": float("nan")}, "hold_s"),
        ({"hold_s": "1"}, "hold_s"),
        ({"hold_s": True}, "hold_s"),
        ({"hold_s": 1, "sampling": GREEDY}, "max_tokens"),
        ({"hold_s": 1, "sampling": SamplingParams(max_tokens=0, n=2)}, "n"),
    ],
)
def test_what_is_wrong_is_refused_by_name(bench: Bench, core: EngineCore, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        run(bench, core, "h", [1, 2], **{"sampling": NOTHING, **fields})
    assert caught.value.param == param


def test_outputs_are_the_same_with_and_without(bench: Bench, clock: Clock) -> None:
    """Bit for bit, in a pool that is too small for both."""
    found = []
    for holds in (False, True):
        core = bench.core(SchedulerConfig(), 24, clock=clock)
        outputs = {}
        for index in range(6):
            prompt = [index % 3, *range(40), index]
            if holds:
                hold(bench, core, f"h{index}", prompt[:30], 5)
            sampling = SamplingParams(max_tokens=8, temperature=0.9, seed=index, logprobs=1, n=2)
            outputs[index] = run(bench, core, f"r{index}", prompt, sampling=sampling)
            clock.now += 2
        found.append([[(sample.token_ids, sample.logprobs) for sample in outputs[index].samples] for index in outputs])
    assert found[0] == found[1]


# ---------------------------------------------------------------- the offline face and the loop


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model(), num_blocks=64, threads=1, kernels="torch") as engine:
        yield engine
        engine.check()


def test_both_faces(engine: Engine) -> None:
    first = engine.hold("once upon a time", 20)
    assert (first.held_tokens, first.prompt_tokens, first.computed_tokens, first.cached_tokens) == (16, 16, 16, 0)

    async def ask() -> None:
        second = await engine.ahold(list(b"once upon a time"), 20)
        assert (second.held_tokens, second.computed_tokens, second.cached_tokens) == (16, 0, 16)
        assert second.id != first.id and second.expires_in_s == 20
        assert await engine.arelease([first.id, second.id, "other"]) == 2

    asyncio.run(ask())
    assert engine.release([first.id]) == 0
    assert engine.hold("once", 20, cache_salt="mine").cached_tokens == 0
    engine.flush_cache()
    assert engine.cache_stats()["holds"]["count"] == 0


def test_the_faces_refuse_by_name(engine: Engine) -> None:
    for arguments, param in ((("", 1), "prompt"), (([], 1), "prompt"), (("a", 0), "hold_s"), (("a", "b"), "hold_s")):
        with pytest.raises(InvalidRequest) as caught:
            engine.hold(*arguments)
        assert caught.value.param == param
    with pytest.raises(InvalidRequest) as wrong:
        engine.release("gen-0")
    assert wrong.value.param == "holds"


def test_one_that_is_aborted_has_failed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    add = EngineCore.add

    def add_and_abort(core: EngineCore, rid: str, *arguments: Any, **options: Any) -> None:
        add(core, rid, *arguments, **options)
        core.abort(rid)

    monkeypatch.setattr(EngineCore, "add", add_and_abort)
    with pytest.raises(RequestFailed, match="aborted"):
        engine.hold("once upon a time", 20)


def test_a_hold_ends_while_nothing_runs(engine: Engine) -> None:
    """The loop wakes for it: nobody asks, and no step runs."""
    expired = threading.Event()
    expire = EngineCore.expire_holds

    def watched(core: EngineCore) -> None:
        expire(core)
        if core.cache.holds.stats.expired:
            expired.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineCore, "expire_holds", watched)
        engine.hold("once upon a time", 0.05)
        assert expired.wait(PATIENCE)
    stats = engine.cache_stats()
    assert stats["holds"]["count"] == 0 and stats["blocks"]["evictable"] == stats["blocks"]["tree"] > 0
