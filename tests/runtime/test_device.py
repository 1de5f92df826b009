"""Devices: what is missing is said before anything is loaded, and what memory a GPU has left."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from radixserve import Engine
from radixserve.config import EngineConfig
from radixserve.engine.assembly import assemble
from radixserve.errors import ConfigError
from radixserve.model import flashinfer_library
from radixserve.model.device_weights import DeviceWeights
from radixserve.model.gguf_weights import placement
from radixserve.runtime import device as device_module
from radixserve.runtime.device import memory_for_kv, model_bytes, require_device
from tests.tiny_decoder import tiny_config, tiny_decoder

WITHOUT_CUDA = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")


@WITHOUT_CUDA
@pytest.mark.parametrize("start", [lambda: Engine("smollm2", device="cuda"), lambda: require_device("cuda")])
def test_without_a_gpu_the_error_says_what_to_install(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("nothing is loaded before the device is known to be there")

    monkeypatch.setattr("radixserve.model.loader.load_model", never)
    with pytest.raises(
        ConfigError, match=r"^device: cuda cannot be used here: torch .* is built without CUDA"
    ) as caught:
        start()
    assert caught.value.field == "device"
    if importlib.util.find_spec("flashinfer") is None:
        assert str(caught.value).endswith("FlashInfer is not installed: pip install 'radixserve[cuda]'")


@WITHOUT_CUDA
def test_assembly_checks_a_model_that_was_loaded_already() -> None:
    with pytest.raises(ConfigError, match=r"^device: cuda cannot be used here"):
        assemble(SimpleNamespace(), EngineConfig.from_options(device="cuda"))  # type: ignore[arg-type]


def test_the_cpu_needs_nothing() -> None:
    assert require_device("cpu") == torch.device("cpu")


class Machine:
    """A machine with a GPU, FlashInfer and nvcc, of which parts can be taken away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capability = (9, 0)
        self.gpu = True
        self.installed = {"flashinfer": True, "flashinfer_jit_cache": False}
        self.nvcc = True
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.gpu)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        monkeypatch.setattr(flashinfer_library, "cuda_home", lambda: "/cuda" if self.nvcc else None)
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *more: (
                (object() if self.installed[name] else None) if name in self.installed else find_spec(name, *more)
            ),
        )
        monkeypatch.setattr(flashinfer_library, "flashinfer", lambda: ModuleType("flashinfer"))


def test_each_thing_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert flashinfer_library.missing() == []
    machine.nvcc = False
    assert [re.sub(r":.*", "", each) for each in flashinfer_library.missing()] == [
        "nvcc, which compiles FlashInfer's kernels at first use, is not found"
    ]
    machine.installed["flashinfer_jit_cache"] = True
    assert flashinfer_library.missing() == []
    machine.capability = (7, 5)
    assert flashinfer_library.missing() == ["a GPU has compute capability 7.5, at least 8.0 is needed"]
    machine.gpu = False
    machine.installed["flashinfer"] = False
    assert flashinfer_library.missing() == [
        "torch finds no NVIDIA GPU, or no driver that fits it",
        "FlashInfer is not installed: pip install 'radixserve[cuda]'",
    ]


def test_a_library_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)

    def broken() -> ModuleType:
        raise ImportError("no tvm_ffi")

    monkeypatch.setattr(flashinfer_library, "flashinfer", broken)
    (reason,) = flashinfer_library.missing()
    assert "cannot be imported (no tvm_ffi)" in reason


def test_nvcc_is_found_among_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec if name == "nvidia" else None)
    for part in ("cu12/bin/nvcc", "cu12/include/cuda_runtime.h", "cu13/bin/nvcc"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    assert flashinfer_library.cuda_home() == tmp_path / "cu12", "nvcc without its headers compiles nothing"
    (tmp_path / "cu13" / "include").mkdir()
    (tmp_path / "cu13" / "include" / "cuda_runtime.h").touch()
    assert flashinfer_library.cuda_home() == tmp_path / "cu13"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cu12"))
    assert flashinfer_library.cuda_home() == tmp_path / "cu12"


def test_a_toolkit_of_packages_can_be_linked_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, driver, links = tmp_path / "cu13", tmp_path / "driver", tmp_path / "cache" / "cuda"
    for library in (home / "lib" / "libcudart.so.13", driver / "libcuda.so.1"):
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setenv("LIBRARY_PATH", "/elsewhere")
    for _ in range(2):
        flashinfer_library.make_linkable(home, links, (str(driver), "/nowhere"))
        assert (links / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"
        assert (links / "libcuda.so").resolve() == driver / "libcuda.so.1"
        assert os.environ["LIBRARY_PATH"] == f"{links}:/elsewhere"
    assert sorted(each.name for each in links.iterdir()) == ["libcuda.so", "libcudart.so"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "cuda", "dtype": "float32"}, "dtype"),
        ({"device": "cuda", "kernels": "native"}, "kernels"),
        ({"dtype": "float16"}, "dtype"),
        ({"attention": "flashinfer"}, "attention"),
        ({"kv_dtype": "fp8"}, "kv_dtype"),
        ({"device": "cuda", "kv_dtype": "int8"}, "kv_dtype"),
    ],
)
def test_options_that_the_device_does_not_do(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: .*(cuda|CPU)"):
        EngineConfig.from_options(**options)


def test_what_a_gpu_has_left_for_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", vocab_size=1000, hidden_size=64)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    left = memory_for_kv(config, torch.bfloat16, 2048, torch.device("cuda"))
    weights = model_bytes(config, torch.bfloat16)
    assert weights == sum(
        each.nbytes for each in tiny_decoder("llama", torch.bfloat16, vocab_size=1000, hidden_size=64).weights.values()
    )
    assert int(0.9 * (1 << 30)) - device_module.RESERVED_BYTES - weights > left > 0
    assert memory_for_kv(config, torch.bfloat16, 64, torch.device("cuda")) > left


def test_what_gpus_have_left_for_the_kv_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", num_heads=9, num_kv_heads=3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    cuda = torch.device("cuda")
    alone, pair, three = (memory_for_kv(config, torch.bfloat16, 64, cuda, ranks) for ranks in (1, 2, 3))
    # Two of the three heads are on the first GPU, which has a little more room than if it had all of the weights.
    assert alone * 3 // 2 < pair < alone * 1.51
    assert alone * 3 < three < alone * 3.02
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: "):
        memory_for_kv(config, torch.bfloat16, 64, cuda, 4)


def test_each_rank_takes_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "missing", lambda name: [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert require_device("cuda", 2) == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: 3 ranks take a GPU each, and 2 can be seen here$"):
        require_device("cuda", 3)
    assert require_device("cpu", 3) == torch.device("cpu")


def test_weights_go_to_their_device_one_by_one() -> None:
    model = tiny_decoder("llama")
    moved = DeviceWeights(model.weights, torch.float32, torch.device("meta"))
    assert list(moved) == list(model.weights) and len(moved) == len(model.weights)
    assert moved["embed"].device.type == "meta"
    assert placement(moved) == (torch.float32, torch.device("meta"))
    assert all(each.device.type == "cpu" for each in model.weights.values())
