"""FlashInfer's compiled modules on the machine at hand: which are there, which were compiled, which each check needs."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.gpu_bed import Bed
from bench.gpu_compile import specs
from radixserve.attention.flashinfer.backend import FlashInferAttention

# What a step of the served model takes; short ones first. Prefill's FA3 is used where it is there, and never waited for.
ESSENTIAL = ("page", "silu_and_mul", "norm", "rope", "cascade", "fa2_bfloat16_bfloat16_64")
FA3 = "fa3_bfloat16_bfloat16_64"
OF_CHECK = {
    "windows": ("fa2_bfloat16_bfloat16_64_window",),
    "soft_cap": ("fa2_bfloat16_bfloat16_64_softcap",),
    "heads_of_128": ("fa2_bfloat16_bfloat16_128",),
    "half_precision": ("fa2_float16_float16_64",),
    "float8_store": ("fa2_bfloat16_float8_e4m3fn_64",),
}


class NotBuilt(Exception):
    """A check needs a module that nobody has compiled."""


def built(names: Iterable[str], architecture: str = "9.0") -> dict[str, str | None]:
    """Of each module ``prebuilt``, ``compiled`` here before, or None."""
    return {name: _state(spec) for name, spec in _specs(names, architecture).items()}


def module_names() -> dict[str, str]:
    """FlashInfer's own names of all modules that checks need, by ours."""
    optional = [FA3, *(name for names in OF_CHECK.values() for name in names)]
    return {name: str(spec.name) for name, spec in _specs([*ESSENTIAL, *optional], "9.0").items()}


def modules(bed: Bed) -> dict[str, Any]:
    """Compile what is missing of the essential modules, all at once, and say what that took."""
    bed.need_gpu("a CPU runs none of FlashInfer's kernels")
    missing = {name: spec for name, spec in _specs(ESSENTIAL, "9.0").items() if _state(spec) is None}
    with ThreadPoolExecutor(max(1, len(missing))) as pool:
        seconds = dict(zip(missing, pool.map(lambda spec: _seconds(spec.build), missing.values()), strict=True))
    return {"compiled_here_s": seconds, "states": built(module_names())}


def told(found: dict[str, Any]) -> str:
    """What `modules` found, in a line for a reader."""
    compiled = [f"{name} {seconds:.0f} s" for name, seconds in found["compiled_here_s"].items()]
    prebuilt = [name for name, state in found["states"].items() if state == "prebuilt"]
    missing = [name for name, state in found["states"].items() if state is None]
    parts = (("compiled here", compiled), ("prebuilt", prebuilt), ("not there", missing))
    return "modules: " + "; ".join(f"{what}: {', '.join(names) or 'none'}" for what, names in parts)


def prepare(check: str) -> None:
    """Choose kernels that are there. Raises `NotBuilt` where the check needs one that is not."""
    extend_include_path()
    if built([FA3])[FA3] is None:
        FlashInferAttention.prefill_backend = "fa2"
    if missing := [name for name, state in built(OF_CHECK.get(check, ())).items() if state is None]:
        raise NotBuilt(f"needs {', '.join(missing)}, which is not compiled")


def extend_include_path(environment: Any = os.environ) -> None:
    """Let nvcc find the headers of CUDA's libraries among torch's packages, which a bare toolkit lacks."""
    packages = importlib.util.find_spec("nvidia")
    places = packages.submodule_search_locations if packages else None
    found = [str(each) for place in places or [] for each in sorted(Path(place).glob("*/include"))]
    known = [each for each in environment.get("CPATH", "").split(os.pathsep) if each and each not in found]
    if found:
        # An empty one would mean the folder one is in.
        environment["CPATH"] = os.pathsep.join([*known, *found])


def _specs(names: Iterable[str], architecture: str) -> dict[str, Any]:
    makers = dict(specs(architecture))
    return {name: makers[name]() for name in names}


def _state(spec: Any) -> str | None:
    if spec.is_aot:
        return "prebuilt"
    return "compiled" if spec.is_compiled else None


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
