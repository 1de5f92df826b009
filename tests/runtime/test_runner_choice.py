"""Which kernels serve, and what is said about it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native.library import NativeLibrary
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.runtime.runner_choice import create_runner
from tests.native_kernels import needs_native
from tests.tiny_decoder import tiny_decoder


def choose(intermediate_size: int = 80, **options: Any) -> tuple[PlanRunner, dict[str, str | int]]:
    model = tiny_decoder("llama", intermediate_size=intermediate_size)
    config = EngineConfig.from_options(**{"num_blocks": 8, "threads": 1, "dtype": "float32", **options})
    return create_runner(model, config.model, config.cache, config.scheduler)


@needs_native
@pytest.mark.parametrize("kernels", ["auto", "native"])
def test_native_where_it_can_be_had(kernels: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        runner, facts = choose(kernels=kernels)
    assert isinstance(runner, NativeModelRunner)
    assert facts == runner.describe()
    assert "kernels native" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernels": "torch"}, "kernels=torch"),
        ({"attention": "torch_paged"}, "attention=torch_paged is a backend of the torch path"),
        ({"block_size": 8}, "block_size 8 is not a multiple of 16"),
        ({"intermediate_size": 72}, "the model's intermediate_size 72 is not a multiple of 16"),
    ],
)
def test_torch_where_not_and_the_reason_is_told(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner, facts = choose(**options)
    assert isinstance(runner, ModelRunner)
    assert facts["kernels"] == "torch" and facts["kernels_reason"] == reason
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_size": 8}, "block_size 8"),
        ({"intermediate_size": 72}, "intermediate_size 72"),
        ({"attention": "torch_paged"}, "attention=torch_paged"),
    ],
)
def test_native_is_refused_by_name_where_it_cannot_be(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^kernels: .*{reason}"):
        choose(kernels="native", **options)


def test_without_a_library_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> NativeLibrary:
        raise NativeUnavailable("no C++ compiler found")

    monkeypatch.setattr(NativeLibrary, "load", load)
    runner, facts = choose()
    assert isinstance(runner, ModelRunner)
    assert facts["kernels_reason"] == "no C++ compiler found"
    with pytest.raises(ConfigError, match=r"^kernels: .*no C\+\+ compiler found"):
        choose(kernels="native")
