from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixlang.recording import RecordedCall, RecordedSample, Recording
from tests.cli.conftest import CommandLine

Make = Callable[..., CommandLine]

PROGRAM = """
from radixlang import function, gen

@function
def program(s, question):
    s += "Answer in a word. " * 8 + question + gen("answer", max_tokens=4, heal=False)

inputs = [{"question": f"What is {number}?"} for number in range(3)]
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(json.dumps({"prompt": "One shared beginning. " * 9 + str(n), "max_tokens": 3}) for n in range(3))
    )
    return path


def test_a_program_is_planned_and_written_to_files(command_line: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(PROGRAM)
    files = {kind: tmp_path / "out" / f"plan.{kind}" for kind in ("json", "html", "svg")}
    flags = [flag for kind, file in files.items() for flag in (f"--{kind}", str(file))]
    ran = command_line()("plan", str(path), *flags, "--num-blocks", "100", "--concurrency", "1")
    assert (ran.code, ran.exception) == (0, None)
    assert "tokens sent" in ran.out
    found = json.loads(files["json"].read_text())
    assert (found["calls"], found["blocks"]["pool"], found["unknown"]) == (3, 100, 3)
    assert found["report"]["variables"][0]["name"] == "answer"
    assert files["svg"].read_text().startswith("<svg")
    assert files["html"].read_text().startswith("<!doctype html>")


def test_a_log_is_planned(command_line: Make, log: Path) -> None:
    ran = command_line()("plan", str(log), "--pools", "40,80", "--step-cost", "0.01,0.0001,0")
    assert (ran.code, ran.exception) == (0, None)
    assert "Other pools" in ran.out
    assert "time of steps" in ran.out
    assert ran.engine is None


def test_a_recording_gives_the_answers(command_line: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(PROGRAM + 'inputs = [{"question": "Q"}]\n')
    from radixserve.model.text import load_text_model

    prompt = load_text_model("smollm2").tokenizer.encode("Answer in a word. " * 8 + "Q")
    options = {"max_tokens": 4, "temperature": 1.0, "n": 1}
    Recording([RecordedCall(prompt, options, [RecordedSample([40, 41, 2])])]).save(tmp_path / "run.json")
    out = tmp_path / "plan.json"
    ran = command_line()("plan", str(path), "--recording", str(tmp_path / "run.json"), "--json", str(out))
    assert (ran.code, ran.exception) == (0, None)
    found = json.loads(out.read_text())
    assert (found["unknown"], found["tokens"]["generated"]) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "file: missing.py is no file"),
        (["thing.txt"], "file: thing.txt is neither a .py file nor a log"),
        (["missing.jsonl"], "log: missing.jsonl cannot be read"),
        (["x.jsonl", "--program", "p"], "program: is for programs, not for logs"),
        (["x.jsonl", "--recording", "r"], "recording: is for programs, not for logs"),
        (["x.jsonl", "--pools", "a"], "pools: must be numbers of blocks, separated by commas"),
        (["x.jsonl", "--step-cost", "1"], "step_cost: must be FIXED,TOKEN,PAIR"),
        (["x.jsonl", "--output-tokens", "0"], "output_tokens: must be a whole number of at least 1"),
        (["x.jsonl", "--block-size", "0"], "block_size: must be between 1 and 1024"),
    ],
)
def test_what_is_wrong_is_named(command_line: Make, arguments: list[str], message: str) -> None:
    ran = command_line()("plan", *arguments)
    assert ran.code == 2
    assert message in " ".join(ran.err.split())


def test_a_program_that_fails_is_told_by_its_line(command_line: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(PROGRAM.replace("max_tokens=4", "max_tokens=99999"))
    ran = command_line()("plan", str(path))
    assert ran.code == 2
    assert "the program failed" in ran.err
    assert "some.py:6 in program" in ran.err


def test_no_torch_is_loaded(log: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom radixserve.planner.planning import plan_log\n"
        f"plan_log(Path({str(log)!r}))\n"
        "sys.exit(' '.join(name for name in ('torch', 'transformers') if name in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.strip()) == (0, "")
