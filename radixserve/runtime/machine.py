"""What this process may use of the machine, and the size of the KV pool that follows from it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.runtime.block_store import block_bytes

UNKNOWN_MEMORY = 4 << 30
POOL_SHARE = 0.5
POOL_LIMIT = 8 << 30
UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_WHILE_LOADING = 1 << 20
_MOST_IN_HEAP = 32 << 20


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this process may still allocate: the least of what the kernel and the memory cgroup say, v1 or v2.

    `UNKNOWN_MEMORY` where neither can be read. ``root`` is where /proc and /sys are looked for.
    """
    limits = [_meminfo_available(root), *_cgroup_available(root)]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else UNKNOWN_MEMORY


@contextmanager
def returning_freed_memory() -> Iterator[None]:
    """What is freed within goes back to the system, at the latest at the end, where the C library can do that (glibc).

    For the making of a model, which goes through many times its weights in pieces of a few megabytes. Left alone, glibc keeps such
    pieces in its heap from the first large one that is freed; how many depends on what else the machine does: 60 to 140 MB were seen.
    Afterwards its thresholds are the highest that it would have come to by itself.
    """
    library = ctypes.CDLL(None)
    trim, option = getattr(library, "malloc_trim", None), getattr(library, "mallopt", None)
    if trim is None or option is None:
        yield
        return
    option(_M_MMAP_THRESHOLD, _WHILE_LOADING)
    try:
        yield
    finally:
        option(_M_MMAP_THRESHOLD, _MOST_IN_HEAP)
        option(_M_TRIM_THRESHOLD, 2 * _MOST_IN_HEAP)
        trim(0)


def pool_blocks(
    config: ModelConfig,
    *,
    block_size: int,
    kv_dtype: torch.dtype,
    num_blocks: int | None = None,
    kv_memory_mb: int | None = None,
    device_memory: int | None = None,
) -> int:
    """Size of the KV pool in blocks: ``num_blocks`` if given, else what ``kv_memory_mb`` holds, else half of the
    free memory up to 8 GiB. ``kv_dtype``: of the store. ``device_memory``: the bytes of another device that
    may all be taken, where the pool is there.

    Raises `ConfigError` where that is less than two blocks, or more than there is memory for.
    """
    size = block_bytes(config, block_size, kv_dtype)
    free = available_memory() if device_memory is None else device_memory
    unasked = min(int(free * POOL_SHARE), POOL_LIMIT) if device_memory is None else free
    budget = unasked if kv_memory_mb is None else kv_memory_mb << 20
    blocks = budget // size if num_blocks is None else num_blocks
    option = "kv_memory_mb" if num_blocks is None else "num_blocks"
    if blocks < 2:
        raise ConfigError(option, f"{budget >> 20} MiB hold {blocks} KV blocks of {size} bytes; at least 2 are needed")
    if blocks * size > free:
        raise ConfigError(
            option, f"{blocks} KV blocks take {blocks * size >> 20} MiB, {free >> 20} MiB of memory are free"
        )
    return blocks


def _meminfo_available(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return None


def _cgroup_available(root: Path) -> list[int | None]:
    """What each memory cgroup above this process leaves; one entry per readable limit."""
    left: list[int | None] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit_name, used_name = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit_name, used_name = (
                root / "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        else:
            continue
        # Inside a container the path may name a directory of the host: then only the root of the mount is ours.
        directory = base / path.strip("/")
        for place in dict.fromkeys((directory, *directory.parents, base)):
            if not place.is_relative_to(base):
                continue
            limit, used = _read(place / limit_name).strip(), _read(place / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < UNLIMITED:
                left.append(max(0, int(limit) - int(used)))
    return left


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
