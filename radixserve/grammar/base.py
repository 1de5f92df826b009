"""What the engine needs of a grammar, whoever implements it.

A constraint is compiled once and matched by any number of matchers; a matcher follows the output of one sequence, token by
token. None of this loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

MaskArray = npt.NDArray[np.uint32]
"""Bit ``t % 32`` of word ``t // 32`` says whether token ``t`` may come next."""


class Vocabulary(Protocol):
    """What a grammar needs of a model's tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Width of the model's logits; ids that no token has stand for no bytes."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: they are not the characters of their names."""

    @property
    def added_ids(self) -> frozenset[int]:
        """Tokens that stand outside the merges; those that are special among them."""

    def all_token_bytes(self) -> Sequence[bytes]:
        """The bytes that each id stands for."""

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of a text in the middle of another one: nothing is added to it, names of special tokens are text."""

    def id_of(self, name: str) -> int | None:
        """The token that the vocabulary writes as ``name``."""


class Matcher(Protocol):
    """One sequence's place in a grammar.

    Every verb but `copy` raises `MatcherFailed` when the grammar's limits of work are exceeded; the matcher is of no use
    then. Not thread-safe.
    """

    @property
    def accepting(self) -> bool:
        """Whether what was consumed is a complete sentence."""

    @property
    def stopped(self) -> bool:
        """Whether it is complete and nothing but an end token can follow."""

    def fill_mask(self, mask: MaskArray) -> None:
        """Write which tokens may come next; end tokens are among them exactly where the sentence is complete."""

    def consume(self, token: int) -> None:
        """Move on by a token that the mask allows."""

    def try_consume(self, tokens: Sequence[int]) -> int:
        """Move on by as many of ``tokens`` as may follow one another; returns how many."""

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one another, without moving on."""

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, as the tokenizer itself would write them; often none."""

    def forced_bytes(self) -> bytes:
        """Bytes that must come next, also where it is open which tokens they are written with."""

    def rollback(self, count: int) -> None:
        """Take the last ``count`` tokens back."""

    def copy(self) -> Matcher:
        """A matcher at the same place that goes its own way."""
