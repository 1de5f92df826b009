"""An engine of several ranks: what it answers, what it says of itself, and that no rank outlives it."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixserve import Engine, SamplingParams
from radixserve.engine.socket_client import SocketClient
from radixserve.errors import ConfigError, EngineClosed, RankFailed
from tests.engine.clients import ENDLESS, OPTIONS, PATIENCE, job, model_file
from tests.runtime.tensor_parallel.ranks import alive, rank_processes, wait_gone
from tests.tiny_model import tiny_model

PROMPTS = [f"{number} times upon a time" for number in range(20)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)


def engine_of(ranks: int, **options: Any) -> Engine:
    return Engine.from_model(tiny_model(), tensor_parallel_size=ranks, num_blocks=400, threads=1, **options)


@pytest.fixture(scope="module")
def pair() -> Iterator[Engine]:
    with engine_of(2) as engine:
        pids = rank_processes()
        assert len(pids) == 1
        yield engine
        engine.check()
    assert not any(alive(pid) for pid in pids)


def test_two_ranks_answer_as_one(pair: Engine) -> None:
    with engine_of(1, kernels="torch") as alone:
        expected = alone.generate(PROMPTS, GREEDY)
    cold, warm = pair.generate(PROMPTS, GREEDY), pair.generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in cold] == [output.token_ids for output in expected]
    assert any(output.cached_tokens for output in warm)
    assert [output.logprobs for output in warm] == [output.logprobs for output in cold]


def test_what_it_says_of_itself(pair: Engine) -> None:
    facts = pair.runner_info
    assert facts["tensor_parallel_size"] == 2 and facts["kv_heads_of_ranks"] == "1+1"
    assert facts["kernels"] == "torch" and str(facts["kernels_reason"]).startswith("tensor_parallel_size=2: ")
    assert pair.info.options["tensor_parallel_size"] == 2 and pair.broken_promises == []


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: .*the model has 2: at most 2 ranks, not 3"):
        engine_of(3)
    with pytest.raises(ConfigError, match=r"^kernels: .*tensor_parallel_size needs torch"):
        engine_of(2, kernels="native")
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: must be between 1 and"):
        engine_of(0)
    with pytest.raises(ConfigError, match=r"^watchdog_timeout_s: is for several ranks, and tensor_parallel_size is 1$"):
        engine_of(1, watchdog_timeout_s=10)
    for seconds in (0, -1, 0.5, 1e7):
        with pytest.raises(ConfigError, match=r"^watchdog_timeout_s: must be between 1 and 1000000, not "):
            engine_of(2, watchdog_timeout_s=seconds)
    with pytest.raises(ConfigError, match=r"^watchdog_timeout_s: must be float \| None, not 'soon'"):
        engine_of(2, watchdog_timeout_s="soon")


def test_a_rank_that_is_killed_ends_the_engine_and_nobody_waits() -> None:
    before = set(rank_processes())
    engine = engine_of(2)
    [pid] = set(rank_processes()) - before
    stream = engine.generate("once", ENDLESS, stream=True)
    next(stream)
    threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(EngineClosed, match="the engine stopped: rank 1 was killed by SIGKILL"):
        for _ in stream:
            pass
    with pytest.raises(EngineClosed):
        engine.generate("twice", GREEDY)
    engine.close()


def test_a_rank_that_is_killed_in_a_pause_ends_the_engine_at_once() -> None:
    before = set(rank_processes())
    engine = engine_of(2)
    [pid] = set(rank_processes()) - before
    ends: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    engine._loop.at_end(ends.put)
    os.kill(pid, signal.SIGKILL)
    failure = ends.get(timeout=PATIENCE)
    assert isinstance(failure, RankFailed) and str(failure) == "rank 1 was killed by SIGKILL"
    with pytest.raises(EngineClosed):
        engine.generate("once", GREEDY)
    engine.close()


def test_no_rank_outlives_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is an engine process here, and is killed in the middle of its steps."""
    meetings = tmp_path / "meetings"
    meetings.mkdir()
    monkeypatch.setenv("TMPDIR", str(meetings))
    client = SocketClient({"model": model_file(tmp_path), **OPTIONS, "tensor_parallel_size": 2})

    async def run() -> None:
        await asyncio.wait_for(client.start(), PATIENCE)
        assert client.pid is not None
        pids = rank_processes(client.pid)
        assert len(pids) == 1 and len(list(meetings.glob("radixserve-ranks-*"))) == 1
        stream = client.generate([job("a", sampling=ENDLESS)])
        await anext(stream)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineClosed, match="SIGKILL"):
            async for _ in stream:
                pass
        wait_gone(pids)
        assert not list(meetings.glob("radixserve-ranks-*"))
        await client.close()

    asyncio.run(run())
