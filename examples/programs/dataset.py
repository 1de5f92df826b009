"""Inputs of the programs: small files beside this one (data/README.md says how they were made), or files of a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def rows(name: str, path: Path | None = None) -> list[dict[str, Any]]:
    """The records of ``data/<name>.jsonl``, or of ``path`` if one is given."""
    lines = (path or DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def text(name: str) -> str:
    """The text of ``data/<name>.txt``."""
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")
