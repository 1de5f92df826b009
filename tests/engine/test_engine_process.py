"""The engine's process: how it starts or does not, what it logs, and that nobody outlives anybody."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from radixserve.engine import child_process
from radixserve.engine.socket_client import SocketClient
from radixserve.errors import EngineClosed
from radixserve.messages import SamplingParams
from tests.engine.clients import ENDLESS, OPTIONS, PATIENCE, gather, job, model_file
from tests.server.fake_client import FakeClient, Script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return model_file(tmp_path_factory.mktemp("model"))


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that clients make for their sockets."""
    made: list[Path] = []
    make = child_process.make_directory

    def noted() -> Path:
        made.append(make())
        return made[-1]

    monkeypatch.setattr("radixserve.engine.socket_client.make_directory", noted)
    return made


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start_parent(model: str, **options: Any) -> subprocess.Popen[str]:
    """A process that starts an engine, tells its id and the directory of its sockets, and then waits."""
    program = (
        "import asyncio\n"
        "from radixserve.engine.socket_client import SocketClient\n"
        "async def run():\n"
        f"    client = SocketClient({ ({'model': model, **OPTIONS})!r})\n"
        "    await client.start()\n"
        "    print(client.pid, client._directory, flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(run())\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


def told_by(parent: subprocess.Popen[str]) -> tuple[int, Path]:
    assert parent.stdout is not None
    pid, directory = parent.stdout.readline().split()
    return int(pid), Path(directory)


def wait_gone(pid: int, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while alive(pid) or directory.exists():
        assert time.monotonic() < deadline, "the engine or its directory is still there"
        time.sleep(0.01)


def test_the_life_of_a_process(model: str, directories: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    stages: list[str] = []
    client = SocketClient({"model": model, **OPTIONS}, progress=stages.append)

    async def run() -> None:
        with caplog.at_level(logging.INFO, "radixserve"):
            await asyncio.wait_for(client.start(), PATIENCE)
        assert client.pid is not None
        [directory] = directories
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        command = Path(f"/proc/{client.pid}/cmdline").read_bytes()
        assert b"radixserve.engine.process" in command and os.fsencode(model) not in command
        assert stages[0].startswith("looking for") and any("100 %" in stage for stage in stages)
        os.kill(client.pid, signal.SIGINT)
        stream = client.generate([job("a", sampling=ENDLESS)])
        await anext(stream)
        os.kill(client.pid, signal.SIGTERM)
        with pytest.raises(EngineClosed, match="SIGTERM"):
            async for _ in stream:
                pass
        assert "SIGTERM" in await client.wait_failed()
        await client.close()
        assert not directory.exists() and not alive(client.pid)

    asyncio.run(run())
    # What the engine logs comes out of the parent's logging, under the name it was logged with.
    assert ("radixserve.runtime.runner_choice", logging.INFO) in {
        (name, level) for name, level, _ in caplog.record_tuples
    }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "/no/such/model.gguf"}, "there is no such file or directory"),
        ({"block_size": 0}, "block_size: must be between 1 and 1024, not 0"),
        ({"policy": "none"}, "policy: must be one of"),
    ],
)
def test_why_it_does_not_start(options: dict[str, object], reason: str, directories: list[Path]) -> None:
    async def run() -> None:
        client = SocketClient(options)
        with pytest.raises(EngineClosed, match=reason):
            await asyncio.wait_for(client.start(), PATIENCE)
        assert client.failure is not None and reason in client.failure
        await client.close()
        assert client.pid is not None and not alive(client.pid)

    asyncio.run(run())
    assert not directories[0].exists()


def test_a_bug_in_starting_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = SocketClient({"cls": "an option that no check has foreseen"})
        with pytest.raises(EngineClosed, match="TypeError"):
            await asyncio.wait_for(client.start(), PATIENCE)
        await client.close()

    asyncio.run(run())
    [record] = [record for record in caplog.records if record.getMessage() == "the engine cannot start"]
    assert record.exc_text is not None and "Traceback" in record.exc_text


