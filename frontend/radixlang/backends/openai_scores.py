"""How likely continuations of a text are, read off completions that echo their prompts with logprobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from radixlang.backends.base import Continuations, Usage
from radixlang.backends.openai_answers import Choice


class NotTold(Exception):
    """The server leaves out what is needed; the message says what."""


def continuations_of(
    echoes: Sequence[Choice], texts: Sequence[str], *, with_prompt: bool, usage: Usage
) -> Continuations:
    """The scores of continuations whose whole ``texts``, prompts included, were echoed.

    ``with_prompt``: the first of them is the prompt alone. Then all are scored from the first token on where one of them, or the
    prompt, leaves what they have in common, so that none is judged by tokens that another does not have; without a prompt,
    from their beginning. The token ids are numbers that stand for the tokens' texts in this answer only. Raises `NotTold`.
    """
    lines = [_tokens(echo, text) for echo, text in zip(echoes, texts, strict=True)]
    if with_prompt:
        tokens = zip(*([token for token, _ in line] for line in lines), strict=False)
        shared, own = len(list(takewhile(_all_equal, tokens))), lines[1:]
    else:
        shared, own = 0, [_without_begin(line, text) for line, text in zip(lines, texts, strict=True)]
    numbers: dict[str, int] = {}
    token_ids, logprobs = [], []
    for line in own:
        told = line[shared:]
        if not told:
            raise NotTold("a continuation adds no token of its own")
        if any(logprob is None for _, logprob in told):
            raise NotTold("the first token of a text has no logprob")
        token_ids.append(tuple(numbers.setdefault(token, len(numbers)) for token, _ in told))
        logprobs.append(tuple(-math.inf if logprob is None else logprob for _, logprob in told))
    return Continuations(tuple(token_ids), tuple(logprobs), usage)


def _tokens(echo: Choice, text: str) -> list[tuple[str, float | None]]:
    """The tokens of ``text``, without those that were drawn after it."""
    logprobs = echo.logprobs
    if logprobs is None or not logprobs.tokens:
        raise NotTold("there are no logprobs of the prompt")
    if not (echo.text or "").startswith(text):
        raise NotTold("the prompt is not echoed")
    if logprobs.text_offset is None:
        raise NotTold("it is not told where tokens stand in the text")
    entries = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset, strict=True)
    return [(token, logprob) for token, logprob, offset in entries if offset < len(text)]


def _without_begin(line: list[tuple[str, float | None]], text: str) -> list[tuple[str, float | None]]:
    """``line`` without the begin token that a model puts before a text."""
    begins = line[:1] and line[0][1] is None and "".join(token for token, _ in line[1:]) == text
    return line[1:] if begins else line


def _all_equal(values: Sequence[str]) -> bool:
    return len(set(values)) == 1
