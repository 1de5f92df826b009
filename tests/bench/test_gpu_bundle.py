"""What is carried to a bare machine, and how it arrives there."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from bench import gpu_bundle
from bench.gpu_bundle import compiled_modules, gather, library_files, unpack


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages with a FlashInfer in it, and modules that were compiled."""
    for name in (
        "flashinfer/__init__.py",
        "flashinfer/jit/core.py",
        "flashinfer/kernels/other.cubin",
        "flashinfer/__pycache__/core.pyc",
        "flashinfer/data/csrc/page.cu",
        "flashinfer/data/csrc/config.jinja",
        "flashinfer/data/csrc/large.cubin",
        "flashinfer/data/include/page.cuh",
        "flashinfer/data/cccl/cub",
        "flashinfer/data/other/page.h",
        "flashinfer_python-1.2.dist-info/METADATA",
        "cache/1.2/90a/cached_ops/page/page.so",
        "cache/1.2/90a/cached_ops/page/page.cuda.o",
        "cache/1.2/90a/cached_ops/half/half.cuda.o",
        "cache/1.2/80/cached_ops/large/large.so",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def gathered(installed: Path, folder: Path) -> dict[str, int]:
    def download(wheels: Path) -> None:
        wheels.mkdir()
        (wheels / "a-1-py3-none-any.whl").write_text("a wheel")

    return gather(
        folder,
        library=installed / "flashinfer",
        metadata=installed / "flashinfer_python-1.2.dist-info",
        modules=compiled_modules(installed / "cache", "9.0a", ["page", "half", "large"]),
        sources=False,
        download=download,
    )


def test_the_library_travels_without_what_is_compiled_elsewhere(installed: Path) -> None:
    root = installed / "flashinfer"

    def names(*, sources: bool) -> list[str]:
        return [str(path.relative_to(root)) for path in library_files(root, sources=sources)]

    without = ["__init__.py", "data/csrc/config.jinja", "data/csrc/page.cu", "jit/core.py"]
    assert names(sources=False) == without
    assert names(sources=True) == sorted([*without, "data/cccl/cub", "data/include/page.cuh"])


def test_what_arrives_is_what_was_gathered(installed: Path, tmp_path: Path) -> None:
    folder, site = tmp_path / "bundle", tmp_path / "site"
    sizes = gathered(installed, folder)
    assert set(sizes) == {"wheels", "flashinfer.tar.xz", "modules"} and all(sizes.values())
    compiled = functools.partial(compiled_modules, installed / "cache")
    assert list(compiled("9.0a", ["page", "half"])) == ["page"], "what was not linked is no module"
    assert not compiled("8.0", ["page"]) and not compiled("9.0a", ["norm"]), "of another architecture, or not needed"
    installs: list[tuple[Path, Path]] = []
    assert unpack(folder, site, lambda wheels, place: installs.append((wheels, place))) == ["page"]
    assert installs == [(folder / "wheels", site)]
    assert (site / "flashinfer/jit/core.py").read_text() == "flashinfer/jit/core.py"
    assert (site / "flashinfer_python-1.2.dist-info/METADATA").exists()
    # Where FlashInfer looks for modules that came with it.
    assert (site / "flashinfer/data/aot/page/page.so").read_text() == "cache/1.2/90a/cached_ops/page/page.so"


def test_a_damaged_file_is_named(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    gathered(installed, folder)
    assert "modules/page.so" in json.loads((folder / "manifest.json").read_text())["files"]
    (folder / "modules/page.so").write_text("cut")
    with pytest.raises(SystemExit, match=r"modules/page\.so is missing or damaged"):
        unpack(folder, tmp_path / "site", lambda wheels, place: None)


def test_what_is_too_large_is_refused(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_bundle, "MOST_BYTES", 50)
    with pytest.raises(SystemExit, match="too large"):
        gathered(installed, tmp_path / "bundle")