def test_a_group_that_is_ended_leaves_nothing(model: str) -> None:
    """A terminal or `timeout` ends parent and engine at once, so neither can rely on the other to tidy up."""
    parent = start_parent(model, process_group=0)
    pid, directory = told_by(parent)
    os.killpg(parent.pid, signal.SIGTERM)
    parent.communicate()
    wait_gone(pid, directory)


def test_a_start_that_is_given_up_leaves_nothing(model: str, directories: list[Path]) -> None:
    async def run() -> None:
        client = SocketClient({"model": model, **OPTIONS})
        starting = asyncio.ensure_future(client.start())
        while client.pid is None:
            await asyncio.sleep(0.001)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not alive(client.pid)

    asyncio.run(run())
    assert not directories[0].exists()


def test_the_engine_ends_with_its_parent(model: str) -> None:
    parent = start_parent(model)
    pid, directory = told_by(parent)
    assert alive(pid) and directory.exists()
    parent.kill()
    parent.communicate()
    wait_gone(pid, directory)


def test_a_short_prompt_does_not_wait_for_long_ones(model: str) -> None:
    """Two prompts of 6,000 tokens are twelve steps each at 512 tokens a step; a token of another request takes at most two."""
    long, one = (
        SamplingParams(temperature=0, max_tokens=4),
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    )

    async def run() -> None:
        client = SocketClient({"model": model, **OPTIONS})
        await client.start()
        streams = [client.generate([job(f"long-{fill}", bytes([fill]) * 6000, long)]) for fill in (1, 2)]
        reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
        while (await client.stats())["steps"]["count"] < 2:
            await asyncio.sleep(0)
        [output] = [chunk.output for chunk in await gather(client, job("one", b"a", one)) if chunk.output is not None]
        steps = (await client.stats())["steps"]["count"]
        assert output.timings.steps_waited <= 2 and len(output.token_ids) == 1
        assert not any(task.done() for task in reading), f"the long prompts were done after {steps} steps"
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await client.close()

    asyncio.run(run())


def test_the_last_words_of_a_process_are_told() -> None:
    assert child_process.describe_exit(-9, "") == "the engine process was killed by SIGKILL"
    assert child_process.describe_exit(3, "MemoryError") == "the engine process exited with code 3: MemoryError"
    assert child_process.describe_exit(-200, "") == "the engine process was killed by signal 200"


def test_a_long_temporary_directory_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    directory = child_process.make_directory()
    try:
        assert len(child_process.addresses(directory)[0]) < 107
    finally:
        directory.rmdir()
    assert not list(long.iterdir())


def test_the_fake_can_be_told_everything() -> None:
    """What the server's tests rely on beyond the contract that all clients keep."""

    async def run() -> None:
        gate = asyncio.Event()
        refusal = EngineClosed("no")
        scripts = {
            "gated": Script(("a", "b"), gate=gate),
            "failing": Script(("a",), error="it broke"),
            "refused": Script(refusal=refusal),
            "stopped": Script(("ab",), stop_reason="c"),
        }
        client = FakeClient(lambda job: scripts[job.rid])
        await client.start()
        reading = asyncio.ensure_future(gather(client, job("gated")))
        await asyncio.sleep(0.01)
        assert client.running == ["gated"] and not reading.done()
        gate.set()
        assert "".join(chunk.text for chunk in await reading) == "ab"
        [*_, last] = await gather(client, job("failing"))
        assert last.output is not None and last.output.error == "it broke" and last.finish_reason == "error"
        with pytest.raises(EngineClosed, match="no"):
            await gather(client, job("refused"))
        [*_, last] = await gather(client, job("stopped"))
        assert last.output is not None and last.output.stop_reason == "c"
        assert [item.rid for item in client.jobs] == ["gated", "failing", "stopped"]
        failing = FakeClient(start_failure="no memory")
        with pytest.raises(EngineClosed, match="no memory"):
            await failing.start()

    asyncio.run(run())
