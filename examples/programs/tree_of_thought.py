"""A tree of thought (arXiv 2305.10601): several plans, several solutions of each, all of them rated; the best one answers.

The branches of a level run together and share everything above them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, select, system, user

PLANS, SOLUTIONS = 3, 2
RATINGS = ["1", "2", "3", "4", "5"]
NUMBER = r"[0-9]{1,5}(\.[0-9]{1,2})?"
RULES = (
    "You solve word problems of arithmetic. You first plan, then calculate step by step, each step on a line of its own. You "
    "check every number against the text of the problem, you keep units apart, and you never give a result that you have not "
    "calculated. Money is in dollars unless the problem says otherwise, weeks begin on Monday, and what is shared is shared equally "
    "unless the problem says otherwise."
)
PLAN = "How could it be solved? Give a plan in one or two sentences, without any calculation.\n\nProblem: "
SOLVE = "Now carry out this plan, in at most four short steps."
RATE = "Was each step of this solution right and needed? Rate it from 1 (wrong) to 5 (certainly right)."
CONCLUDE = "Then what is the result? Answer with the number only."


@function
def program(s: ProgramState, problem: str) -> None:
    """Answer with the best of the solutions."""
    s += system(RULES) + user(PLAN + problem)
    solutions = []
    for number, plan in enumerate(s.fork(PLANS)):
        plan += assistant(gen("plan", max_tokens=40, temperature=0.8, seed=number))
        plan += user(SOLVE)
        for choice, solution in enumerate(plan.fork(SOLUTIONS)):
            solution += assistant(gen("solution", max_tokens=72, temperature=0.8, seed=choice))
            solution += user(RATE) + assistant(select("rating", choices=RATINGS))
            solutions.append(solution)
    best = max(solutions, key=lambda solution: int(solution["rating"]))
    s += assistant(best["solution"]) + user(CONCLUDE)
    s += assistant(gen("result", regex=NUMBER, max_tokens=8))


def inputs(count: int = 4, path: Path | None = None) -> list[dict[str, Any]]:
    """Problems. ``path``: a file of ``question``, as GSM8K's."""
    return [{"problem": row["question"]} for row in rows("problems", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(s["result"])


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
