"""Which tokens a constrained row may draw: what the owner of its grammar tells the sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from radixserve.runtime.selection import IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class TokenChoice:
    """``allowed``: token ids, ascending. The row draws among them as if there were no others.

    ``unending``: those of them that end nothing here, also where they are stop tokens; ``min_tokens`` bans none of them.
    ``settle``: asked for each token drawn; what it returns, the token or another one, is taken. ``error``: why the row
    cannot go on; nothing is drawn then.
    """

    allowed: IndexArray
    unending: tuple[int, ...] = ()
    settle: Callable[[int], int] | None = None
    error: str | None = None


class Choices(Protocol):
    """The choices of a step's constrained rows, which are found while its forward pass runs."""

    def wait(self) -> Mapping[str, TokenChoice]:
        """Row id -> choice, for every row that draws and is constrained; waits until they are found."""
