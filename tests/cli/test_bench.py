from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixserve.bench.options import Finished, FloorOptions, KernelOptions, Note, ServeOptions, StepOptions
from radixserve.bench.workloads import Scale
from radixserve.cli.bench import Benches
from radixserve.cli.main import build_app


@dataclass
class Ran:
    """Remembers what the command line asked for."""

    errors: int = 0
    asked: list[Any] = field(default_factory=list)

    def __call__(self, options: Any, floors: FloorOptions, note: Note) -> Finished:
        self.asked += [options, floors]
        note("at work")
        return Finished({"kind": "fake", "seconds": 1.23456789}, "a table\n", "<svg/>", self.errors)


def command(*arguments: str, errors: int = 0) -> tuple[Any, list[Any]]:
    ran = Ran(errors)
    app = build_app(benches=Benches(ran, ran, ran))
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", *arguments]), ran.asked


def test_serve_without_flags_is_the_whole_thing() -> None:
    result, asked = command("serve")
    assert asked == [ServeOptions(), FloorOptions()]
    assert (result.exit_code, result.stdout) == (0, "a table\n")
    assert "at work" in result.stderr


def test_serve_takes_servers_workloads_and_scale() -> None:
    flags = "--url http://h:1 --name ours --peer vllm=http://h:2 --peer llama=http://h:3?a=b --native llama --workload W1 --workload W8"
    more = "--rounds 5 --prompt-seed 7 --token-ids --requests 2 --tokens 4 --prompts 0.5 --model m.gguf --model-name x"
    _, asked = command("serve", *flags.split(), *more.split())
    assert asked[0] == ServeOptions(
        url="http://h:1",
        name="ours",
        peers={"vllm": "http://h:2", "llama": "http://h:3?a=b"},
        native=frozenset({"llama"}),
        model="m.gguf",
        model_name="x",
        workloads=("W1", "W8"),
        rounds=5,
        seed=7,
        scale=Scale(2, 4, 0.5),
        token_ids=True,
    )


def test_engine_options_go_to_the_server_that_is_started() -> None:
    _, asked = command("serve", "--threads", "1", "--itl-target-ms", "50", "--no-fast-forward")
    assert asked[0].engine == {"threads": 1, "itl_target_ms": 50.0, "fast_forward": False}


def test_step_takes_cases_and_engine_options() -> None:
    _, asked = command(
        "step", "--case", "4@100", "--case", "p5@10", "--steps", "3", "--seed", "9", "--busy", "1", "--no-floors"
    )
    assert asked == [StepOptions({"seed": 9}, ("4@100", "p5@10"), 3, 1), FloorOptions(wanted=False)]
    assert command("step")[1][0] == StepOptions()


def test_kernels_takes_groups(tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    flags = ("--threads", "2", "--repeats", "3", "--most-tokens", "16", "--limits", str(limits))
    _, asked = command("kernels", "linear", "step", *flags)
    assert asked == [KernelOptions(("linear", "step"), 2, 3, 16), FloorOptions(file=limits)]
    assert command("kernels")[1][0] == KernelOptions()


def test_files_are_written(tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "r.json", tmp_path / "other" / "r.svg"
    command("kernels", "--out", str(out), "--plot", str(plot))
    assert json.loads(out.read_text()) == {"kind": "fake", "seconds": 1.23457}
    assert plot.read_text() == "<svg/>"


def test_failed_requests_make_it_fail() -> None:
    result, _ = command("serve", errors=2)
    assert result.exit_code == 1
    assert "2 requests failed" in result.stderr and result.stdout == "a table\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--peer", "http//nothing"], "peer"),
        (["--peer", "=http://h:1"], "peer"),
        (["--peer", "a=http://h:1", "--peer", "a=http://h:2"], "peer"),
        (["--requests", "0"], "requests"),
        (["--tokens", "0"], "tokens"),
        (["--prompts", "0"], "prompts"),
        (["--prompts", "1.5"], "prompts"),
    ],
)
def test_wrong_flags_are_named(arguments: list[str], named: str) -> None:
    result, asked = command("serve", *arguments)
    assert (result.exit_code, asked) == (2, [])
    assert f"error: {named}:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--workload", "W9", "--no-floors"], "workload"),
        (["step", "--case", "many", "--no-floors"], "case"),
        (["step", "--steps", "0", "--no-floors"], "steps"),
        (["step", "--busy", "-1", "--no-floors"], "busy"),
        (["kernels", "none", "--no-floors"], "group"),
        (["kernels", "--repeats", "0", "--no-floors"], "repeats"),
        (["kernels", "--limits", "/nowhere.json"], "limits"),
    ],
)
def test_the_real_ones_refuse_what_is_wrong_before_they_start(arguments: list[str], named: str) -> None:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(build_app(), ["bench", *arguments])
    assert result.exit_code == 2
    assert f"error: {named}:" in result.stderr
