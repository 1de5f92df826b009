"""What a bare machine with a GPU needs for `bench.gpu_check`, in one folder of at most 64 MiB.

    python -m bench.gpu_bundle gather FOLDER [--python 3.12] [--arch 9.0a] [--cache FOLDER] [--sources]
    python -m bench.gpu_bundle unpack FOLDER SITE

``gather`` runs here, where FlashInfer is installed (`make test-contract`) and its modules were compiled (`bench.gpu_compile`, whose
objects lie under ``--cache``); ``unpack`` there, where nothing can be fetched: afterwards
``PYTHONPATH=SITE python -m bench.gpu_check``. The machine has its own torch, and the packages that come with it. Carried are

- wheels of what radixserve and FlashInfer import, for that machine's Python,
- FlashInfer itself, whose wheel alone would be too large: its Python files, and with ``--sources`` what its modules are compiled from,
- the compiled modules, put where FlashInfer looks for ones that came with it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.gpu_modules import ESSENTIAL, module_names

MOST_BYTES = 64 << 20
# Of a machine with glibc 2.39; pip takes each name for that alone.
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)), "manylinux2014_x86_64")
# What radixserve's engine and FlashInfer's Python layer import and a machine with torch alone does not have.
WHEELS = (
    "apache-tvm-ffi",
    "einops",
    "jinja2",
    "llguidance>=1.9",
    "markupsafe",
    "msgspec",
    "ninja",
    "nvidia-ml-py",
    "packaging",
    "pyzmq",
    "safetensors",
    "sortedcontainers",
    "tabulate",
    "tokenizers",
)
# Modules are described by these even where they are not compiled; beside them, what they are compiled from.
DESCRIPTIONS = ("data/csrc",)
SOURCES = ("data/include", "data/cccl", "data/cutlass/include", "data/spdlog/include")
# What a package of Python files is read from, and what is compiled; kernels that came compiled are for other parts of it.
READ = (".py", ".json", ".txt", ".jinja")
COMPILED = (".cu", ".cuh", ".h", ".hpp", ".inl", ".jinja", "")
LIBRARY, MODULES, MANIFEST = "flashinfer.tar.xz", "modules", "manifest.json"


def library_files(root: Path, *, sources: bool) -> Iterator[Path]:
    """The files of an installed FlashInfer at ``root`` that are carried, in order of their names."""
    wanted = [root / each for each in (*DESCRIPTIONS, *(SOURCES if sources else ()))]
    for path in sorted(root.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        in_data = path.relative_to(root).parts[0] == "data"
        if path.suffix not in (COMPILED if in_data else READ):
            continue
        if not in_data or any(path.is_relative_to(each) for each in wanted):
            yield path


def compiled_modules(cache: Path, architecture: str, names: Collection[str]) -> dict[str, Path]:
    """The shared objects of modules ``names`` under FlashInfer's cache, for ``architecture`` (``9.0a``)."""
    paths = cache.rglob(f"{architecture.replace('.', '')}/cached_ops/*/*.so")
    return {path.stem: path for path in sorted(paths) if path.parent.name == path.stem and path.stem in names}


def gather(
    folder: Path,
    *,
    library: Path,
    metadata: Path,
    modules: Mapping[str, Path],
    sources: bool,
    download: Callable[[Path], None],
) -> dict[str, int]:
    """Fill ``folder``; the bytes of each part. Raises `SystemExit` where it is too large."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / MODULES).mkdir(parents=True)
    with tarfile.open(folder / LIBRARY, "w:xz", preset=2) as archive:
        for path in library_files(library, sources=sources):
            archive.add(path, str(Path("flashinfer") / path.relative_to(library)))
        for path in sorted(metadata.iterdir()):
            if path.is_file():
                archive.add(path, f"{metadata.name}/{path.name}")
    for name, path in modules.items():
        shutil.copyfile(path, folder / MODULES / f"{name}.so")
    download(folder / "wheels")
    files = {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / MANIFEST).write_text(json.dumps({"flashinfer": metadata.name, "files": files}, indent=1) + "\n")
    sizes = {part: _bytes(folder / part) for part in ("wheels", LIBRARY, MODULES)}
    if sum(sizes.values()) > MOST_BYTES:
        parts = ", ".join(f"{name} {size >> 20}" for name, size in sizes.items())
        raise SystemExit(f"too large, of {MOST_BYTES >> 20} MiB: {parts}")
    return sizes


def unpack(folder: Path, site: Path, install: Callable[[Path, Path], None]) -> list[str]:
    """Make ``site`` a place to import from; the names of the modules that need not be compiled. Raises `SystemExit` for a damaged file."""
    files = json.loads((folder / MANIFEST).read_text())["files"]
    for name, digest in files.items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise SystemExit(f"{name} is missing or damaged")
    site.mkdir(parents=True, exist_ok=True)
    install(folder / "wheels", site)
    with tarfile.open(folder / LIBRARY, "r:xz") as archive:
        archive.extractall(site, filter="data")
    names = []
    for path in sorted((folder / MODULES).glob("*.so")):
        target = site / "flashinfer" / "data" / "aot" / path.stem / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        names.append(path.stem)
    return names


def download_wheels(folder: Path, python: str, names: Iterable[str] = WHEELS) -> None:
    """The newest wheels of ``names`` that ``python`` can have, without what they need in turn."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    command += [option for each in PLATFORMS for option in ("--platform", each)]
    subprocess.run([*command, *names], check=True)


def install_wheels(folder: Path, site: Path) -> None:
    """Put them into ``site``, from nowhere else."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    wheels = [str(path) for path in sorted(folder.glob("*.whl"))]
    subprocess.run([*command, "--upgrade", "--target", str(site), *wheels], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    gathering = commands.add_parser("gather")
    gathering.add_argument("folder", type=Path)
    gathering.add_argument("--python", default="3.12", help="of the other machine")
    gathering.add_argument("--arch", default="9.0a", help="compute capability that the modules were compiled for")
    gathering.add_argument("--cache", type=Path, default=_cache(), help="where FlashInfer's compiled modules lie")
    gathering.add_argument("--sources", action="store_true", help="with what modules are compiled from")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("site", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "unpack":
        arrived = unpack(options.folder, options.site, install_wheels)
        print(f"{len(arrived)} modules need not be compiled: {', '.join(arrived)}")
        return 0
    # FlashInfer describes modules for an architecture, and here is no GPU to ask.
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", options.arch)
    names = module_names()
    carried = compiled_modules(options.cache, options.arch, names.values())
    distribution = importlib.metadata.distribution("flashinfer-python")
    metadata = Path(str(distribution.locate_file(f"flashinfer_python-{distribution.version}.dist-info")))
    sizes = gather(
        options.folder,
        library=Path(str(distribution.locate_file("flashinfer"))),
        metadata=metadata,
        modules=carried,
        sources=options.sources,
        download=lambda folder: download_wheels(folder, options.python),
    )
    missing = [name for name, own in names.items() if own not in carried]
    print(json.dumps({"bytes": sizes, "modules": len(carried), "not_compiled": missing}))
    if left := [name for name in ESSENTIAL if name in missing]:
        print(
            f"serving needs {', '.join(left)}: compiled here it does not take from the check's eight minutes",
            file=sys.stderr,
        )
    return 0


def _cache() -> Path:
    return Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", str(Path.home()))) / ".cache" / "flashinfer"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


if __name__ == "__main__":
    sys.exit(main())
