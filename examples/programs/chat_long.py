"""Multi-turn chat with long answers: what the model said itself is most of what its next prompt begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, system, user

RULES = "You are an adviser. You answer in full sentences, consider what has been said before, and give reasons."
LIMIT = 128
# A small model tends to say the same again and again.
FREQUENCY_PENALTY = 0.5


@function
def program(s: ProgramState, turns: list[str]) -> None:
    """Answer the turns of a conversation."""
    s += system(RULES)
    for number, turn in enumerate(turns, 1):
        s += user(turn) + assistant(gen(f"answer {number}", max_tokens=LIMIT, frequency_penalty=FREQUENCY_PENALTY))


def inputs(count: int = 6, path: Path | None = None) -> list[dict[str, Any]]:
    """Conversations. ``path``: a file of ``turns``, as MT-Bench's."""
    return [{"turns": row["turns"]} for row in rows("chats", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(s["answer 1"]).replace("\n", " ")


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
