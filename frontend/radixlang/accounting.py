"""What each call of a program cost: one record for each, in the order in which they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from radixlang.backends.base import Usage
from radixlang.token_keys import TokenKey, token_key

Kind = Literal["gen", "select", "hold"]


@dataclass(frozen=True, slots=True)
class Record:
    """One call to the model.

    ``variable``: the one that it set, None for a `gen` without a name and for holds. ``branch``: which state of the program made
    it. ``prompt``: the tokens that were sent, healed ones left out. ``outputs``: of each sample all its tokens, of a `select`
    the tokens of each continuation. On text backends ``prompt`` and ``outputs`` are empty. ``ended``: seconds of the ledger's clock.
    """

    variable: str | None
    kind: Kind
    branch: str
    usage: Usage
    prompt: TokenKey
    outputs: tuple[TokenKey, ...]
    ended: float


class Ledger:
    """The records of one program. Whoever runs it adds to them; any thread may read them meanwhile.

    ``clock``: seconds from an arbitrary beginning, the same for all ledgers of a batch.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._records: list[Record] = []

    def record(
        self,
        variable: str | None,
        kind: Kind,
        usage: Usage,
        prompt: Sequence[int] = (),
        outputs: Sequence[Sequence[int]] = (),
        branch: str = "",
    ) -> None:
        """A call has just ended. Call this before anything that uses its output is sent, so that the order shows what came of what."""
        keys = tuple(token_key(output) for output in outputs)
        self._records.append(Record(variable, kind, branch, usage, token_key(prompt), keys, self._clock()))

    def records(self) -> tuple[Record, ...]:
        """All calls that have ended so far, in that order."""
        return tuple(self._records)
