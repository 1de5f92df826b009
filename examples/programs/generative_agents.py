"""Generative agents (arXiv 2304.03442): inhabitants of a town who rate, think about and react to what happens to them.

All share the description of the town; what an inhabitant is asked about an event is asked in parallel, after everything
that he or she remembers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows, text
from radixlang import ProgramState, function, gen, select

TOWN = text("town")
REACTIONS = ["goes on with the work", "goes to talk with somebody", "changes the plan for the day"]


def introduce(agent: dict[str, Any]) -> str:
    """Who the agent is, and what he or she remembers."""
    remembered = "\n".join(f"- {memory}" for memory in agent["memories"])
    return (
        f"\n{agent['name']}, {agent['age']}, is a {agent['trade']}: {agent['traits']}. Home: {agent['home']}. "
        f"{agent['name']} wants {agent['goal']}. {agent['name']} remembers:\n{remembered}\n"
    )


@function
def program(s: ProgramState, agent: dict[str, Any]) -> None:
    """Live through the agent's events, and plan the rest of the day."""
    name = agent["name"]
    s += TOWN + introduce(agent)
    for number, event in enumerate(agent["events"], 1):
        s += f"\nEvent {number}: {event}\n"
        rating, thought, reaction = branches = s.fork(3)
        rating += "Importance, from 1 to 9: " + gen("importance", regex="[1-9]", max_tokens=2)
        thought += f"{name} thinks that" + gen("thought", max_tokens=32, stop="\n")
        reaction += f"{name} " + select("reaction", choices=REACTIONS)
        branches.join()
        s += f"Importance {rating['importance']}. {name} thinks that{thought['thought']}\n{name} {reaction['reaction']}.\n"
    s += f"\nIn the evening {name} will" + gen("plan", max_tokens=48, stop="\n")


def inputs(count: int = 6, path: Path | None = None) -> list[dict[str, Any]]:
    """Inhabitants. ``path``: a file of ``name``, ``age``, ``trade``, ``traits``, ``home``, ``goal``, ``memories``, ``events``."""
    return [{"agent": row} for row in rows("agents", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(s["plan"]).strip()


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
