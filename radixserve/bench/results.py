"""Results as files."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import msgspec

_DIGITS = 6


def created_now() -> str:
    """The time of day, in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def write_result(report: Any, path: Path) -> None:
    """Write a report as JSON; numbers keep six significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(report))), indent=1) + b"\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return value
