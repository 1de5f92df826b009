"""How many threads a process takes: its affinity, and what its cgroup grants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixserve.native import threads
from radixserve.native.threads import usable_cores


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_threads_follow_affinity_and_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads._quota(tmp_path) == quota
    cores = len(os.sched_getaffinity(0))
    expected = cores if quota is None else max(1, min(cores, -int(-quota // 1)))
    assert usable_cores(tmp_path) == expected


def test_this_machine() -> None:
    assert usable_cores() >= 1
