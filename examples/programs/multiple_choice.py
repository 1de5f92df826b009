"""Few-shot multiple choice, as in MMLU: five worked questions of a subject, then one to answer with a letter.

All questions of a subject share its five; the letter is chosen by the scores of all four.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, function, select

LETTERS = ["A", "B", "C", "D"]
SHOTS = 5


def ask(question: str, choices: list[str]) -> str:
    """A question with its choices, up to where the letter goes."""
    listed = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True)]
    return "\n".join([question, *listed, "Answer: "])


def introduce(subject: str) -> str:
    """The line before the worked questions."""
    return f"Questions about {subject.replace('_', ' ')}. One of the four answers to each is right.\n\n"


@function
def program(s: ProgramState, subject: str, examples: list[dict[str, Any]], question: str, choices: list[str]) -> None:
    """Choose a letter."""
    s += introduce(subject)
    for example in examples:
        s += ask(example["question"], example["choices"]) + LETTERS[example["answer"]] + "\n\n"
    s += ask(question, choices) + select("letter", choices=LETTERS)


def inputs(count: int = 24, path: Path | None = None) -> list[dict[str, Any]]:
    """Questions of all subjects in turns, so that neighbours in the batch share nothing.

    ``path``: a file of ``subject``, ``split`` (``dev`` or ``test``), ``question``, ``choices`` and ``answer`` (an index).
    """
    everything = rows("multiple_choice", path)
    subjects: dict[str, list[dict[str, Any]]] = {}
    for row in everything:
        if row["split"] == "test":
            subjects.setdefault(row["subject"], []).append(row)
    turns = sorted(
        ((turn, subject) for subject, tests in subjects.items() for turn in range(len(tests))),
        key=lambda item: item[0],
    )
    shots = {
        subject: [row for row in everything if row["subject"] == subject and row["split"] == "dev"][:SHOTS]
        for subject in subjects
    }
    chosen = [(subject, subjects[subject][turn]) for turn, subject in turns[:count]]
    return [
        {"subject": subject, "examples": shots[subject], "question": row["question"], "choices": row["choices"]}
        for subject, row in chosen
    ]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    scores = s.meta("letter")["scores"]
    return f"{s['letter']}  ({', '.join(f'{letter} {scores[letter]:.2f}' for letter in LETTERS)})"


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
