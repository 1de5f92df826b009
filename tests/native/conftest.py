"""The library under each instruction set that this CPU has."""

from __future__ import annotations

import pytest

from radixserve.native.library import NativeLibrary
from tests.native.steps import ALL_ISAS


@pytest.fixture(params=ALL_ISAS)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The process's library, switched to one instruction set and two threads for the test."""
    loaded = NativeLibrary.load()
    loaded.set_isa(request.param)
    loaded.set_threads(2)
    return loaded
