"""The library under each instruction set that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixserve.native.library import Isa, NativeLibrary
from tests.native.steps import ALL_ISAS


@pytest.fixture(params=ALL_ISAS)
def library(request: pytest.FixtureRequest) -> Iterator[NativeLibrary]:
    """The process's library, switched to one instruction set and two threads for the test."""
    loaded = NativeLibrary.load()
    before: tuple[Isa, int] = loaded.isa, loaded.threads
    loaded.set_isa(request.param)
    loaded.set_threads(2)
    yield loaded
    loaded.set_isa(before[0])
    loaded.set_threads(before[1])
