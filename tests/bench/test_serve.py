from __future__ import annotations

import asyncio
import contextlib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest

from radixserve.bench import serve
from radixserve.bench.machine import Limits
from radixserve.bench.options import ServeOptions
from radixserve.bench.results import write_result
from radixserve.bench.serve import ServeReport, bench_serve, headline_of, slowness
from radixserve.bench.serve_tables import serve_chart, serve_text
from radixserve.bench.servers import own_server
from radixserve.bench.workloads import NAMES, Scale
from radixserve.errors import ConfigError, EngineClosed
from tests.bench.stub_server import StubServer
from tests.model.gguf_files import write_model
from tests.quantized_model import SIZES
from tests.tiny_decoder import tiny_decoder

TRIED = Scale(requests=2, tokens=3, prompts=0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a tokenizer and shapes: no weight of it is ever read here."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    return str(write_model(path, tiny_decoder("llama", **SIZES), kind=kind))


def run(model: str, limits: Limits | None, *stubs: StubServer, **options: Any) -> tuple[ServeReport, list[str]]:
    notes: list[str] = []

    async def bench() -> ServeReport:
        async with contextlib.AsyncExitStack() as stack:
            for stub in stubs:
                await stack.enter_async_context(stub.serving())
            peers = {f"peer{index}": stub.url for index, stub in enumerate(stubs[1:])}
            given = {"url": stubs[0].url, "peers": peers, "model": model, "scale": TRIED, "rounds": 2, **options}
            return await bench_serve(ServeOptions(**given), limits, notes.append)

    return asyncio.run(bench()), notes


def test_all_workloads_on_two_servers_in_turns(model: str, limits: Limits, tmp_path: Path) -> None:
    report, notes = run(model, limits, StubServer(), StubServer(owner="llamacpp"), native=frozenset({"peer0"}))
    assert [workload.name for workload in report.workloads] == list(NAMES)
    assert [server.precision for server in report.servers] == ["bf16", "native"]
    assert report.errors == 0
    turns = [note.rsplit(", ", 1)[1] for note in notes if ", W1 " in note]
    assert turns == ["radixserve", "peer0", "peer0", "radixserve"], "who is first changes from round to round"
    for workload in report.workloads:
        assert set(workload.ideal) == {"bf16", "native"}
        assert workload.ideal["native"].floor.seconds < workload.ideal["bf16"].floor.seconds
        for result in workload.servers:
            assert len(result.runs) == 2
            assert workload.headline in result.median
            assert result.ratio is not None and result.ratio > 0
            assert result.median["server_peak_mb"] > 0, "the stub is in this process, which is seen"
    text = serve_text(report)
    for name in NAMES:
        assert f"| {name} " in text
    assert "radixserve beside the others" in text and "times as good as peer0" in text
    ET.fromstring(serve_chart(report))
    write_result(report, tmp_path / "deep" / "result.json")
    assert msgspec.json.decode((tmp_path / "deep" / "result.json").read_bytes())["kind"] == "serve"


def test_each_round_has_prompts_that_the_one_before_had_not(model: str) -> None:
    stub = StubServer()
    run(model, None, stub, workloads=("W5",), token_ids=True)
    prompts = [tuple(body["prompt"]) for body in stub.bodies if body["max_tokens"] == TRIED.output(64)]
    measured = [prompt for prompt in prompts if len(prompt) == TRIED.length(512)]
    assert len(measured) == len(set(measured)) == 4


def test_without_limits_there_are_no_floors(model: str) -> None:
    report, _ = run(model, None, StubServer(), workloads=("W1", "W6"), rounds=1)
    for workload in report.workloads:
        assert not workload.ideal and workload.servers[0].ratio is None
    assert "no floors" in serve_text(report)
    assert "output tokens a second" in serve_chart(report)


def test_failed_requests_are_shown_and_have_no_ratio(model: str, limits: Limits) -> None:
    # The first requests warm up.
    report, _ = run(model, limits, StubServer(fail_at=4), workloads=("W1",), rounds=1)
    (result,) = report.workloads[0].servers
    assert (report.errors, result.ratio) == (1, None)
    assert "refused" in serve_text(report)


def test_our_own_server_is_started_where_there_is_no_url(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    stub = StubServer()

    @contextlib.asynccontextmanager
    async def own_server(options: dict[str, Any]) -> Any:
        started.append(options)
        async with stub.serving():
            yield stub.url

    monkeypatch.setattr(serve, "own_server", own_server)
    options = ServeOptions(model=model, engine={"threads": 1}, workloads=("W6",), rounds=1, scale=TRIED)
    asyncio.run(bench_serve(options, None, lambda text: None))
    assert started == [{"model": model, "threads": 1}]
    assert stub.bodies


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"workloads": ("W9",)}, "workload"),
        ({"rounds": 0}, "rounds"),
        ({"peers": {"radixserve": "http://h:1"}}, "peer"),
        ({"native": frozenset({"x"})}, "native"),
        ({"url": "http://h:1", "engine": {"threads": 1}}, "threads"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServeOptions(**options).validate()
    assert refused.value.field == field


def test_more_is_better_or_less_is() -> None:
    assert slowness("output_tokens_per_s", 50.0, 100.0) == 2.0
    assert slowness("long_ttft_s", 6.0, 3.0) == 2.0
    assert headline_of("W8") == "beside_itl_p99_ms"


def test_a_server_that_does_not_start_says_why() -> None:
    async def start() -> None:
        async with own_server({"block_size": 0}):
            raise AssertionError("it started")

    with pytest.raises(EngineClosed, match="block_size"):
        asyncio.run(start())
