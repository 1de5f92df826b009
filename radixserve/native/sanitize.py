"""Run the kernels' tests with the library built for a sanitizer: ``python -m radixserve.native.sanitize [address|thread]``.

``address`` looks for reads and writes beside memory and for what C++ leaves undefined, ``thread`` for data that two threads touch without
order; both end at the first finding, with its stack. Needs a checkout (the tests), a compiler and its sanitizer libraries. The
interpreter is not instrumented, so the sanitizer's runtime is preloaded; leaks of the interpreter's own are not looked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args

from radixserve.errors import NativeUnavailable
from radixserve.native.build import Sanitizer, compile_library, find_compiler
from radixserve.native.library import LIBRARY_VARIABLE

_RUNTIMES: dict[Sanitizer, str] = {"address": "libasan.so", "thread": "libtsan.so"}
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    # A test forks a process that has threads.
    "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0:ignore_noninstrumented_modules=1:die_after_fork=0",
}

# Runs a shell, which does not start under the thread sanitizer's runtime.
_LEFT_OUT = ("--deselect", "tests/native/test_library.py::test_a_compiler_that_fails_is_quoted")


def run(sanitize: Sanitizer, arguments: list[str]) -> int:
    """Build, then run pytest over ``tests/native`` with further ``arguments``; returns its exit status."""
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailable("no C++ compiler found (g++, clang++, c++ or $CXX)")
    runtime = subprocess.run(
        [compiler, f"-print-file-name={_RUNTIMES[sanitize]}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        library = compile_library(Path(directory), sanitize)
        environment = {
            **os.environ,
            **_OPTIONS,
            "LD_PRELOAD": runtime,
            LIBRARY_VARIABLE: str(library),
            "OMP_NUM_THREADS": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/native",
            *_LEFT_OUT,
            *arguments,
        ]
        return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    """The command line: one sanitizer, or both in turn; what follows goes to pytest."""
    names: tuple[Sanitizer, ...] = get_args(Sanitizer)
    chosen = [name for name in names if name in sys.argv[1:2]] or list(names)
    arguments = [argument for argument in sys.argv[1:] if argument not in names]
    return max(run(name, arguments) for name in chosen)


if __name__ == "__main__":
    sys.exit(main())
