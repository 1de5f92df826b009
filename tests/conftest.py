"""Fixtures that several packages' tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from radixserve.model.loader import LoadedModel, load_model

# The same examples in every run: a change is judged by what it changes. Run with --hypothesis-seed for others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model in bfloat16, loaded once."""
    return load_model("smollm2", progress=False)
