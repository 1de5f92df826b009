"""Multi-turn chat with short answers: long messages of a user, a few words in return, everything said before in each prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, system, user

RULES = "You are an adviser whose answers fit on a label: at most eight words, no explanation."
LIMIT = 12


@function
def program(s: ProgramState, turns: list[str]) -> None:
    """Answer the turns of a conversation."""
    s += system(RULES)
    for number, turn in enumerate(turns, 1):
        s += user(turn) + assistant(gen(f"answer {number}", max_tokens=LIMIT))


def inputs(count: int = 6, path: Path | None = None) -> list[dict[str, Any]]:
    """Conversations. ``path``: a file of ``turns``, as MT-Bench's."""
    return [{"turns": row["turns"]} for row in rows("chats", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return " | ".join(message["content"] for message in s.messages() if message["role"] == "assistant")


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
