"""A skeleton of thought (arXiv 2307.15337): the points of an answer first, then all of them written out in parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, system, user

RULES = (
    "You answer questions of people who have little time. You are concrete: every point names something that the reader can do, "
    "look at or ask for. You don't repeat the question, you don't praise it, and you write plain English."
)
SKELETON = (
    "Give the skeleton of an answer to the question below: exactly four points in a numbered list, each of three to eight words, "
    "without any explanation. They should cover the question and not overlap.\n\nQuestion: "
)
EXAMPLE = "What helps against a cold that will not go away?"
EXAMPLE_POINTS = (
    "1. Sleep more than you think you need\n2. Drink warm water all day\n3. Keep the air of the room moist\n"
    "4. See a doctor after ten days\n"
)
POINT = r"[A-Z][a-z]{0,15}( [A-Za-z'-]{1,16}){2,7}"
POINTS = rf"1\. {POINT}\n2\. {POINT}\n3\. {POINT}\n4\. {POINT}\n"
EXPAND = "Write out this point of the skeleton in one or two sentences, and nothing of the others: "
CLOSE = "Now add one sentence that sums up all four points."


@function
def program(s: ProgramState, question: str) -> None:
    """Write a skeleton, its points, and a sentence to close with."""
    s += system(RULES) + user(SKELETON + EXAMPLE) + assistant(EXAMPLE_POINTS) + user(SKELETON + question)
    s += assistant(gen("skeleton", regex=POINTS, max_tokens=80, temperature=0.7, seed=0))
    points = s["skeleton"].splitlines()
    branches = s.fork(len(points))
    for branch, point in zip(branches, points, strict=True):
        branch += user(EXPAND + point) + assistant(gen("text", max_tokens=56, temperature=0.7, seed=0))
    branches.join()
    s += user("\n".join(s["text"]) + "\n\n" + CLOSE) + assistant(gen("summary", max_tokens=40, temperature=0.7, seed=0))


def inputs(count: int = 6, path: Path | None = None) -> list[dict[str, Any]]:
    """Questions. ``path``: a file of ``turns``, as MT-Bench's, of which the first is asked."""
    return [{"question": row["turns"][0]} for row in rows("skeleton", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return f"{s['skeleton']}| {s['summary']}".replace("\n", " ")


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
