"""From a scripted text to the tokens of an output: healing, limits, stops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from radixlang.backends.base import Call, Reason, Sample, TokenScore
from radixlang.backends.toy_tokenizer import IM_END, SPECIAL, ToyTokenizer


@dataclass(frozen=True, slots=True)
class Draft:
    """One sample. ``before``: the end of the prompt that its first tokens spell again (healing). ``pieces``: what each token adds to
    the text, empty where the prompt or a stop has it.
    """

    before: str
    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    healed: int
    reason: Reason
    matched: str | int | None


def drafts(tokenizer: ToyTokenizer, prompt: Sequence[int], answers: Sequence[str], call: Call) -> list[Draft]:
    """The samples of one call. They replace the same tokens of the prompt: where one of them heals it, all do."""
    made = [draft(tokenizer, prompt, answer, call) for answer in answers]
    if len({one.healed for one in made}) > 1:
        made = [draft(tokenizer, prompt, answer, call, always=True) for answer in answers]
    return made


def draft(tokenizer: ToyTokenizer, prompt: Sequence[int], answer: str, call: Call, *, always: bool = False) -> Draft:
    """``answer`` as the call's output. The prompt's last token is replaced where it and the answer's first letters make
    another one, or ``always``.
    """
    sampling = call.sampling
    limit = 1 if sampling.max_tokens is None else sampling.max_tokens
    least = limit if sampling.ignore_eos else sampling.min_tokens or 0
    healed, before, tokens = _tokens(tokenizer, prompt, answer, heal=call.heal, always=always)
    while len(tokens) < min(least, limit):
        answer += " more"
        healed, before, tokens = _tokens(tokenizer, prompt, answer, heal=call.heal, always=always)
    reason: Reason = "stop"
    matched: str | int | None = IM_END
    if len(tokens) >= limit:
        tokens, reason, matched = tokens[:limit], "length", None
        answer = tokenizer.decode(tokens)[len(before) :]
    else:
        tokens = [*tokens, IM_END]
    if (stop := _stop(answer, call)) is not None:
        end, until, matched = stop
        tokens, reason = tokens[: _reaching(tokenizer, tokens, len(before) + until)], "stop"
        answer = answer[:end]
    return Draft(before, answer, tuple(tokens), _pieces(tokenizer, tokens, before, answer), healed, reason, matched)


def sample_of(tokenizer: ToyTokenizer, one: Draft, logprobs: Sequence[float] | None) -> Sample:
    """The finished sample, with the likelihoods of its tokens where they are wanted."""
    whole = one.before + one.text
    kept = tokenizer.kept(one.token_ids, len(whole))
    scores = None
    if logprobs is not None:
        pairs = zip(one.token_ids, logprobs, strict=True)
        scores = tuple(TokenScore(token, tokenizer.text_of(token), logprob) for token, logprob in pairs)
    rest = whole[len(tokenizer.decode(one.token_ids[:kept])) :]
    return Sample(one.text, one.reason, one.token_ids, kept, rest, one.matched, scores)


def _tokens(
    tokenizer: ToyTokenizer, prompt: Sequence[int], answer: str, *, heal: bool, always: bool
) -> tuple[int, str, list[int]]:
    """How many tokens are healed, their text, and the output's tokens, which begin with it."""
    if heal and prompt and prompt[-1] > len(SPECIAL):
        last = tokenizer.text_of(prompt[-1])
        joint = tokenizer.encode_text(last + answer)
        if always or joint[:1] != [prompt[-1]]:
            return 1, last, joint
    return 0, "", tokenizer.encode_text(answer)


def _stop(answer: str, call: Call) -> tuple[int, int, str] | None:
    """Where the text ends, where its stop ends, and the stop: the one whose end comes first."""
    found = [(at, at + len(stop), stop) for stop in call.sampling.stop or () if (at := answer.find(stop)) >= 0]
    found += [
        (match.end(), match.end(), pattern)
        for pattern in call.sampling.stop_regex or ()
        if (match := re.search(pattern, answer))
    ]
    return min(found, key=lambda stop: stop[1], default=None)


def _reaching(tokenizer: ToyTokenizer, tokens: Sequence[int], length: int) -> int:
    """How many tokens make ``length`` characters."""
    at = 0
    for count, token in enumerate(tokens, 1):
        at += len(tokenizer.text_of(token))
        if at >= length:
            return count
    return len(tokens)


def _pieces(tokenizer: ToyTokenizer, tokens: Sequence[int], before: str, answer: str) -> tuple[str, ...]:
    begin, end = len(before), len(before) + len(answer)
    whole = before + answer
    pieces, at = [], 0
    for token in tokens:
        after = at + len(tokenizer.text_of(token))
        pieces.append(whole[max(at, begin) : min(after, end)])
        at = after
    return tuple(pieces)
