from __future__ import annotations

import asyncio
import dataclasses

import pytest

from radixserve.bench.character import CHARACTER_SCHEMA
from radixserve.bench.measures import Run, measure, medians, percentile
from radixserve.bench.prose import Prose
from radixserve.bench.servers import Server, discover
from radixserve.bench.session import Answer, Session, complete, play
from radixserve.bench.workloads import LONG, Call, OutputOf, Scale, Text, Workload, build_workload
from radixserve.errors import ConfigError
from tests.bench.stub_server import StubServer

SMALL = Scale(requests=20, tokens=3, prompts=0.05)


def session(workload: Workload, stub: StubServer, prose: Prose | None = None) -> Session:
    async def run() -> Session:
        async with stub.serving():
            return await play(workload, await discover("stub", stub.url), prose=prose)

    return asyncio.run(run())


def test_prompts_are_made_of_texts_and_of_what_came_before() -> None:
    first = Call((Text("one", 1),), 2)
    second = Call((*first.parts, OutputOf(0), Text(" two", 1)), 1)
    stub = StubServer()
    played = session(Workload("X", "x", (first, second), 4), stub)
    assert [body["prompt"] for body in stub.bodies] == ["one", "one 0-0 0-1 two"]
    assert [(answer.text, answer.completion_tokens, answer.cached_tokens) for answer in played.answers] == [
        (" 0-0 0-1", 2, 3),
        (" 1-0", 1, 3),
    ]
    assert [len(answer.pieces) for answer in played.answers] == [2, 1], "the end of a stream is no piece"


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W6", "W8"])
def test_workloads_run_to_their_end(prose: Prose, name: str) -> None:
    stub, workload = StubServer(), build_workload(name, prose, 1, SMALL)
    answers = session(workload, stub).answers
    assert [answer.error for answer in answers] == [None] * len(workload.calls)
    assert 1 <= stub.most_running <= workload.concurrency
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["stream"] for body in stub.bodies)


def test_token_ids_are_those_of_the_whole_prompt(prose: Prose) -> None:
    stub = StubServer()
    session(Workload("X", "x", (Call((Text(" big", 1), Text(" boy", 1)), 1),), 1), stub, prose)
    assert stub.bodies[0]["prompt"] == prose.ids(" big boy")


def test_the_long_prompt_is_sent_when_all_streams_have_come_so_far() -> None:
    streams = [Call((Text(f"s{index}", 1),), 6) for index in range(3)]
    late = Call((Text("late", 1),), 1, LONG, after=tuple((index, 4) for index in range(3)))
    stub = StubServer()
    played = session(Workload("W8", "x", (*streams, late), 4), stub)
    long = played.answers[-1]
    assert all(long.sent >= answer.pieces[3] for answer in played.answers[:-1])
    assert stub.bodies[-1]["prompt"] == "late"


def test_a_failure_is_counted_and_holds_nobody_up() -> None:
    first = Call((Text("one", 1),), 2)
    rest = (Call((*first.parts, OutputOf(0)), 1), Call((Text("t", 1),), 1, after=((0, 2),)))
    workload = Workload("X", "x", (first, *rest), 2)
    played = session(workload, StubServer(fail_at=0))
    run = measure(workload, played)
    assert run.errors == 1 and run.error is not None and "refused" in run.error
    assert run.figures["output_tokens"] == 2


@pytest.mark.parametrize(
    ("owner", "field"), [("llamacpp", "json_schema"), ("vllm", "response_format"), ("", "response_format")]
)
def test_each_server_gets_a_schema_as_it_takes_it(owner: str, field: str) -> None:
    stub = StubServer(owner=owner)
    session(Workload("X", "x", (Call((Text("a", 1),), 1, schema=CHARACTER_SCHEMA),), 1), stub)
    (body,) = stub.bodies
    schema = body[field] if field == "json_schema" else body[field]["json_schema"]["schema"]
    assert schema == CHARACTER_SCHEMA
    assert "ignore_eos" not in body
    assert body["model"] == ("stub-model" if owner else "default")


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixserve.bench.session.TIMEOUT_S", 0.05)

    async def run() -> Answer:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await complete(Server("silent", url, "m"), Call((), 1), "x")

    assert asyncio.run(run()).error == "no answer within 0.05 s"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1", "127.0.0.1:80"])
def test_a_server_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        asyncio.run(discover("x", url))


def test_an_address_may_end_as_clients_write_it() -> None:
    async def run() -> Server:
        async with (stub := StubServer()).serving():
            found = await discover("x", f"{stub.url}/v1/", model="mine", native=True)
            return dataclasses.replace(found, url=found.url.replace(stub.url, "URL"))

    assert asyncio.run(run()) == Server("x", "URL", "mine", "openai", "native")


def answer(sent: float, *pieces: float, error: str | None = None) -> Answer:
    return Answer(sent=sent, pieces=list(pieces), done=pieces[-1], completion_tokens=len(pieces), error=error)


def test_figures_by_hand() -> None:
    workload = Workload("X", "x", (Call((), 3), Call((), 2)), 2)
    answers = [answer(0.0, 1.0, 1.5, 2.5), answer(1.0, 4.0, 4.25)]
    figures = measure(workload, Session(5.0, answers)).figures
    assert figures["output_tokens_per_s"] == 1.0
    assert figures["ttft_p50_ms"] == 2000.0
    assert figures["itl_p50_ms"] == 500.0
    assert figures["itl_p99_ms"] == pytest.approx(500 + 0.98 * 500)
    assert "decode_tokens_per_s" not in figures and "valid" not in figures and "long_ttft_s" not in figures


def test_the_speed_of_a_single_stream() -> None:
    workload = Workload("W6", "x", (Call((), 3), Call((), 3), Call((), 3)), 1)
    answers = [answer(0.0, 1.0, 1.5, 2.0), answer(2.0, 3.0, 3.25, 3.5), answer(4.0, 5.0, 9.0, 13.0)]
    assert measure(workload, Session(14.0, answers)).figures["decode_tokens_per_s"] == 2.0


def test_gaps_beside_the_long_prompt_are_those_that_touch_its_time() -> None:
    workload = Workload("W8", "x", (Call((), 4, "streams"), Call((), 1, LONG)), 2)
    # Of the gaps 1, 2, 4 and 1 seconds, the second and third touch the time from 2.5 to 6.
    answers = [answer(0.0, 1.0, 2.0, 4.0, 8.0, 9.0), answer(2.5, 6.0, 6.5)]
    figures = measure(workload, Session(9.0, answers)).figures
    assert (figures["long_ttft_s"], figures["beside_gaps"]) == (3.5, 2.0)
    assert figures["beside_itl_p50_ms"] == 3000.0
    assert figures["before_itl_p50_ms"] == 1000.0


def test_medians_are_of_the_runs_that_have_the_figure() -> None:
    runs = [Run({"a": 1.0, "b": 5.0}, 0), Run({"a": 3.0}, 0), Run({"a": 10.0}, 0)]
    assert medians(runs) == {"a": 3.0, "b": 5.0}


def test_percentiles() -> None:
    assert [percentile([4.0, 1.0, 2.0, 3.0], share) for share in (0, 0.5, 1)] == [1.0, 2.5, 4.0]
    assert percentile([], 0.5) != percentile([], 0.5), "nothing has no percentile"
