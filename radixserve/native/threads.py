"""How many threads this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores in this process's affinity mask, fewer where a cgroup (v2, then v1) grants less CPU time; at least 1.

    A quota of 1.5 cores counts as 2: a thread that waits for its quota now and then beats a core left idle.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Granted CPU time in cores; None where there is no limit."""
    try:
        granted, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            granted = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not granted.isdigit() or not period.isdigit() or int(granted) == 0 or int(period) == 0:
        return None
    return int(granted) / int(period)
