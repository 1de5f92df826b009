"""A ReAct agent (arXiv 2210.03629): thoughts and searches in an encyclopedia in turns, until it knows the answer.

Every turn goes on where the last one ended, so only what the tool brought has to be computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows, text
from examples.programs.encyclopedia import Article, search
from radixlang import ProgramState, function, gen

EXAMPLES = text("react_examples")
TURNS = 4
ACTION = r"(Search|Finish)\[[A-Za-z0-9 ,'-]{1,40}\]"
LAST_ACTION = r"Finish\[[A-Za-z0-9 ,'-]{1,40}\]"


@function
async def program(s: ProgramState, question: str) -> None:
    """Answer a question with at most `TURNS` actions, of which the last is to finish."""
    s += f"{EXAMPLES}\nQuestion: {question}\n"
    shown: list[Article] = []
    for turn in range(1, TURNS + 1):
        s += f"Thought {turn}:" + gen(f"thought {turn}", max_tokens=48, stop="\n")
        s += f"\nAction {turn}: "
        s += gen(f"action {turn}", max_tokens=24, regex=ACTION if turn < TURNS else LAST_ACTION)
        action, _, argument = (await s.get(f"action {turn}")).removesuffix("]").partition("[")
        if action == "Finish":
            break
        shown += search(argument, besides=shown)
        s += f"\nObservation {turn}: {shown[-1].text}\n"


def inputs(count: int = 8, path: Path | None = None) -> list[dict[str, Any]]:
    """Questions that take two articles to answer. ``path``: a file of ``question``."""
    return [{"question": row["question"]} for row in rows("questions", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    actions = [s[name] for name in (f"action {turn}" for turn in range(1, TURNS + 1)) if name in s]
    return " -> ".join(actions)


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
