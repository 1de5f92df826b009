"""Small programs that use every primitive."""

from __future__ import annotations

from radixlang import ProgramState, assistant, function, gen, select, system, user

RULES = "Answer every question in a few words, and only in words that stand in the text. "


@function
def threaded(s: ProgramState, question: str) -> None:
    """A ``def`` body: it reads values while it runs, in a thread."""
    s += RULES + question + " " + gen("first", max_tokens=6)
    if s["first"]:
        s += " Is it so? " + select("sure", ["yes", "no", "not at all"])
    branches = s.fork(3)
    for number, branch in enumerate(branches):
        branch += f" Point {number}: " + gen("point", max_tokens=5, temperature=1.0)
    points = [branch["point"] for branch in branches]
    branches.join()
    s += " All: " + "; ".join(points) + gen("last", max_tokens=4)


@function
async def awaited(s: ProgramState, question: str) -> None:
    """An ``async def`` body, in messages, with constraints and samples."""
    s += system(RULES) + user(question)
    s += assistant(gen("number", regex="[0-9]{1,3} (apples|pears)", max_tokens=12))
    number = await s.get("number")
    s += user("Why " + number + "?") + assistant(gen("why", n=2, max_tokens=4, temperature=0.9, seed=5))
    s += user("Which?") + assistant(select("which", ["apples", "pears"]))
    s += user("As JSON.") + assistant(
        gen(
            "json",
            json_schema={"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            max_tokens=20,
        )
    )


QUESTIONS = [{"question": f"What is {number} and {number * 7}?"} for number in range(6)]
