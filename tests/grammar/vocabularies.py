"""Vocabularies for tests of grammars: one token a byte, and what makes a difference besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixserve.constraints import StructuralTag, Tag
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.grammar.llguidance_matcher import LLGuidanceMatcher
from radixserve.model.tokenizer import Tokenizer
from tests.tiny_model import byte_tokenizer


def byte_compiler(seconds: float = 60.0) -> ConstraintCompiler:
    """A compiler over the byte vocabulary; patient, because tests may run on a loaded machine."""
    tokenizer = byte_tokenizer()
    return ConstraintCompiler(tokenizer, tokenizer.eos_ids, seconds=seconds)


def takes(matcher: LLGuidanceMatcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether ``text`` is a whole sentence from where ``matcher`` is; names of special tokens are the tokens."""
    walk = matcher.copy()
    tokens = tokenizer.encode(text)
    return walk.try_consume(tokens) == len(tokens) and walk.accepting


def structural(tags: Sequence[Tag], triggers: Sequence[str], **options: Any) -> StructuralTag:
    """A structural tag of lists."""
    return StructuralTag(tuple(tags), tuple(triggers), **options)
