"""Fixtures that several packages' tests share."""

from __future__ import annotations

import pytest

from radixserve.model.loader import LoadedModel, load_model


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model in bfloat16, loaded once."""
    return load_model("smollm2", progress=False)
