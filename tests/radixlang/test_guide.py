"""Every snippet of the guides runs, in its order, on the embedded model."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import radixlang as rl
from radixserve import Engine
from radixserve.config import EngineConfig
from radixserve.model.loader import LoadedModel
from tests.radixlang.backends.live import serve

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8000"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def embedded(smollm2: LoadedModel) -> Iterator[tuple[Engine, str]]:
    """An engine of the embedded model, and the URL of a server of it."""
    engine = Engine.from_model(smollm2, kv_memory_mb=256)
    with serve(engine) as url:
        yield engine, url


@pytest.fixture
def url(embedded: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server's; all that the guides make of an engine is the one that is there."""
    engine, served = embedded

    class Runtime(rl.EngineBackend):
        def __init__(self, model: str, **options: Any) -> None:
            EngineConfig.from_options(model=model, **options)
            super().__init__(engine)

    monkeypatch.setattr(rl, "Runtime", Runtime, raising=False)
    yield served
    rl.set_default_backend(None)


def run(document: Path, snippets: list[re.Match[str]], url: str) -> str:
    """What they print, one after the other as one module."""
    module = ModuleType("guide")
    text = document.read_text()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for their annotations
        for snippet in snippets:
            # Lines of errors are those of the document.
            line = text.count("\n", 0, snippet.start(1))
            exec(compile("\n" * line + snippet[1].replace(URL, url), str(document), "exec"), vars(module))
    return printed.getvalue()


@pytest.mark.parametrize("name", ["radixlang.md", "porting.md"])
def test_the_snippets_run(name: str, url: str) -> None:
    document = ROOT / "docs" / name
    snippets = list(SNIPPET.finditer(document.read_text()))
    assert len(snippets) == document.read_text().count("```python") > 0
    assert run(document, snippets, url)


def test_the_program_of_the_readme_runs(url: str) -> None:
    document = ROOT / "README.md"
    snippets = [match for match in SNIPPET.finditer(document.read_text()) if "import radixlang" in match[1]]
    assert len(snippets) == 1
    assert len(run(document, snippets, url).splitlines()) == 2
