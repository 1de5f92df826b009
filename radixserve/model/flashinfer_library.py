"""FlashInfer: whether it can be used here, what is missing where not, and the one place that imports it.

It is not a dependency of the package but of its extra ``[cuda]``. Its kernels are compiled when they are first used, by
nvcc, unless a package of precompiled ones (``flashinfer-jit-cache``) is installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch

INSTALL = "pip install 'radixserve[cuda]'"
# bfloat16 on tensor cores: Ampere and later.
LEAST_CAPABILITY = (8, 0)
# nvcc as Python packages; of the version of CUDA that torch has headers of, which is why they are no dependency of the extra.
COMPILER_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
# Where drivers and container runtimes put the library of the driver.
DRIVER_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
)


def missing(device: str = "cuda") -> list[str]:
    """What stands between this process and FlashInfer's kernels on ``device``; empty if nothing does.

    Each entry names what to install or change. Looks at torch, the GPU, the library and the compiler, in that order.
    """
    reasons = _missing_gpu(device)
    if importlib.util.find_spec("flashinfer") is None:
        return [*reasons, f"FlashInfer is not installed: {INSTALL}"]
    try:
        flashinfer()
    except (ImportError, OSError, RuntimeError) as error:
        return [*reasons, f"FlashInfer is installed but cannot be imported ({error}): {INSTALL}"]
    if importlib.util.find_spec("flashinfer_jit_cache") is None and cuda_home() is None:
        version = ".".join(str(torch.version.cuda).split(".")[:2])
        packages = " ".join(f"'{name}=={version}.*'" for name in COMPILER_PACKAGES)
        reasons.append(
            "nvcc, which compiles FlashInfer's kernels at first use, is not found: set CUDA_HOME to a CUDA toolkit, "
            f"or pip install {packages}, or install flashinfer-jit-cache"
        )
    return reasons


def _missing_gpu(device: str) -> list[str]:
    if torch.version.cuda is None:
        return [f"torch {torch.__version__} is built without CUDA: install a build of torch for CUDA"]
    if not torch.cuda.is_available():
        return ["torch finds no NVIDIA GPU, or no driver that fits it"]
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        return [f"{torch.cuda.get_device_name(device)} has compute capability {found}, at least {least} is needed"]
    return []


@functools.cache
def flashinfer() -> Any:
    """The library, told where nvcc is. Raises `ImportError` where it is not installed."""
    home = cuda_home()
    if home is not None:
        # It looks for nvcc itself, but not among Python packages, and believes what it finds.
        os.environ["CUDA_HOME"] = str(home)
        if not (home / "lib64").exists():
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radixserve" / "cuda"
            make_linkable(home, cache)
    return importlib.import_module("flashinfer")


def make_linkable(home: Path, links: Path, driver_places: tuple[str, ...] = DRIVER_PLACES) -> None:
    """Let a linker find ``-lcudart`` and ``-lcuda`` beside a toolkit of Python packages.

    Those have the libraries under their full names only, and none of the driver. Makes the plain names in ``links`` and puts
    that folder on ``LIBRARY_PATH``.
    """
    links.mkdir(parents=True, exist_ok=True)
    found = {
        "libcudart.so": sorted((home / "lib").glob("libcudart.so.*")),
        "libcuda.so": [place for each in driver_places for place in sorted(Path(each).glob("libcuda.so.1"))],
    }
    for name, libraries in found.items():
        if libraries:
            new = links / f"{name}.{os.getpid()}"
            new.unlink(missing_ok=True)
            new.symlink_to(libraries[0])
            new.replace(links / name)
    known = [each for each in os.environ.get("LIBRARY_PATH", "").split(os.pathsep) if each and each != str(links)]
    os.environ["LIBRARY_PATH"] = os.pathsep.join([str(links), *known])


def cuda_home() -> Path | None:
    """The first of $CUDA_HOME, $CUDA_PATH, nvcc's on the path, the package's and the system's that is a toolkit.

    That is one with nvcc and headers: an nvcc on the path may be a script that calls the one of another place.
    """
    candidates = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if nvcc := shutil.which("nvcc"):
        candidates.append(Path(nvcc).resolve().parent.parent)
    packages = importlib.util.find_spec("nvidia")
    for place in (packages.submodule_search_locations or []) if packages else []:
        candidates += sorted(Path(place).glob("cu[0-9]*"), reverse=True)
    candidates.append(Path("/usr/local/cuda"))
    parts = ("bin/nvcc", "include/cuda_runtime.h")
    return next((home for home in candidates if all((home / part).exists() for part in parts)), None)
