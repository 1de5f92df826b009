"""What the process may use, read from a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixserve.errors import ConfigError
from radixserve.runtime import machine
from radixserve.runtime.machine import UNKNOWN_MEMORY, available_memory, pool_blocks, returning_freed_memory
from tests.tiny_decoder import tiny_config


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, UNKNOWN_MEMORY),
        (MEMINFO, 4000 << 10),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "5\n",
                "sys/fs/cgroup/a/memory.max": "3000\n",
                "sys/fs/cgroup/a/memory.current": "1000\n",
            },
            2000,
        ),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/path/of/the/host\n",
                "sys/fs/cgroup/memory.max": "7000\n",
                "sys/fs/cgroup/memory.current": "8000\n",
            },
            0,
        ),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            },
            5000,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_memory(write(tmp_path, files)) == expected


def test_this_machine() -> None:
    assert available_memory() > 0


def test_pool_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama")
    block_bytes = config.kv_bytes_per_token(2) * 16
    monkeypatch.setattr(machine, "available_memory", lambda: 100 * block_bytes)
    sizes: dict[str, Any] = {"block_size": 16, "kv_dtype": torch.bfloat16}
    assert pool_blocks(config, **sizes) == 50
    assert pool_blocks(config, block_size=16, kv_dtype=torch.int8) == 50 * (16 * 2) // (16 + 2)
    assert pool_blocks(config, **sizes, num_blocks=100) == 100
    with pytest.raises(ConfigError, match="num_blocks: 101 KV blocks take"):
        pool_blocks(config, **sizes, num_blocks=101)
    with pytest.raises(ConfigError, match=r"kv_memory_mb: .* of memory are free"):
        pool_blocks(config, **sizes, kv_memory_mb=1)
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 50)
    assert pool_blocks(config, **sizes, kv_memory_mb=1) == (1 << 20) // block_bytes
    assert pool_blocks(config, **sizes, num_blocks=7, kv_memory_mb=1) == 7
    assert pool_blocks(config, **sizes) == machine.POOL_LIMIT // block_bytes
    monkeypatch.setattr(machine, "available_memory", lambda: 3 * block_bytes)
    with pytest.raises(ConfigError, match="hold 1 KV blocks"):
        pool_blocks(config, **sizes)


def test_freed_memory_is_given_back_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    glibc = SimpleNamespace(
        mallopt=lambda option, value: calls.append((f"option {option}", value)),
        malloc_trim=lambda pad: calls.append(("trim", pad)),
    )
    monkeypatch.setattr("ctypes.CDLL", lambda name: glibc)
    with pytest.raises(ConfigError), returning_freed_memory():
        raise ConfigError("model", "cannot be loaded")
    assert calls == [("option -3", 1 << 20), ("option -3", 32 << 20), ("option -1", 64 << 20), ("trim", 0)]
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    with returning_freed_memory():
        calls.clear()
    assert not calls
