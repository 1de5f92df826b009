"""The engine's tokenizer as llguidance wants it."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from radixserve.grammar.base import Vocabulary
from radixserve.grammar.special_tokens import special_token_ids


def build_tokenizer(vocabulary: Vocabulary, eos_ids: Sequence[int]) -> llguidance.LLTokenizer:
    """The tokenizer over ``vocabulary`` in which ``eos_ids`` (at least one) end a sentence. Takes some 0.3 s."""
    wrapper = llguidance.TokenizerWrapper(_Adapter(vocabulary, eos_ids[0]))
    return llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.vocab_size, eos_token=list(eos_ids))


class _Adapter:
    """The names that `llguidance.TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.tokens = list(vocabulary.all_token_bytes())
        self.special_token_ids = sorted(special_token_ids(vocabulary))
        self._vocabulary = vocabulary

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.encode_continuation(text if isinstance(text, str) else text.decode())
