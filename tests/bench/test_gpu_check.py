"""The script for the first GPU that comes by: its order, its limits, what becomes of a check that fails, and the whole of it on a CPU."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import gpu_check, gpu_modules, gpu_scene
from bench.gpu_bed import Bed
from bench.gpu_check import MARK, NOT_RUN, TOTAL_SECONDS, Outcome, Worker, all_checks, exit_code, main, watch
from bench.gpu_parity import MORE_PARITY, PARITY
from radixserve.attention.base import AttentionBackend
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.registry import create_attention

HERE = Bed(torch.device("cpu"), small=True)


def told(name: str, status: str = "passed", seconds: float = 1.0) -> list[tuple[float, dict[str, Any]]]:
    """What a worker tells of one check that takes so long."""
    outcome = {"name": name, "status": status, "seconds": seconds, "data": {}, "reason": ""}
    return [(0.0, {"begins": name}), (seconds, {"outcome": outcome})]


class Scripted:
    """Workers that tell what they are told to, in time that only passes here. An empty script dies, None hangs."""

    def __init__(self, *scripts: list[tuple[float, dict[str, Any]]] | None) -> None:
        self.scripts = list(scripts)
        self.started: list[list[str]] = []
        self.ended = 0
        self.now = 0.0

    def start(self, names: Sequence[str]) -> Any:
        self.started.append(list(names))
        self.script = self.scripts.pop(0)
        return self

    def next(self, seconds: float) -> dict[str, Any] | None:
        if not self.script:
            if self.script is None:
                self.now += seconds
                raise queue.Empty
            return None
        after, message = self.script[0]
        if after > seconds:
            self.script = None
            return self.next(seconds)
        self.now += after
        self.script.pop(0)
        return message

    def end(self) -> str:
        self.ended += 1
        return "exit code -9"


def outcomes(workers: Scripted, names: str, limit: float = 10, budget: float = 100) -> list[Outcome]:
    seconds = dict.fromkeys(names, limit)
    return list(watch(names, seconds, workers.start, budget, clock=lambda: workers.now))


def test_four_minutes_prove_parity_and_eight_are_all() -> None:
    checks = all_checks()
    names = list(checks)
    assert names[: 1 + len(PARITY)] == ["modules", *PARITY]
    assert sum(checks[name].seconds for name in names[: 1 + len(PARITY)]) <= 240
    assert {"attention", "graphs", "plans_back_to_back", "cascades", "overlap"} < set(PARITY)
    assert names[-len(MORE_PARITY) :] == list(MORE_PARITY)
    assert TOTAL_SECONDS < 480


def test_all_in_one_process_where_nothing_fails() -> None:
    workers = Scripted([*told("a"), *told("b", "not here"), *told("c", "not run")])
    assert [found.status for found in outcomes(workers, "abc")] == ["passed", "not here", "not run"]
    assert workers.started == [["a", "b", "c"]] and workers.ended == 1


def test_what_fails_leaves_the_others_a_fresh_process() -> None:
    workers = Scripted([*told("a"), *told("b", "failed"), *told("c")], told("c"))
    assert [found.status for found in outcomes(workers, "abc")] == ["passed", "failed", "passed"]
    assert workers.started == [["a", "b", "c"], ["c"]]


def test_what_hangs_is_ended() -> None:
    workers = Scripted([*told("a"), *told("b", seconds=11)], told("c"))
    found = outcomes(workers, "abc")
    assert [each.status for each in found] == ["passed", "failed", "passed"]
    assert found[1].reason == "took 10 seconds" and workers.started[1] == ["c"]


def test_what_ends_its_process_is_named() -> None:
    workers = Scripted([*told("a"), (0.0, {"begins": "b"})], None, told("c"))
    found = outcomes(workers, "abc")
    assert [each.status for each in found] == ["passed", "failed", "failed"]
    assert found[1].reason == "its process ended: exit code -9"
    assert found[2].reason == "did not begin in 60 seconds"


def test_the_budget_is_kept() -> None:
    workers = Scripted([*told("a", seconds=8), *told("b", seconds=8), *told("c")])
    found = outcomes(workers, "abcd", budget=15)
    assert [each.status for each in found] == ["passed", "failed", NOT_RUN, NOT_RUN]
    assert found[1].reason == "took 7 seconds" and workers.now == 15
    assert found[2].reason == "no time was left"


def test_the_exit_code_says_whether_all_was_shown() -> None:
    assert exit_code([Outcome("a", "passed"), Outcome("b", "not here")]) == 0
    for status in ("failed", "not run"):
        assert exit_code([Outcome("a", "passed"), Outcome("b", status)]) == 1


def test_a_real_process_is_heard_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    code = f"print('noise'); print('{MARK}{{\"begins\": \"a\"}}', flush=True); import time; time.sleep(60)"
    worker = Worker([sys.executable, "-c", code])
    assert worker.next(30) == {"begins": "a"}
    with pytest.raises(queue.Empty):
        worker.next(0.01)
    assert worker.end() == "exit code -9"
    assert worker.next(30) is None
    assert "noise" in capsys.readouterr().err


def test_the_whole_of_it_on_a_cpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    assert main(["--device", "cpu", "--small", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    found = {check["name"]: check for check in report["checks"]}
    assert list(found) == list(all_checks())
    only_there = {"modules", "graphs", "cascades", "cascade", "deterministic_cost", "soft_cap",
                  "half_precision", "float8_store"}  # fmt: skip
    assert {name: check["status"] for name, check in found.items()} == {
        name: "not here" if name in only_there else "passed" for name in found
    }
    assert 0 < found["plans_back_to_back"]["data"]["largest_error"] < 2e-5
    steps = found["decode"]["data"]["steps"]
    assert [step["rows"] for step in steps] == [1, 3] and all(0 < step["of_roofline"] < 1 for step in steps)
    assert report["machine"]["small"] and report["machine"]["device"] == "cpu"
    assert "of the roofline" in capfd.readouterr().out


@pytest.mark.parametrize("check", ["plans_back_to_back", "deterministic_attention"])
def test_a_wrong_backend_is_found(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create = create_attention

    def wrong(*arguments: Any, **options: Any) -> AttentionBackend:
        backend: Any = create(*arguments, **options)
        forward = backend.forward
        # As far off as a kernel that forgets one key among hundreds.
        backend.forward = lambda *inputs: forward(*inputs) * (1 + 2e-3)
        return backend  # type: ignore[no-any-return]

    monkeypatch.setattr(gpu_scene, "create_attention", wrong)
    with torch.inference_mode(), pytest.raises(AssertionError, match="largest error"):
        PARITY[check][1](HERE)


def test_what_was_compiled_is_told() -> None:
    found = {"compiled_here_s": {"norm": 12.4}, "states": {"page": "prebuilt", "norm": "compiled", "fa3": None}}
    assert gpu_modules.told(found) == "modules: compiled here: norm 12 s; prebuilt: page; not there: fa3"
    nothing: dict[str, Any] = {"compiled_here_s": {}, "states": {}}
    assert gpu_modules.told(nothing) == "modules: compiled here: none; prebuilt: none; not there: none"


def test_a_check_whose_module_is_missing_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"fa3_bfloat16_bfloat16_64": None, "fa2_bfloat16_bfloat16_64_window": None}
    monkeypatch.setattr(gpu_modules, "built", lambda names: {name: states[name] for name in names})
    monkeypatch.setattr(gpu_modules, "extend_include_path", lambda: None)
    monkeypatch.setattr(FlashInferAttention, "prefill_backend", "auto")
    gpu_modules.prepare("attention")
    assert FlashInferAttention.prefill_backend == "fa2", "nobody waits for FA3"
    with pytest.raises(gpu_modules.NotBuilt, match="needs fa2_bfloat16_bfloat16_64_window"):
        gpu_modules.prepare("windows")


def test_headers_of_torchs_packages_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cu13" / "include").mkdir(parents=True)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    environment = {"CPATH": "/own"}
    for _ in range(2):
        gpu_modules.extend_include_path(environment)
        assert environment["CPATH"] == f"/own:{tmp_path}/cu13/include"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    empty: dict[str, str] = {}
    gpu_modules.extend_include_path(empty)
    assert empty == {}


def test_a_failed_check_tells_why(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(bed: Bed) -> dict[str, Any]:
        raise AssertionError("largest error 3")

    gpu_check.work(HERE, [gpu_check.Check("a", 1.0, fails)], sys.stdout)
    begins, ends = (json.loads(line.removeprefix(MARK)) for line in capsys.readouterr().out.splitlines())
    assert begins == {"begins": "a"}
    assert ends["outcome"]["status"] == "failed" and ends["outcome"]["reason"] == "AssertionError: largest error 3"
