"""Engines that are closed, dropped, forked or left behind: nobody waits for ever, and nothing runs on unheard."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from radixserve import Engine, SamplingParams
from radixserve.errors import ConfigError, EngineClosed, InvalidRequest
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import StepPlan, StepResult
from tests.tiny_model import tiny_model

LONG = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
PATIENCE = 30.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model(), num_blocks=256, threads=1) as engine:
        yield engine


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A started thread, and where its result or exception will be."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that must come true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def test_callers_that_come_during_the_last_step_are_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    execute, inside = PlanRunner.execute, threading.Event()

    def slow(self: PlanRunner, plan: StepPlan) -> StepResult:
        inside.set()
        time.sleep(0.3)
        return execute(self, plan)

    monkeypatch.setattr(PlanRunner, "execute", slow)
    first = in_thread(lambda: engine.generate("a", LONG))
    assert inside.wait(PATIENCE)
    later = [in_thread(lambda: engine.generate("b", LONG)), in_thread(engine.cache_stats)]
    time.sleep(0.05)
    engine.close()
    for thread, outcome in (first, *later):
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert isinstance(outcome[0], EngineClosed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dead_event_loop_does_not_silence_the_others() -> None:
    engine = Engine.from_model(tiny_model(), num_blocks=256, threads=1, max_running=1)
    stream = engine.generate("running", LONG, stream=True)
    next(stream)
    loop = asyncio.new_event_loop()
    task: asyncio.Task[Any] = loop.create_task(engine.astream("waiting", LONG).__anext__())  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0.2))
    thread, outcome = in_thread(lambda: engine.generate("also waiting", LONG))
    until(lambda: engine.cache_stats()["waiting"] == 2)
    loop.close()
    engine.close()
    thread.join(PATIENCE)
    assert isinstance(outcome[0], EngineClosed)
    with pytest.raises(EngineClosed):
        list(stream)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("drop", [lambda stream: stream.close(), lambda stream: None])
def test_a_stream_that_is_dropped_stops_running(engine: Engine, taken: int, drop: Callable[[Any], None]) -> None:
    stream = engine.generate("drop me", LONG, stream=True)
    for _ in range(taken):
        next(stream)
    drop(stream)
    del stream
    gc.collect()
    until(lambda: engine.cache_stats()["scheduler"]["finished"].get("abort") == 1)


def test_a_forked_child_is_told_at_once(engine: Engine) -> None:
    engine.generate("before", SHORT)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            engine.generate("x", SHORT)
        except EngineClosed:
            engine.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.generate("after", SHORT).error is None


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("raise ValueError('mine')", 1)])
def test_a_program_that_leaves_a_busy_engine_behind_ends_as_it_should(ending: str, code: int) -> None:
    program = f"""
from radixserve import Engine, SamplingParams
from tests.tiny_model import tiny_model
engine = Engine.from_model(tiny_model(), num_blocks=256, threads=1)
stream = engine.generate("abc", SamplingParams(max_tokens=900, temperature=0, ignore_eos=True), stream=True)
next(stream)
{ending}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr


def test_what_was_checked_stays_what_it_was(engine: Engine) -> None:
    bias = {1: 1.0}
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logit_bias=bias)
    stream = engine.generate("abc", params, stream=True)
    next(stream)
    bias[99_999] = 1.0
    assert [chunk.output.error for chunk in stream if chunk.output is not None] == [None]


@pytest.mark.parametrize(
    ("prompt", "continuations"),
    [
        ("a", "text"),
        ("a", None),
        ("a", 5),
        ("a", [5]),
        ("a", [[1.0]]),
        (5, ["a"]),
        (b"ab", ["a"]),
        (np.array([1]), ["a"]),
    ],
)
def test_score_refuses_what_it_cannot_score(engine: Engine, prompt: Any, continuations: Any) -> None:
    with pytest.raises(InvalidRequest):
        engine.score(prompt, continuations)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty"])
def test_a_huge_integer_is_out_of_range(engine: Engine, name: str) -> None:
    field: dict[str, Any] = {name: 10**400}
    with pytest.raises(InvalidRequest, match=name):
        engine.generate("a", SamplingParams(**field))


def test_min_tokens_that_cannot_be_had_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        engine.generate("a", SamplingParams(min_tokens=10**6))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 100_000}, {"threads": 10**30}, {"num_blocks": 10**12}, {"kv_memory_mb": 10**9},
        {"kv_memory_mb": 10**30}, {"watermark": 10**400}, {"age_weight": 10**400}, {"itl_target_ms": 10**400},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_absurd_options_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Engine.from_model(tiny_model(), **options)
