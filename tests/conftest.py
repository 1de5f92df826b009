"""Fixtures that several packages' tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from radixserve.errors import NativeUnavailable
from radixserve.model.loader import LoadedModel, load_model
from radixserve.native.library import NativeLibrary

try:
    NativeLibrary.load()
    NATIVE = "native kernels: tested"
except NativeUnavailable as error:
    # The tests that need no compiler must run where there is none.
    NATIVE = f"native kernels: NOT tested, {error}"
    collect_ignore_glob = ["native/*", "*/test_native_*.py"]

# The same examples in every run: a change is judged by what it changes. Run with --hypothesis-seed for others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """Say whether the kernels are among what is tested."""
    return NATIVE


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model in bfloat16, loaded once."""
    return load_model("smollm2", progress=False)
