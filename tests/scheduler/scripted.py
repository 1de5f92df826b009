"""A continuation without a grammar: what must follow is a hash of the output so far."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.messages import FinishReason
from radixserve.scheduler.request import Ending, Follow


class Scripted:
    """``number`` tells one script from another. ``vocab_size``: forced tokens are below it; ``ends``: whether it ends outputs.

    ``length``: once the output is so long, nothing follows any more.
    """

    def __init__(
        self,
        number: int,
        vocab_size: int,
        *,
        ends: bool = True,
        output: Sequence[int] = (),
        length: int | None = None,
    ) -> None:
        self.number = number
        self.length = length
        self.vocab_size = vocab_size
        self.ends = ends
        self.output = list(output)

    def begin(self) -> Follow:
        """What the output begins with."""
        return self._follow()

    def repeats(self, token: int) -> bool:
        return False

    @property
    def over(self) -> bool:
        """Whether the output is as long as the script."""
        return self.length is not None and len(self.output) >= self.length

    def after(self, token: int) -> Follow:
        """What follows the output so far and ``token``."""
        self.output.append(token)
        return self._follow()

    def copy(self) -> Scripted:
        """One that goes its own way."""
        return Scripted(self.number, self.vocab_size, ends=self.ends, output=self.output, length=self.length)

    def _follow(self) -> Follow:
        if self.over:
            return Follow()
        mixed = hash((self.number, *self.output))
        tokens = [hash((mixed, index)) % self.vocab_size for index in range((0, 0, 1, 3, 9)[mixed % 5])]
        self.output += tokens
        ends = self.ends and mixed // 5 % 8 == 0
        return Follow(tuple(tokens), Ending(FinishReason.STOP, "script") if ends else None)
