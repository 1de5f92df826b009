"""The programs of examples/: each runs, on a fake model quickly and on the real one, and is what the documents say."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.programs import NAMES, encyclopedia
from examples.programs.dataset import DATA, rows
from examples.programs.skeleton_of_thought import EXAMPLE_POINTS
from radixlang import EngineBackend, FakeBackend, Program, ProgramState, batch_report
from radixserve import Engine
from radixserve.model.loader import LoadedModel

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "programs"
# What a fake model has to say where a pattern asks for more than a number.
SCRIPTS: dict[str, Any] = {
    "react": {r"Action \d:": "Search[Alda Renwick] Finish[Dunmere]"},
    "skeleton_of_thought": EXAMPLE_POINTS,
}
# Calls of one run, where they do not depend on what the model says.
CALLS = {
    "multiple_choice": 1,
    "completion": 1,
    "generative_agents": 3 * 3 + 1,
    "tree_of_thought": 3 + 3 * 2 * 2 + 1,
    "skeleton_of_thought": 1 + 4 + 1,
    "judge": 5 + 1,
    "json_decoding": 1,
    "chat_short": 4,
    "chat_long": 4,
    "rag": 2 + 2,
}


def module(name: str) -> Any:
    return importlib.import_module(f"examples.programs.{name}")


def run(name: str, backend: Any, count: int, **options: Any) -> list[ProgramState]:
    chosen = module(name)
    states: list[ProgramState] = chosen.program.run_batch(
        chosen.inputs(count), backend=backend, temperature=0, **options
    )
    return states


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_a_fake_model(name: str) -> None:
    backend = FakeBackend(SCRIPTS.get(name))
    states = run(name, backend, 2)
    assert len(states) == 2
    for state in states:
        assert module(name).answer(state).strip()
    # What came first is re-used by all that begins with it.
    report = batch_report(states)
    assert report.total.calls == 2 * CALLS.get(name, report.total.calls / 2)
    assert report.share == pytest.approx(1, abs=0.02)
    assert not backend.held
    assert backend.active == 0


@pytest.mark.parametrize("name", NAMES)
def test_hints_change_nothing_but_the_way(name: str) -> None:
    with_hints, without = (
        [state.text() for state in run(name, FakeBackend(SCRIPTS.get(name)), 3, hints=hints)] for hints in (True, False)
    )
    assert with_hints == without


@pytest.mark.parametrize("name", ["generative_agents", "tree_of_thought", "skeleton_of_thought", "judge"])
def test_branches_run_together(name: str) -> None:
    backend = FakeBackend(SCRIPTS.get(name), token_s=0.001)
    run(name, backend, 1)
    assert backend.peak >= 3


def test_the_agent_searches_and_finishes() -> None:
    backend = FakeBackend({r"Action 2:[^\n]*$": "Finish[Dunmere]", r"Action 1:[^\n]*$": "Search[Alda Renwick]"})
    (state,) = run("react", backend, 1)
    assert module("react").answer(state) == "Search[Alda Renwick] -> Finish[Dunmere]"
    assert "Observation 1: Alda Renwick (1841-1916) was an engineer" in state.text()


def test_the_agent_has_to_finish_in_the_end_and_sees_no_article_twice() -> None:
    (state,) = run("react", FakeBackend(SCRIPTS["react"]), 1)
    assert module("react").answer(state).endswith(" -> Finish[Dunmere]")
    told = re.findall(r"Observation \d: (.*)", state.text())[-3:]
    assert len(set(told)) == 3


def test_the_tree_answers_with_the_best_solution() -> None:
    def likelihood(before: str, token: str) -> float:
        """A solution that begins with the third word is rated 5, all others 1."""
        best = "assistant\n cedar" in before
        return 0.0 if token.strip() == ("5" if best else "1") else -9.0

    def script(prompt: Any) -> str:
        seed = prompt.call.sampling.seed
        return " amber" if seed is None else f" {('ember', 'cedar', 'delta')[seed]} seed {seed}"

    (state,) = run("tree_of_thought", FakeBackend(script, likelihood=likelihood), 1)
    assert "assistant\n cedar seed 1<|im_end|>" in state.text()


@pytest.mark.parametrize("name", NAMES)
def test_modules_have_one_shape(name: str) -> None:
    chosen = module(name)
    assert isinstance(chosen.program, Program)
    assert callable(chosen.main)
    assert len((PROGRAMS / f"{name}.py").read_text().splitlines()) < 150
    every = chosen.inputs()
    assert len(every) >= 4
    assert chosen.inputs(2) == every[:2]


@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_version_takes_the_same_arguments(name: str) -> None:
    tree = ast.parse((PROGRAMS / "openai_sdk" / f"{name}.py").read_text())
    (written,) = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and node.name == "program"]
    names = [argument.arg for argument in written.args.args]
    assert names == ["client", *module(name).inputs(1)[0]]


def test_neighbours_in_a_batch_of_multiple_choice_have_other_subjects() -> None:
    subjects = [item["subject"] for item in module("multiple_choice").inputs()]
    assert all(one != other for one, other in itertools.pairwise(subjects))


def test_inputs_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"turns": ["Hello?", "And?"], "category": "none"}) + "\n")
    assert module("chat_short").inputs(path=path) == [{"turns": ["Hello?", "And?"]}]


def test_documents_name_programs_and_data() -> None:
    named = re.findall(r"`(\w+)`", (ROOT / "examples" / "README.md").read_text())
    assert set(NAMES) <= set(named)
    described = set(re.findall(r"`(\w+\.\w+)`", (DATA / "README.md").read_text()))
    assert described == {path.name for path in DATA.iterdir() if path.suffix != ".md"}


def test_questions_name_articles_that_exist() -> None:
    titles = {article.title for article in encyclopedia.articles()}
    assert {title for row in rows("questions") for title in row["titles"]} <= titles


def test_search_finds_titles_and_words() -> None:
    assert [article.title for article in encyclopedia.search("Alda Renwick")] == ["Alda Renwick"]
    assert encyclopedia.search("who painted herring fleet storm")[0].title == "The Grey Harbour"
    first, second = encyclopedia.search("comet", 2)
    assert encyclopedia.search("comet", besides=[first]) == [second]


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    monkeypatch.setattr("examples.programs.command.Runtime", lambda model: FakeBackend())
    monkeypatch.setattr(sys, "argv", ["chat_short", "--count", "3", "--show", "2", "--json", str(account)])
    module("chat_short").main()
    shown = capsys.readouterr().out
    assert re.match(r"1\. .*\n2\. .*\n\n3 programs, 12 calls", shown)
    assert json.loads(account.read_text())["total"]["calls"] == 12


@pytest.fixture(scope="module")
def engine(smollm2: LoadedModel) -> Iterator[Engine]:
    with Engine.from_model(smollm2, kv_memory_mb=256) as engine:
        yield engine


def on_the_model(name: str, engine: Engine, count: int) -> None:
    backend = EngineBackend(engine)
    engine.flush_cache()
    states = run(name, backend, count)
    share = batch_report(states).share
    assert share is not None
    assert share >= 0.96
    engine.flush_cache()
    assert [state.text() for state in run(name, backend, count, hints=False)] == [state.text() for state in states]


def test_one_runs_on_the_embedded_model(engine: Engine) -> None:
    on_the_model("json_decoding", engine, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_runs_on_the_embedded_model(name: str, engine: Engine) -> None:
    on_the_model(name, engine, 3)
