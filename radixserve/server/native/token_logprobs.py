"""Logprobs as SGLang writes them: ``[logprob, token id, text]``, the text None unless it was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from radixserve.messages import TokenLogprob
from radixserve.model.tokenizer import Tokenizer

# Of one token at one place. The logprob is None where there is none: at position 0, and for what cannot be drawn.
Entry = tuple[float | None, int, str | None]


class LogprobWriter:
    """Writes one request's logprobs. ``texts``: whether each token comes with its text."""

    def __init__(self, tokenizer: Tokenizer, *, texts: bool) -> None:
        self._tokenizer = tokenizer
        self._texts = texts

    def tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> list[Entry]:
        """The tokens ``ids`` themselves; ``logprobs`` belong to the first of them."""
        known = [None if entry is None else entry.logprob for entry in logprobs[: len(ids)]]
        known += [None] * (len(ids) - len(known))
        return [self._entry(token, logprob) for token, logprob in zip(ids, known, strict=True)]

    def tops(self, logprobs: Iterable[TokenLogprob | None], count: int) -> list[list[Entry] | None]:
        """The ``count`` most likely tokens at each place."""
        return [None if entry is None else self._pairs(entry.top[:count]) for entry in logprobs]

    def asked(self, logprobs: Iterable[TokenLogprob | None]) -> list[list[Entry] | None]:
        """The tokens of ``token_ids_logprob`` at each place."""
        return [None if entry is None else self._pairs(entry.asked) for entry in logprobs]

    def _pairs(self, pairs: Iterable[tuple[int, float]]) -> list[Entry]:
        return [self._entry(token, logprob) for token, logprob in pairs]

    def _entry(self, token: int, logprob: float | None) -> Entry:
        return (logprob, token, self._tokenizer.token_text(token) if self._texts else None)
