"""What the machine can do at most: bandwidths and peaks, measured in about two seconds by code that shares nothing with the kernels."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native.build import find_compiler
from radixserve.native.threads import usable_cores

SOURCE = Path(__file__).parent / "src" / "limits.cpp"
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared")
_DRAM_BYTES = 256 << 20
_MOST_CACHE_BYTES = 24 << 20
_TRIALS = 7
_TRIAL_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all ``threads`` together: bytes a second read from memory and from the last-level cache, operations a second (a
    multiply-add is two).

    A peak for which the CPU has no instruction is that of ``fp32``.
    """

    threads: int
    dram: float
    cache: float
    bf16: float
    int8: float
    fp32: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a result comes from. ``limits``: None where they could not be measured."""

    cpu: str
    cores: int
    limits: Limits | None


def describe_machine(limits: Limits | None) -> Machine:
    """This machine, with limits measured before."""
    return Machine(_cpu_name(), usable_cores(), limits)


def measure_limits(threads: int = 0) -> Limits:
    """Measure with ``threads`` threads (0: the cores this process may use); the best of several trials each.

    Raises `NativeUnavailable` where there is no C++ compiler.
    """
    count = threads or usable_cores()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(count) as pool:
        probe = _Probe(_compile(Path(directory)), pool, count)
        fp32 = probe.peak("rs_fp32")
        return Limits(
            threads=count,
            dram=probe.bandwidth(_DRAM_BYTES),
            cache=probe.bandwidth(min(_MOST_CACHE_BYTES, _cache_bytes() // 2)),
            bf16=probe.peak("rs_bf16") or fp32,
            int8=probe.peak("rs_int8") or fp32,
            fp32=fp32,
        )


def read_limits(path: Path) -> Limits:
    """Limits as JSON, or those inside the file of an earlier result; raises `ConfigError`."""
    try:
        data = msgspec.json.decode(path.read_bytes())
        if isinstance(data, dict) and "machine" in data:
            data = data["machine"]["limits"]
        return msgspec.convert(data, Limits)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ConfigError("limits", f"cannot read {path}: {error}") from error


class _Probe:
    """The compiled loops, run on all threads of ``pool`` at once."""

    def __init__(self, library: ctypes.CDLL, pool: ThreadPoolExecutor, threads: int) -> None:
        self._library = library
        self._pool = pool
        self._threads = threads

    def bandwidth(self, size: int) -> float:
        """Bytes a second over ``size`` bytes, of which each thread reads its own part."""
        share = size // self._threads // 4096 * 4096
        data = np.ones(share * self._threads, np.uint8)
        starts = [data.ctypes.data + index * share for index in range(self._threads)]

        def run(times: int) -> float:
            jobs = [self._pool.submit(self._library.rs_read, start, share, times) for start in starts]
            for job in jobs:
                job.result()
            return float(share * self._threads * times)

        return self._best(run)

    def peak(self, name: str) -> float:
        """Operations a second; 0 where the CPU has no instruction for it."""
        function = self._library[name]
        function.restype = ctypes.c_double
        function.argtypes = (ctypes.c_long,)

        def run(times: int) -> float:
            jobs = [self._pool.submit(function, times * 1000) for _ in range(self._threads)]
            return float(sum(job.result() for job in jobs))

        return self._best(run)

    def _best(self, run: Callable[[int], float]) -> float:
        """The best rate of several trials of at least `_TRIAL_SECONDS`; ``run(times)`` returns what it did."""
        times = 1
        while True:
            began = time.perf_counter()
            done = run(times)
            seconds = time.perf_counter() - began
            if done == 0 or seconds >= _TRIAL_SECONDS:
                break
            times *= 2
        best = done / seconds
        for _ in range(_TRIALS - 1):
            began = time.perf_counter()
            done = run(times)
            best = max(best, done / (time.perf_counter() - began))
        return best


def _compile(directory: Path) -> ctypes.CDLL:
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailable("the limits of this machine cannot be measured: no C++ compiler found")
    target = directory / "limits.so"
    command = [compiler, *_FLAGS, str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NativeUnavailable(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    library = ctypes.CDLL(str(target))
    library.rs_read.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.rs_read.restype = None
    return library


def _cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache of the first core; 32 MiB where that is not told."""
    sizes = [0]
    for path in root.glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes) or 32 << 20


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or os.uname().machine
