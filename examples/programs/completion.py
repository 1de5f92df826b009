"""Select-based completion, as in HellaSwag: which of four endings is the likeliest, after worked examples that all share.

The endings of an item are scored as continuations of one prompt, by their mean log probability a token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, function, select

INTRODUCTION = "Short descriptions of what people do, each with the way in which it goes on.\n\n"
SHOTS = 18


def begin(activity_label: str, ctx: str) -> str:
    """A description up to where its ending goes."""
    return f"{activity_label}: {ctx} "


@function
def program(s: ProgramState, examples: list[dict[str, Any]], activity_label: str, ctx: str, endings: list[str]) -> None:
    """Choose an ending."""
    s += INTRODUCTION
    for example in examples:
        s += begin(example["activity_label"], example["ctx"]) + example["endings"][example["label"]] + "\n\n"
    s += begin(activity_label, ctx) + select("ending", choices=endings)


def inputs(count: int = 16, path: Path | None = None) -> list[dict[str, Any]]:
    """Items to complete, all with the same examples.

    ``path``: a file of ``split`` (``train`` or ``val``), ``activity_label``, ``ctx``, ``endings`` and ``label`` (an index).
    """
    everything = rows("completion", path)
    shots = [row for row in everything if row["split"] == "train"][:SHOTS]
    wanted = [row for row in everything if row["split"] == "val"][:count]
    fields = ("activity_label", "ctx", "endings")
    return [{"examples": shots} | {field: row[field] for field in fields} for row in wanted]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(s["ending"])


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
