"""What advice is found in: the prompts of a plan, and how they are read and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from radixserve.model.tokenizer import Tokenizer
from radixserve.planner.replay import Prompt, tokens_to_compute

# Shorter runs of equal tokens are chance.
LEAST_RUN = 32
_QUOTED = 80


@dataclass(slots=True)
class Evidence:
    """``prompts`` in the order of their arrival. ``base``: what they cost as they are, by `tokens_to_compute`."""

    prompts: Sequence[Prompt]
    tokenizer: Tokenizer
    block_size: int
    base: int = field(init=False)
    _bytes: Sequence[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.base = tokens_to_compute(self.prompts, self.block_size)
        self._bytes = self.tokenizer.all_token_bytes()

    @property
    def least(self) -> int:
        """Savings below this are not worth a line: two blocks, and half a percent of what is computed."""
        return max(2 * self.block_size, self.base // 200)

    def saves(self, changed: Mapping[int, Sequence[int]]) -> int:
        """What is saved where the prompts at the indices ``changed`` have other tokens."""
        return self.base - tokens_to_compute(self.with_tokens(changed), self.block_size)

    def with_tokens(self, changed: Mapping[int, Sequence[int]]) -> list[Prompt]:
        """The prompts with other tokens at the indices ``changed``."""
        return [
            replace(prompt, tokens=tuple(changed[index])) if index in changed else prompt
            for index, prompt in enumerate(self.prompts)
        ]

    def data(self, tokens: Sequence[int]) -> bytes:
        """The bytes that tokens stand for."""
        return b"".join(self._bytes[token] for token in tokens)

    def token_data(self, token: int) -> bytes:
        """The bytes of one token."""
        return self._bytes[token]

    def text(self, tokens: Sequence[int]) -> str:
        """Their text."""
        return self.data(tokens).decode("utf-8", "replace")

    def quote(self, tokens: Sequence[int]) -> str:
        """The beginning of their text, in one line."""
        text = " ".join(self.text(tokens[:_QUOTED]).split())
        return text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…"
