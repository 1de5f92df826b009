"""Which kernels serve, and what is said about it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native.library import NativeLibrary
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.runtime.runner_choice import create_runner
from radixserve.runtime.tensor_parallel.runner import TensorParallelRunner
from tests.native_kernels import needs_native
from tests.quantized_model import Mix, quantized_model
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


def test_ranks_are_for_torch() -> None:
    runner, facts = choose(tensor_parallel_size=2, watchdog_timeout_s=50)
    try:
        assert isinstance(runner, TensorParallelRunner)
        assert facts["kernels"] == "torch" and facts["tensor_parallel_size"] == 2
        assert str(facts["kernels_reason"]).startswith("tensor_parallel_size=2: ")
        assert runner._processes.watchdog._timeout_s == 50
    finally:
        runner.close()
    with pytest.raises(ConfigError, match=r"^kernels: .*tensor_parallel_size"):
        EngineConfig.from_options(tensor_parallel_size=2, kernels="native")


def test_without_a_library_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> NativeLibrary:
        raise NativeUnavailable("no C++ compiler found")

    monkeypatch.setattr(NativeLibrary, "load", load)
    runner, facts = choose()
    assert isinstance(runner, ModelRunner)
    assert facts["kernels_reason"] == "no C++ compiler found"
    with pytest.raises(ConfigError, match=r"^kernels: .*no C\+\+ compiler found"):
        choose(kernels="native")


@pytest.mark.parametrize("kernels", [pytest.param("native", marks=needs_native), "torch"])
def test_the_pool_is_of_the_type_that_is_asked_for(kernels: str) -> None:
    plain, facts = choose(kernels=kernels)
    assert facts["kv_dtype"] == "float32"
    rounded, facts = choose(kernels=kernels, kv_dtype="int8")
    assert facts["kv_dtype"] == "int8" and facts["dtype"] == "float32"
    assert int(facts["kv_bytes"]) == rounded.kv.num_bytes == plain.kv.num_bytes * (16 + 2) // (16 * 4)


def test_another_type_of_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^kv_dtype: must be one of auto, int8, fp8, not 'int4'"):
        choose(kv_dtype="int4")


# --- Weights as they are in the file ----------------------------------------------------------------------------------


def choose_quantized(
    mix: Mix = "Q4_1", dtype: torch.dtype = torch.bfloat16, **options: Any
) -> tuple[PlanRunner, dict[str, str | int]]:
    named = {"num_blocks": 8, "threads": 1, "dtype": str(dtype).removeprefix("torch."), **options}
    config = EngineConfig.from_options(**named)
    return create_runner(quantized_model(mix, dtype=dtype), config.model, config.cache, config.scheduler)


@needs_native
@pytest.mark.parametrize("weights", ["auto", "native"])
def test_blocks_are_kept_where_they_can_be(weights: str) -> None:
    runner, facts = choose_quantized(weights=weights)
    assert facts["weights"] == "native" and facts["weight_formats"] == "Q4_1 15, Q8_0 1"
    assert facts == runner.describe()


@needs_native
def test_bf16_dequantizes_and_the_facts_say_so() -> None:
    _, facts = choose_quantized(weights="bf16")
    assert facts["weights"] == "bfloat16" and facts["weights_reason"] == "weights=bf16"


@needs_native
def test_float32_means_the_weights_too_unless_native_is_asked_for() -> None:
    _, facts = choose_quantized(dtype=torch.float32)
    assert facts["weights"] == "float32" and facts["weights_reason"] == "dtype=float32"
    _, facts = choose_quantized(dtype=torch.float32, weights="native")
    assert facts["weights"] == "native" and facts["dtype"] == "float32"


def test_bf16_and_float32_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"^weights: bf16 contradicts dtype=float32"):
        EngineConfig.from_options(weights="bf16", dtype="float32")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernels": "torch"}, "kernels=torch"),
        ({"attention": "torch_paged"}, "attention=torch_paged is a backend of the torch path"),
        ({"block_size": 8}, "block_size 8 is not a multiple of 16"),
    ],
)
def test_torch_dequantizes_and_the_facts_say_why(options: dict[str, Any], reason: str) -> None:
    _, facts = choose_quantized(**options)
    assert facts["kernels"] == "torch" and facts["weights"] == "bfloat16"
    assert facts["weights_reason"] == f"only the native kernels read them: {reason}"
    with pytest.raises(ConfigError, match=f"^weights: .*{reason}"):
        choose_quantized(weights="native", **options)


def test_without_a_library_blocks_are_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> NativeLibrary:
        raise NativeUnavailable("no C++ compiler found")

    monkeypatch.setattr(NativeLibrary, "load", load)
    _, facts = choose_quantized()
    assert facts["weights"] == "bfloat16" and "no C++ compiler found" in str(facts["weights_reason"])
    with pytest.raises(ConfigError, match=r"^weights: .*no C\+\+ compiler found"):
        choose_quantized(weights="native")


@needs_native
def test_a_model_that_is_not_quantized_has_nothing_to_keep() -> None:
    _, facts = choose()
    assert facts["weights"] == "float32" and "weights_reason" not in facts
    with pytest.raises(ConfigError, match=r"^weights: .*the model has no matrix in Q4_0"):
        choose(weights="native")
