"""The loaded kernel library."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native import abi
from radixserve.native.build import find_or_compile
from radixserve.native.threads import usable_cores

Isa = Literal["v4", "v3", "generic"]
ISA_VARIABLE = "RADIXSERVE_ISA"
LIBRARY_VARIABLE = "RADIXSERVE_NATIVE_LIBRARY"


@dataclass(frozen=True, slots=True)
class KvTraffic:
    """KV bytes since the last reset: brought in by attention, and what it would have been had no two requests shared a read."""

    read: int
    asked: int
    tasks: int


class NativeLibrary:
    """The kernels of this process: one instruction set and one thread pool, both chosen for the whole process.

    ``RADIXSERVE_ISA`` (``v4``, ``v3``, ``generic``) overrides the choice by cpuid, ``RADIXSERVE_NATIVE_LIBRARY`` the file that is loaded.
    """

    def __init__(self, path: Path) -> None:
        """Load the library at ``path``; raises `NativeUnavailable`, or `ConfigError` where the environment asks for what this CPU lacks."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailable(f"cannot load {path}: {error}") from error
        abi.declare(self._library)
        if (version := self._library.rs_abi_version()) != abi.ABI_VERSION:
            raise NativeUnavailable(f"{path} has ABI version {version}, not {abi.ABI_VERSION}")
        if wanted := os.environ.get(ISA_VARIABLE):
            self.set_isa(wanted)
        self.set_threads(usable_cores())

    @staticmethod
    @functools.cache
    def load() -> NativeLibrary:
        """The library, compiled at first use where no compiled one is found; raises `NativeUnavailable` with the reason."""
        chosen = os.environ.get(LIBRARY_VARIABLE)
        return NativeLibrary(Path(chosen) if chosen else find_or_compile())

    @property
    def isa(self) -> Isa:
        """The instruction set that runs: ``v4`` (AVX-512 with BF16 and VNNI), ``v3`` (AVX2 with FMA) or ``generic``."""
        name: bytes = self._library.rs_isa()
        return _isa(name.decode())

    def set_isa(self, name: str) -> Isa:
        """Choose an instruction set, or ``auto``; raises `ConfigError` where this CPU or this build lacks it."""
        chosen: bytes | None = self._library.rs_set_isa(name.encode())
        if chosen is None:
            raise ConfigError(ISA_VARIABLE, f"this CPU cannot run {name!r}; known are auto, {', '.join(get_args(Isa))}")
        return _isa(chosen.decode())

    def available_isas(self) -> list[Isa]:
        """The instruction sets that this CPU can run, best first."""
        now = self.isa
        names: list[Isa] = [name for name in get_args(Isa) if self._library.rs_set_isa(name.encode()) is not None]
        self.set_isa(now)
        return names

    @property
    def threads(self) -> int:
        """Threads that work on a call, the caller's included."""
        count: int = self._library.rs_threads()
        return count

    def set_threads(self, count: int) -> int:
        """Use ``count`` threads; returns what was granted (1 to 256). Results do not depend on it."""
        granted: int = self._library.rs_set_threads(count)
        return granted

    def run(self, ops: ctypes.Array[abi.OpStruct], batch: abi.BatchStruct) -> None:
        """Run operations in order. Everything they point to must be alive and of the sizes they state: nothing is checked here.

        Raises `MemoryError` where the library's scratch memory cannot grow.
        """
        status = abi.Status(self._library.rs_run(ops, len(ops), ctypes.byref(batch)))
        if status is abi.Status.NO_MEMORY:
            raise MemoryError("the kernels' scratch memory cannot grow")
        assert status is abi.Status.OK, status

    def kv_traffic(self) -> KvTraffic:
        """KV bytes read by attention since `reset_counters`."""
        counters = self._counters()
        return KvTraffic(counters.kv_bytes_read, counters.kv_bytes_asked, counters.attention_tasks)

    def operations_by_rows(self) -> int:
        """Operations that rows were taken through by themselves since `reset_counters`."""
        return int(self._counters().operations_by_rows)

    def _counters(self) -> abi.CountersStruct:
        counters = abi.CountersStruct()
        self._library.rs_counters(ctypes.byref(counters))
        return counters

    def reset_counters(self) -> None:
        """Start counting anew."""
        self._library.rs_reset_counters()


def _isa(name: str) -> Isa:
    for known in get_args(Isa):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise AssertionError(name)
