"""Imports go one way, and some parts never load torch."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVES = {"errors", "constraints", "messages", "config"}
# How a model reads and writes text, which a server needs as well as an engine.
TEXT = {"model.text", "model.tokenizer", "model.chat_template"}

# Part of radixserve -> parts (or single modules) it may import besides itself, each spelled out.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "constraints": {"errors"},
    "sampling_check": {"errors", "constraints"},
    "messages": {"errors", "constraints", "sampling_check"},
    "config": {"errors"},
    "cache": LEAVES,
    "native": LEAVES,
    "model": LEAVES | {"native"},
    "attention": LEAVES | {"native", "model"},
    "grammar": LEAVES,
    "scheduler": LEAVES | {"cache"},
    # StepPlan and StepResult are the contract between scheduler and runner: the runner sees them, not the scheduler.
    "runtime": LEAVES | {"attention", "model", "native", "scheduler.plan"},
    "engine": LEAVES | {"chat", "scheduler", "cache", "runtime", "attention", "model", "native", "grammar"},
    "chat": LEAVES | TEXT,
    "server": LEAVES | TEXT | {"chat", "engine", "scheduler", "cache", "grammar"},
    # Everything but weights and tensors; of the server what reads the bodies of requests.
    "planner": LEAVES
    | {"server", "engine", "chat", "scheduler", "cache", "grammar", "model"}
    | {"runtime.selection", "runtime.step_runner", "runtime.token_choice"},
    # Steps are taken apart from outside: plans, batches and runners are what it looks at.
    "bench": LEAVES | {"engine", "scheduler.plan", "runtime", "model", "native"},
    "cli": LEAVES | {"server", "engine", "cache", "bench", "planner"},
    "__init__": LEAVES | {"engine"},
}
# The server's process has no use for torch: what it shares with the engine must not bring it along.
WITHOUT_TORCH = (
    "scheduler",
    "cache",
    "grammar",
    "chat",
    "server",
    "model.text",
    "engine.client",
    "engine.intake",
    "engine.socket_client",
    "engine.stream_client",
    "engine.wire",
)
TORCH = {"torch", "transformers", "safetensors.torch"}


@dataclass(frozen=True)
class Import:
    """``eager``: runs when the importing module is imported."""

    target: str
    line: int
    eager: bool


@functools.cache
def imports(source: str) -> list[Import]:
    """All imports of a module that can ever run; those under ``if TYPE_CHECKING`` never do."""
    return list(_walk(ast.parse(source).body, eager=True))


def _walk(nodes: Iterable[ast.AST], *, eager: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, eager)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, eager)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _walk(node.orelse, eager=eager)
        else:
            lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _walk(ast.iter_child_nodes(node), eager=eager and not lazy)


def read_package(root: Path) -> dict[str, str]:
    """Dotted module name -> source, packages under their own name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return modules


def wrong_directions(modules: Mapping[str, str]) -> list[str]:
    """Imports inside radixserve that `ALLOWED` does not name."""
    wrong = []
    for name, source in modules.items():
        part = name.split(".")[1] if "." in name else "__init__"
        if part not in ALLOWED:
            wrong.append(f"{name}: {part} has no place in the order of imports")
            continue
        for item in imports(source):
            if item.target.split(".")[0] != "radixserve":
                continue
            target = ".".join(item.target.split(".")[1:])
            if not any(f"{target}.".startswith(f"{allowed}.") for allowed in ALLOWED[part] | {part}):
                wrong.append(f"{name}:{item.line} imports {item.target}")
    return wrong


def forbidden(modules: Mapping[str, str], names: set[str]) -> list[str]:
    """Imports of any of ``names`` or their submodules, wherever they stand."""
    return [
        f"{module}:{item.line} imports {item.target}"
        for module, source in modules.items()
        for item in imports(source)
        if any(f"{item.target}.".startswith(f"{name}.") for name in names)
    ]


def eager_closure(modules: Mapping[str, str], start: str) -> set[str]:
    """Modules of the package that are loaded when ``start`` is imported, the packages around them included."""
    loaded: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in loaded:
            continue
        loaded.add(name)
        waiting += [name.rsplit(".", 1)[0]] if "." in name else []
        for item in imports(modules[name]):
            if item.eager:
                # ``from package.module import name`` loads the module; ``from package import module`` loads both.
                waiting += [target for target in (item.target, item.target.rsplit(".", 1)[0]) if target in modules]
    return loaded


@pytest.fixture(scope="module")
def radixserve() -> dict[str, str]:
    return read_package(ROOT / "radixserve")


def test_imports_go_one_way(radixserve: dict[str, str]) -> None:
    assert wrong_directions(radixserve) == []


def test_the_order_has_no_cycle() -> None:
    below = {part: {name for name in names if "." not in name} for part, names in ALLOWED.items()}
    graphlib.TopologicalSorter(below).prepare()


def test_the_server_process_really_has_no_torch() -> None:
    program = (
        "import sys, radixserve.server.serving, radixserve.model.text, radixserve.engine.socket_client\n"
        "sys.exit(' '.join(name for name in ('torch', 'transformers') if name in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.strip()) == (0, "")


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_torch_is_never_loaded(radixserve: dict[str, str], part: str) -> None:
    for name in radixserve:
        if name.startswith(f"radixserve.{part}"):
            loaded = eager_closure(radixserve, name)
            assert forbidden({module: radixserve[module] for module in loaded}, TORCH) == []


def test_the_language_loads_neither_torch_nor_the_engine() -> None:
    language = read_package(ROOT / "frontend" / "radixlang")
    eager = {
        module: "\n".join(f"import {item.target}" for item in imports(source) if item.eager)
        for module, source in language.items()
    }
    assert forbidden(eager, {"torch", "radixserve"}) == []


def test_the_test_sees_faults() -> None:
    """The rules above are worth what they catch."""
    modules = {
        "radixserve": "",
        "radixserve.errors": "",
        "radixserve.cache": "",
        "radixserve.cache.tree": "def late():\n    import radixserve.scheduler.queue",
        "radixserve.scheduler": "",
        "radixserve.scheduler.queue": "from radixserve.cache import tree\nfrom radixserve.runtime import helper",
        "radixserve.runtime": "",
        "radixserve.runtime.helper": "import torch.nn\nfrom radixserve.scheduler.plan import StepPlan",
        "radixserve.runtime.typed": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import radixserve.engine\nelse:\n    import radixserve.server\n"
        ),
        "radixserve.misc": "",
    }
    assert wrong_directions(modules) == [
        "radixserve.cache.tree:2 imports radixserve.scheduler.queue",
        "radixserve.scheduler.queue:2 imports radixserve.runtime.helper",
        "radixserve.runtime.typed:5 imports radixserve.server",
        "radixserve.misc: misc has no place in the order of imports",
    ]
    assert eager_closure(modules, "radixserve.cache.tree") == {
        "radixserve.cache.tree",
        "radixserve.cache",
        "radixserve",
    }
    loaded = eager_closure(modules, "radixserve.scheduler.queue")
    assert forbidden({name: modules[name] for name in loaded}, {"torch"}) == [
        "radixserve.runtime.helper:1 imports torch.nn"
    ]
