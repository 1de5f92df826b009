"""Compiles every FlashInfer module that the GPU path uses, without a GPU, and tells how long each took.

    python bench/gpu_compile.py [--arch 8.0 9.0] [--modules page cascade ...] [--list] [--out FILE.json]

Needs FlashInfer (`make test-contract` has it, in .venv-contract), ninja, a C++ compiler and nvcc 13: a CUDA toolkit in $CUDA_HOME, or the
packages nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime and nvidia-cublas of one version of CUDA. Prefill
modules take ten minutes and more of one core each. Objects lie where FlashInfer keeps what it compiles
($FLASHINFER_WORKSPACE_BASE), so a second run compiles only what is new.

The driver's library is linked against but not loaded, so an empty one stands in where there is no driver. Every architecture is
compiled by a process of its own, because FlashInfer reads the list of them once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from radixserve.model.flashinfer_library import DRIVER_PLACES, cuda_home, flashinfer

ARCHITECTURES = ("8.0", "9.0")
HEADS = (64, 128)
INDEX = torch.int32
FP8 = torch.float8_e4m3fn
# Queries and outputs, the store: bf16, float16, and bf16 over a float8 store.
DTYPES = ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, FP8))


def specs(architecture: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and maker of the build specification of each module, quick ones first."""
    flashinfer()
    from flashinfer.jit.activation import gen_act_and_mul_module
    from flashinfer.jit.attention import modules
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.page import gen_page_module
    from flashinfer.jit.rope import gen_rope_module

    yield "cascade", gen_cascade_module
    yield "page", gen_page_module
    yield "silu_and_mul", lambda: gen_act_and_mul_module("silu")
    yield "norm", gen_norm_module
    yield "rope", gen_rope_module
    for dtype, kv_dtype in DTYPES:
        for head_dim in HEADS:
            for window, soft_cap in ((False, False), (True, False), (False, True)):
                # dtypes of q, kv and output, of indices; head sizes; no positions; window; soft cap; no fp16 reduction.
                key = (dtype, kv_dtype, dtype, INDEX, head_dim, head_dim, 0, window, soft_cap, False)
                name = "_".join(
                    [str(each).removeprefix("torch.") for each in (dtype, kv_dtype)]
                    + [str(head_dim), *(["window"] if window else []), *(["softcap"] if soft_cap else [])]
                )
                # What decode, prefill and cascade load: FA2 everywhere, and FA3 for long extents on sm_90.
                yield f"fa2_{name}", functools.partial(modules._gen_batch_prefill_primary_module, "fa2", *key)
                if architecture == "9.0" and kv_dtype == dtype:
                    yield f"fa3_{name}", functools.partial(modules.gen_batch_prefill_module, "fa3", *key)


def chosen(architecture: str, wanted: list[str]) -> list[tuple[str, Callable[[], Any]]]:
    """The modules whose names begin with one of ``wanted``; all of them where it is empty."""
    return [(name, make) for name, make in specs(architecture) if not wanted or name.startswith(tuple(wanted))]


def linkable_driver(folder: Path) -> None:
    """Put an empty libcuda.so into ``folder``, for the linker, where no driver has one."""
    if any((Path(place) / "libcuda.so.1").exists() for place in DRIVER_PLACES):
        return
    command = ["cc", "-shared", "-x", "c", os.devnull, "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so")]
    subprocess.run(command, check=True)
    os.environ["LIBRARY_PATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("LIBRARY_PATH")])])


def compile_all(architecture: str, wanted: list[str]) -> list[dict[str, Any]]:
    """Compile for one architecture, in this process; each module's seconds, size and, where it failed, the error."""
    results = []
    for name, make in chosen(architecture, wanted):
        began = time.perf_counter()
        result: dict[str, Any] = {"arch": architecture, "module": name}
        try:
            spec = make()
            spec.build()
            result["bytes"] = spec.get_library_path().stat().st_size
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"[-2000:]
        result["seconds"] = round(time.perf_counter() - began, 1)
        results.append(result)
        print(json.dumps(result), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES), help="compute capabilities")
    parser.add_argument("--modules", nargs="+", default=[], help="only modules whose names begin so")
    parser.add_argument("--list", action="store_true", help="print their names and compile nothing")
    parser.add_argument("--out", type=Path, help="results as JSON")
    options = parser.parse_args()
    if cuda_home() is None and not options.list:
        print("no nvcc: set CUDA_HOME, or install what the head of this file names", file=sys.stderr)
        return 2
    if len(options.arch) > 1:
        return _one_process_each(options)
    (architecture,) = options.arch
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = architecture
    if options.list:
        print("\n".join(name for name, _ in chosen(architecture, options.modules)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        linkable_driver(Path(folder))
        results = compile_all(architecture, options.modules)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(any("error" in result for result in results))


def _one_process_each(options: argparse.Namespace) -> int:
    results: list[dict[str, Any]] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for architecture in options.arch:
            out = Path(folder) / f"{architecture}.json"
            command = [sys.executable, __file__, "--arch", architecture, "--out", str(out)]
            command += ["--modules", *options.modules] if options.modules else []
            command += ["--list"] if options.list else []
            failed |= subprocess.run(command, check=False).returncode
            results += json.loads(out.read_text()) if out.exists() else []
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
