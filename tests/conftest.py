"""Fixtures that several packages' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from radixserve.model.loader import LoadedModel, load_model
from radixserve.native.library import NativeLibrary
from tests.native_kernels import WHY_NOT

if WHY_NOT:
    # The tests that need no compiler must run where there is none.
    collect_ignore_glob = ["native/*", "*/test_native_*.py"]

# The same examples in every run: a change is judged by what it changes. Run with --hypothesis-seed for others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """Say whether the kernels are among what is tested."""
    return f"native kernels: NOT tested, {WHY_NOT}" if WHY_NOT else "native kernels: tested"


@pytest.fixture(autouse=True)
def native_library_as_it_was() -> Iterator[None]:
    """Instruction set and threads belong to the whole process: what a test chose for itself is undone after it."""
    if WHY_NOT:
        yield
        return
    library = NativeLibrary.load()
    isa, threads = library.isa, library.threads
    yield
    library.set_isa(isa)
    library.set_threads(threads)


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model in bfloat16, loaded once."""
    return load_model("smollm2", progress=False)
