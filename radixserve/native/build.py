"""Compiling the kernel library with the system's C++ compiler.

The result is named after a hash of its sources and flags, so a library that does not belong to these sources is never loaded, and
it is looked for beside this file (where an installation puts it), then in the user's cache directory, where it is compiled at first use.

An installation compiles it with ``compile_library(Path(build_lib) / "radixserve/native")``; ``find_compiler() is None`` is the sign to go
on without.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radixserve.errors import NativeUnavailable

PACKAGE = Path(__file__).parent
SOURCES = PACKAGE / "src"
Sanitizer = Literal["address", "thread"]

# -ffp-contract=off: the order and rounding of every operation is what the source says, or bits would depend on inlining.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
# GCC 12 takes the undefined operand inside its own intrinsics for a mistake of ours.
_QUIET = ("-Wno-maybe-uninitialized", "-Wno-uninitialized")
# Loops begin a cache line: where they do not, attention takes up to a tenth longer, by what happens to stand before them.
_ALIGNED = ("-falign-loops=64", "-falign-functions=64")
_V4 = ("-DRS_ISA_V4", "-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", *_ALIGNED)
_V3 = ("-DRS_ISA_V3", "-march=x86-64-v3", *_ALIGNED)


@dataclass(frozen=True, slots=True)
class _Unit:
    """One object file."""

    name: str
    source: str
    flags: tuple[str, ...] = ()


def _units() -> tuple[_Unit, ...]:
    common = (
        _Unit("library", "library.cpp"),
        _Unit("pool", "pool.cpp"),
        _Unit("attention_plan", "attention_plan.cpp"),
        _Unit("by_rows", "by_rows.cpp"),
        _Unit("kernels_generic", "kernels.cpp"),
    )
    if platform.machine() in ("x86_64", "AMD64"):
        isa = (_Unit("kernels_v4", "kernels.cpp", _V4), _Unit("kernels_v3", "kernels.cpp", _V3))
        return (*isa, *common)
    return common


# What is undefined is looked for together with what goes beside memory, and ends the process like that.
_SANITIZERS: dict[Sanitizer, tuple[str, ...]] = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


def _sanitizer_flags(sanitize: Sanitizer | None) -> tuple[str, ...]:
    # Unrolled kernels with a check at every access take minutes to optimize further.
    return (*_SANITIZERS[sanitize], "-O1", "-g", "-fno-omit-frame-pointer") if sanitize else ()


def source_hash(sanitize: Sanitizer | None = None) -> str:
    """16 hex digits over all sources and flags."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h", ".hpp")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for unit in _units():
        digest.update(repr((unit, _FLAGS, _sanitizer_flags(sanitize))).encode())
    return digest.hexdigest()[:16]


def library_name(sanitize: Sanitizer | None = None) -> str:
    """File name of the library that belongs to these sources."""
    return f"libradixserve-{source_hash(sanitize)}.so"


def find_compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else g++, clang++ or c++, whichever is found first."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        if path := shutil.which(name):
            return path
    return None


def compile_library(directory: Path, sanitize: Sanitizer | None = None) -> Path:
    """Compile into ``directory`` (made where missing) and return the library's path; raises `NativeUnavailable`.

    Two processes may do so at once: each compiles aside and renames its whole result into place.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailable("no C++ compiler found (g++, clang++, c++ or $CXX)")
    if platform.system() != "Linux":
        raise NativeUnavailable(f"the kernels are for Linux, not {platform.system()}")
    target = directory / library_name(sanitize)
    extra = _sanitizer_flags(sanitize)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            objects = [str(Path(scratch) / f"{unit.name}.o") for unit in _units()]
            commands = [
                [compiler, *_FLAGS, *_QUIET, *unit.flags, *extra, "-c", str(SOURCES / unit.source), "-o", output]
                for unit, output in zip(_units(), objects, strict=True)
            ]
            with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
                for _ in pool.map(_run, commands):
                    continue
            linked = Path(scratch) / "linked.so"
            _run([compiler, "-shared", *extra, *objects, "-lpthread", "-o", str(linked)])
            linked.replace(target)
    except OSError as error:
        raise NativeUnavailable(f"cannot write the library to {directory}: {error}") from error
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NativeUnavailable(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def cache_directory() -> Path:
    """Where libraries compiled at first use are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "radixserve" / "native"


def find_or_compile() -> Path:
    """Path of the library that belongs to these sources, compiled if there is none; raises `NativeUnavailable`."""
    name = library_name()
    for directory in (PACKAGE, cache_directory()):
        if (directory / name).is_file():
            return directory / name
    return compile_library(cache_directory())
