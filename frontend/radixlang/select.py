"""How one of several choices is picked by the likelihoods of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Scored:
    """Choices and their tokens' natural log-likelihoods, each token given the prompt and the tokens before it.

    All choices are scored from the same point: where the tokens of the first of them leave those of the prompt.
    ``unconditional``: the likelihoods of the same tokens without the prompt, where the method needs them.
    """

    choices: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    unconditional: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The index of the choice, and a score for each; none depends on the order of the choices. Ties go to the one given first."""

    index: int
    scores: tuple[float, ...]


class Method(Protocol):
    """A way to pick; write your own by this protocol."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def needs_unconditional(self) -> bool:
        """The likelihoods without the prompt are asked for."""

    def __call__(self, scored: Scored) -> Decision:
        """Pick one."""


@dataclass(frozen=True, slots=True)
class TokenLengthNormalized:
    """The highest mean log-likelihood per token. Scores are these means."""

    name: str = "token_length_normalized"
    needs_unconditional: bool = False

    def __call__(self, scored: Scored) -> Decision:
        """See `Method`."""
        return _highest([_mean(logprobs) for logprobs in scored.logprobs])


@dataclass(frozen=True, slots=True)
class UnconditionalLikelihoodNormalized:
    """The highest mean, per token, of how much likelier the prompt makes it. Scores are these means.

    After "acc_norm" with unconditional normalization in EleutherAI's evaluation harness; Brown et al. 2020 (GPT-3), section 2.4.
    """

    name: str = "unconditional_likelihood_normalized"
    needs_unconditional: bool = True

    def __call__(self, scored: Scored) -> Decision:
        """See `Method`."""
        if scored.unconditional is None:
            raise ValueError("the unconditional likelihoods are missing")
        pairs = zip(scored.logprobs, scored.unconditional, strict=True)
        return _highest(
            [_mean([given - alone for given, alone in zip(logprobs, bare, strict=True)]) for logprobs, bare in pairs]
        )


@dataclass(frozen=True, slots=True)
class GreedyTokenSelection:
    """Token by token down the tree of the choices, each time to the likeliest next token that any of them has.

    A choice that ends where others go on competes with the likelihood that their next tokens leave. Scores are the
    log-likelihoods of the whole choices in this tree, ends included; the walk decides, not they.
    """

    name: str = "greedy_token_selection"
    needs_unconditional: bool = False

    def __call__(self, scored: Scored) -> Decision:
        """See `Method`."""
        alive, depth = list(range(len(scored.choices))), 0
        while len(alive) > 1:
            branches = _branches(scored, alive, depth)
            likeliest = max(branches, key=lambda token: branches[token][0])
            alive = branches[likeliest][1]
            if likeliest is None:
                break
            depth += 1
        return Decision(alive[0], tuple(_likelihood(scored, index) for index in range(len(scored.choices))))


def _branches(scored: Scored, alive: Sequence[int], depth: int) -> dict[int | None, tuple[float, list[int]]]:
    """Next token (None: the end) -> its log-likelihood and who has it, in the order of the first who has."""
    followers: dict[int | None, list[int]] = {}
    for index in alive:
        tokens = scored.token_ids[index]
        followers.setdefault(tokens[depth] if depth < len(tokens) else None, []).append(index)
    logprobs = {token: scored.logprobs[group[0]][depth] for token, group in followers.items() if token is not None}
    return {
        token: (_left(list(logprobs.values())) if token is None else logprobs[token], group)
        for token, group in followers.items()
    }


def _likelihood(scored: Scored, index: int) -> float:
    """Of the whole choice; where others go on after its end, times that of ending there."""
    tokens = scored.token_ids[index]
    going_on = {
        other[len(tokens)]: scored.logprobs[at][len(tokens)]
        for at, other in enumerate(scored.token_ids)
        if len(other) > len(tokens) and other[: len(tokens)] == tokens
    }
    own = math.fsum(scored.logprobs[index])
    return own + _left(list(going_on.values())) if going_on else own


def _left(logprobs: Sequence[float]) -> float:
    """The logarithm of what these likelihoods leave of 1."""
    # Sorted, so that the sum does not depend on the order of the choices.
    rest = 1.0 - math.fsum(sorted(math.exp(logprob) for logprob in logprobs))
    return math.log(rest) if rest > 0 else -math.inf


def _highest(scores: Sequence[float]) -> Decision:
    return Decision(max(range(len(scores)), key=lambda index: scores[index]), tuple(scores))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
