"""JSON decoding: letters of customers read into records of one type; the output always is one.

The instructions and the worked example are the same for all letters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from examples.programs.command import run
from examples.programs.dataset import rows
from radixlang import ProgramState, assistant, function, gen, system, user

RULES = (
    "You work at the desk of a shop for outdoor equipment and enter letters of customers into a register. For each letter you "
    "write a JSON object with these fields. customer: the full name of the one who writes. city: where he or she lives, an empty "
    "text if the letter does not say. order: the number of the order. kind: one of missing, damaged, wrong, payment, delivery, "
    "question, praise. refund: true if money is asked for, otherwise false. summary: what the letter wants from us, in at most ten "
    "words. Names are written as in the letter. Something that is loose, bent or does not work is damaged; another thing than the "
    "one that was ordered is wrong; a thing that is not in the parcel is missing. If a letter has several matters, the one that costs us "
    "most counts. Nothing is invented: what a letter does not say is not entered."
)
LETTER = (
    "I bought a stove from you, order 70311, and it is a pleasure to cook on it. But the bag that was to come with it was not "
    "in the parcel. Could you send it to me? Best wishes from Graz, Paul Steiner"
)
RECORD = (
    '{"customer":"Paul Steiner","city":"Graz","order":70311,"kind":"missing","refund":false,'
    '"summary":"Send the bag of the stove"}'
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the register."""

    customer: str
    city: str
    order: int
    kind: Literal["missing", "damaged", "wrong", "payment", "delivery", "question", "praise"]
    refund: bool
    summary: str


@function
def program(s: ProgramState, letter: str) -> None:
    """Read a letter."""
    s += system(RULES) + user(LETTER) + assistant(RECORD) + user(letter)
    s += assistant(gen("entry", dtype=Entry, max_tokens=96, finish_json=True))


def inputs(count: int = 10, path: Path | None = None) -> list[dict[str, Any]]:
    """Letters. ``path``: a file of ``letter``."""
    return [{"letter": row["letter"]} for row in rows("letters", path)[:count]]


def answer(s: ProgramState) -> str:
    """What a run brought, in a line."""
    return str(asdict(s["entry"]))


def main() -> None:
    """Run it on the embedded model and print results and report."""
    run(program, inputs, answer, __doc__)


if __name__ == "__main__":
    main()
