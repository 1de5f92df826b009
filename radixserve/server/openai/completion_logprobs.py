"""Log-probabilities as ``/v1/completions`` shows them: parallel lists, with the place of each token in the text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

import msgspec

from radixserve.messages import TokenLogprob
from radixserve.model.tokenizer import Tokenizer


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists, one entry a token; the first token of an echoed prompt has None."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class TextOffsets:
    """Where tokens begin in a text, in characters; a token that goes on with a character begins where that does."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._complete = 0

    def next(self, data: bytes) -> int:
        """The place of the next token, which stands for ``data``."""
        begun = bool(self._decoder.getstate()[0])
        # What no continuation byte follows is U+FFFD by itself, and the token stands behind it.
        cut_short = begun and bool(data) and data[0] & 0xC0 != 0x80
        place = self._complete + cut_short
        self._complete += len(self._decoder.decode(data))
        return place


def completion_logprobs(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    entries: Sequence[TokenLogprob | None],
    offsets: TextOffsets,
    *,
    hidden: Collection[int] = (),
    num_prompt: int = 0,
) -> CompletionLogprobs:
    """The parallel lists for tokens ``ids``, the first ``num_prompt`` of which are the prompt's.

    ``offsets`` has seen what stands before them in the choice's text. ``hidden``: tokens that an output's text leaves out.
    """
    shown = CompletionLogprobs()
    for place, (token, entry) in enumerate(zip(ids, [*entries, *[None] * (len(ids) - len(entries))], strict=True)):
        shown.tokens.append(tokenizer.token_text(token))
        left_out = place >= num_prompt and token in hidden
        shown.text_offset.append(offsets.next(b"" if left_out else tokenizer.token_bytes(token)))
        shown.token_logprobs.append(None if entry is None else entry.logprob)
        if entry is None:
            shown.top_logprobs.append(None)
        else:
            top: dict[str, float] = {}
            # Tokens that are parts of characters share a text: the most likely one stands for them.
            for other, logprob in (*entry.top, (token, entry.logprob)):
                top.setdefault(tokenizer.token_text(other), logprob)
            shown.top_logprobs.append(top)
    return shown
