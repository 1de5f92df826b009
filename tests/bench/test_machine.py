from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixserve.bench import machine
from radixserve.bench.machine import Limits, describe_machine, measure_limits, read_limits
from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native.build import find_compiler


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DRAM_BYTES", 4 << 20)
    monkeypatch.setattr(machine, "_TRIAL_SECONDS", 0.001)
    monkeypatch.setattr(machine, "_TRIALS", 2)
    limits = measure_limits(1)
    assert limits.threads == 1
    # Any machine that can run this reads and computes more than that, and none so much.
    for value in (limits.dram, limits.cache, limits.bf16, limits.int8, limits.fp32):
        assert 1e7 < value < 1e15


def test_without_a_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_compiler", lambda: None)
    with pytest.raises(NativeUnavailable, match="compiler"):
        measure_limits()


def test_limits_are_read_from_results_and_by_themselves(tmp_path: Path, limits: Limits) -> None:
    plain = {name: getattr(limits, name) for name in ("threads", "dram", "cache", "bf16", "int8", "fp32")}
    path = tmp_path / "limits.json"
    for data in (plain, {"kind": "step", "machine": {"limits": plain}}):
        path.write_text(json.dumps(data))
        assert read_limits(path) == limits


@pytest.mark.parametrize(
    "text", ["", "[]", '{"dram": 1}', '{"machine": {}}', '{"machine": {"limits": null}}', '{"machine": 1}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="limits"):
        read_limits(path)
    with pytest.raises(ConfigError, match="limits"):
        read_limits(tmp_path / "nothing.json")


def test_the_cache_is_the_largest(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "512K", "16384K", "broken")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert machine._cache_bytes(tmp_path) == 16 << 20
    assert machine._cache_bytes(tmp_path / "nothing") == 32 << 20


def test_a_machine_has_a_name(limits: Limits) -> None:
    described = describe_machine(limits)
    assert described.cpu and described.cores >= 1 and described.limits == limits
