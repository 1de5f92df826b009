"""Loading, choosing and sharing the library; its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native import build
from radixserve.native.library import ISA_VARIABLE, NativeLibrary
from radixserve.native.operations import linear
from radixserve.native.packing import pack_dense
from radixserve.native.program import Program
from tests.native.steps import ALL_ISAS, batch_of, same_bits


def product() -> tuple[Program, torch.Tensor, torch.Tensor]:
    """A linear that is cut into many tasks, its output, and what it should be."""
    library = NativeLibrary.load()
    x, weight = torch.randn(24, 64), torch.randn(1024, 64)
    out = torch.empty(24, 1024)
    program = Program(library, [linear(pack_dense(weight), x, out)])
    program.run(batch_of([0] * 24))
    expected = out.clone()
    torch.testing.assert_close(expected, x @ weight.T, rtol=1e-4, atol=1e-4)
    return program, out, expected


def test_there_is_one_library_a_process() -> None:
    assert NativeLibrary.load() is NativeLibrary.load()


def test_generic_kernels_run_everywhere() -> None:
    assert ALL_ISAS[-1] == "generic"


def test_an_unknown_instruction_set_is_refused() -> None:
    library = NativeLibrary.load()
    before = library.isa
    with pytest.raises(ConfigError, match="v9"):
        library.set_isa("v9")
    assert library.isa == before


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    code = "from radixserve.native.library import NativeLibrary as N; print(N.load().isa)"
    environment = {**os.environ, ISA_VARIABLE: isa}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == isa


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match="cannot load"):
        NativeLibrary(tmp_path / "none.so")


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler"):
        build.compile_library(tmp_path)


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho out of luck >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailable, match="out of luck"):
        build.compile_library(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_library_beside_the_package_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    (tmp_path / build.library_name()).write_bytes(b"")
    assert build.find_or_compile() == tmp_path / build.library_name()


def test_the_name_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.library_name()
    for source in build.SOURCES.glob("*.*pp"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    for source in build.SOURCES.glob("*.h"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build.library_name() == before
    with (tmp_path / "pool.cpp").open("a") as source_file:
        source_file.write("\n")
    assert build.library_name() != before
    assert build.library_name("thread") != build.library_name("address")


@pytest.fixture(scope="module")
def chosen() -> tuple[str, int]:
    """What the process has when a test first asks."""
    return NativeLibrary.load().isa, NativeLibrary.load().threads


@pytest.mark.parametrize("_round", [1, 2])
def test_each_test_finds_the_library_as_the_process_has_it(_round: int, chosen: tuple[str, int]) -> None:
    library = NativeLibrary.load()
    assert (library.isa, library.threads) == chosen
    library.set_isa(ALL_ISAS[-1])
    library.set_threads(chosen[1] + 1)


def test_thread_count_can_change_between_calls() -> None:
    program, out, expected = product()
    library = NativeLibrary.load()
    for count in (1, 2, 7, 3, 1, 2):
        assert library.set_threads(count) == count == library.threads
        out.zero_()
        program.run(batch_of([0] * 24))
        assert same_bits(out, expected)
    assert library.set_threads(0) == 1


def test_many_runs_lose_no_chunk() -> None:
    """Runs in a row, some after a pause in which the workers fall asleep: every chunk is done, once, before the call returns."""
    program, out, expected = product()
    library = NativeLibrary.load()
    library.set_threads(3)
    batch = batch_of([0] * 24)
    for repeat in range(400):
        if repeat % 50 == 0:
            time.sleep(0.002)
        out.zero_()
        program.run(batch)
        assert same_bits(out, expected), repeat


def test_more_threads_than_cores_change_nothing() -> None:
    """All threads on one core, beside a busy one: workers are put aside with chunks in hand, rest, and come back."""
    code = """
import os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from radixserve.native.library import NativeLibrary
from tests.native.steps import ALL_ISAS, batch_of, same_bits
from tests.native.test_library import product
done = threading.Event()
def keep_busy():
    while not done.is_set():
        sum(range(1000))
neighbour = threading.Thread(target=keep_busy)
neighbour.start()
program, out, expected = product()
for count in (4, 1, 3):
    NativeLibrary.load().set_threads(count)
    for _ in range(60):
        out.zero_()
        program.run(batch_of([0] * 24))
        assert same_bits(out, expected)
done.set()
neighbour.join()
print("all")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip() == "all", done.stderr


def test_calls_from_several_threads_are_taken_in_turn() -> None:
    failures: list[int] = []

    def caller(number: int) -> None:
        program, out, expected = product()
        for _ in range(50):
            out.zero_()
            program.run(batch_of([0] * 24))
            if not same_bits(out, expected):
                failures.append(number)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_forked_child_starts_its_own_threads() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore")
from tests.native.test_library import product
from tests.native.steps import ALL_ISAS, batch_of, same_bits
from radixserve.native.library import NativeLibrary
NativeLibrary.load().set_threads(3)
program, out, expected = product()
child = os.fork()
for _ in range(20):
    out.zero_()
    program.run(batch_of([0] * 24))
    assert same_bits(out, expected)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("both")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "both", done.stderr
