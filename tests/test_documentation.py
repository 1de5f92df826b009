"""The documents name what exists, with the values it has."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from packaging.requirements import Requirement

from radixserve.cli.flags import constraint_flags, engine_flags, sampling_flags, server_flags
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.messages import SamplingParams

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def _rows(heading: str) -> dict[str, list[str]]:
    """First column -> the others, of the table under a heading of configuration.md."""
    text = (ROOT / "docs" / "configuration.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


def _written(default: Any) -> str:
    if default is None or default == () or default == {}:
        return "none"
    return f"`{('off', 'on')[default] if isinstance(default, bool) else default}`"


@pytest.mark.parametrize(
    ("heading", "flags"),
    [
        ("Engine options", engine_flags),
        ("Sampling", sampling_flags),
        ("Constraint", constraint_flags),
        ("Server options", server_flags),
    ],
)
def test_every_option_is_documented_with_default_and_choices(heading: str, flags: Any) -> None:
    rows = _rows(heading)
    assert list(rows) == [flag.option for flag in flags()]
    for flag in flags():
        default, values, meaning = rows[flag.option]
        assert default == _written(flag.default), flag.option
        choices = [choice for choice in get_args(flag.hint) if isinstance(choice, str)]
        if choices:
            assert values == ", ".join(f"`{choice}`" for choice in choices), flag.option
        assert meaning


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        assert "://" in target or (document.parent / target).exists(), target


def test_the_makefile_names_tests_that_exist() -> None:
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert named and not [name for name in named if not (ROOT / name).exists()]


def test_every_dependency_is_explained_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = [Requirement(text).name for group in groups for text in group]
    explained = re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert sorted(set(explained) - {"package"}) == sorted(set(names))
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1].isalpha()]
    assert set(names) <= {pin.name for pin in pins}
    assert all(str(pin.specifier).startswith("==") for pin in pins)


@pytest.mark.parametrize("option", ["lora", "speculative", "host_cache_mb", "pipeline_parallel_size"])
def test_an_engine_option_of_another_engine_is_refused_by_name(option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: unknown option"):
        EngineConfig.from_options(**{option: 1})


def test_other_devices_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^device: must be one of cpu, cuda, not 'tpu'"):
        EngineConfig.from_options(device="tpu")


@pytest.mark.parametrize("field", ["regex", "json_schema", "response_format", "best_of", "use_beam_search"])
def test_a_sampling_field_of_another_engine_is_refused_by_name(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: 1})  # type: ignore[arg-type]


def test_the_quick_start_uses_what_exists() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if block.startswith("from radixserve ")]
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    fields = {
        keyword.arg
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "SamplingParams"
        for keyword in call.keywords
    }
    assert fields
    assert fields <= set(SamplingParams.__struct_fields__)


def test_the_installed_package_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = importlib.metadata.distribution("radixserve")
    assert installed.metadata["Requires-Python"] == project["requires-python"]
    assert {entry.name for entry in installed.entry_points} == set(project["scripts"])


def test_options_are_flat() -> None:
    """No two parts of the configuration use one name, so that a flat name is enough."""
    config = EngineConfig()
    parts = [getattr(config, part.name) for part in dataclasses.fields(config)]
    names = [item.name for part in parts if dataclasses.is_dataclass(part) for item in dataclasses.fields(part)]
    assert len(names) == len(set(names))
