"""A judge by branch, solve, merge (arXiv 2310.15123): an essay is looked at from several sides at once, then graded.

The essay is computed once for all sides; the opinions are then read together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, select, system, user

RULES = (
    "You judge the essays of pupils for a school paper. You are fair and exact. You quote a word or two from the essay to show "
    "what you mean, you say what is good before you say what is not, and you never judge the opinion of the writer, only how "
    "well it is argued and written."
)
SIDES = {
    "clarity": "Is it clear what the writer wants to say, and does every paragraph serve it?",
    "evidence": "Are claims supported by facts, numbers or examples, and are these to the point?",
    "balance": "Are the best reasons of the other side named, and answered?",
    "language": "Are the sentences well made, the words exact, the tone even?",
    "ending": "Does the essay end with something that the reader will remember?",
}
GRADES = ["A", "B", "C", "D", "E"]
MERGE = "These are the opinions of the jury. Which grade, from A (excellent) to E (poor), does the essay deserve?\n\n"


@function
def program(s: ProgramState, topic: str, essay: str) -> None:
    """Judge from all sides, and grade."""
    s += system(RULES) + user(f"Topic: {topic}\n\nEssay: {essay}") + assistant("I have read it.")
    branches = s.fork(len(SIDES))
    for branch, (side, question) in zip(branches, SIDES.items(), strict=True):
        branch += user(f"Judge its {side}. {question} Answer in two sentences.")
        branch += assistant(gen("opinion", max_tokens=64))
    branches.join()
    opinions = "\n".join(f"{side}: {opinion}" for side, opinion in zip(SIDES, s["opinion"], strict=True))
    s += user(MERGE + opinions) + assistant("Grade: " + select("grade", choices=GRADES))


def inputs(count: int = 4, path: Path | None = None) -> list[dict[str, Any]]:
    """Essays. ``path``: a file of ``topic`` and ``essay``."""
    return [{"topic": row["topic"], "essay": row["essay"]} for row in rows("essays", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return f"{s['grade']}, clarity: {s['opinion'][0]}".replace("\n", " ")


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
