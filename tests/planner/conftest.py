from __future__ import annotations

import pytest

from radixserve.model.loader import LoadedModel
from radixserve.planner.model import PlanModel
from tests.planner.engines import plan_model
from tests.tiny_model import tiny_model


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    return tiny_model()


@pytest.fixture(scope="session")
def tiny_text(tiny: LoadedModel) -> PlanModel:
    return plan_model(tiny)


@pytest.fixture(scope="session")
def smollm2_text() -> PlanModel:
    """The text side of the embedded model."""
    from radixserve.planner.model import load_plan_model

    return load_plan_model("smollm2")
