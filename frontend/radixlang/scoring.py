"""One `select`: where the choices' own tokens begin, and what their likelihoods are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixlang.backends.base import Continuations, Text, TextBackend, TokenBackend
from radixlang.errors import InvalidProgram, Unsupported
from radixlang.expressions import Select
from radixlang.select import Decision, Method, Scored
from radixlang.texts import merged
from radixlang.variable import Variable

if TYPE_CHECKING:
    from radixlang.interpreter import Interpreter


async def score(state: Interpreter, select: Select, variable: Variable | None) -> None:
    """Add the choice that ``select``'s method picks, as the tokens that were scored."""
    if state.run.tokens is not None:
        scored, decision, usage = await _with_tokens(state, state.run.tokens, select)
    else:
        assert state.run.texts is not None
        scored, decision, usage = await _with_texts(state, state.run.texts, select)
    choice = select.choices[decision.index]
    if variable is not None:
        variable.stream.write(choice)
        variable.resolve(choice, _meta(select.method, scored, decision, usage))


async def _with_tokens(
    state: Interpreter, backend: TokenBackend, select: Select
) -> tuple[Scored, Decision, Continuations]:
    heal = state.run.heal if select.heal is None else select.heal
    split = await split_choices(state, backend, select.choices, heal=heal)
    priority = await state.run.hints.before_call(state, split.prefix)
    result = await backend.score(split.prefix, split.continuations, priority=priority)
    record = state.run.ledger.record
    record(select.name, "select", result.usage, split.prefix, split.continuations, state.branch)
    unconditional = None
    if select.method.needs_unconditional:
        alone = await backend.score((), split.continuations, priority=priority)
        record(select.name, "select", alone.usage, (), split.continuations, state.branch)
        unconditional = alone.logprobs
    scored = Scored(select.choices, split.continuations, result.logprobs, unconditional)
    decision = select.method(scored)
    state.content.settle(split.prefix + list(split.continuations[decision.index]), select.choices[decision.index])
    return scored, decision, result


async def _with_texts(
    state: Interpreter, backend: TextBackend, select: Select
) -> tuple[Scored, Decision, Continuations]:
    if state.content.role is not None or state.content.messages:
        raise Unsupported("select in a conversation", backend.name, "it tells likelihoods of plain texts only")
    prompt = state.content.text()
    result = await backend.score_texts(prompt, select.choices)
    state.run.ledger.record(select.name, "select", result.usage, branch=state.branch)
    unconditional = None
    if select.method.needs_unconditional:
        alone = await backend.score_texts("", select.choices)
        state.run.ledger.record(select.name, "select", alone.usage, branch=state.branch)
        unconditional = alone.logprobs
    scored = Scored(select.choices, result.token_ids, result.logprobs, unconditional)
    decision = select.method(scored)
    state.content.settle([], select.choices[decision.index])
    return scored, decision, result


@dataclass(frozen=True, slots=True)
class Split:
    """``prefix``: the tokens that all choices share with the prompt; ``continuations``: each choice's tokens after it."""

    prefix: list[int]
    continuations: tuple[tuple[int, ...], ...]


async def split_choices(state: Interpreter, backend: TokenBackend, choices: Sequence[str], *, heal: bool) -> Split:
    """The tokens of each choice after what ``state`` has.

    A choice is read together with the pending text, so its first letters may change that text's last tokens. The
    prefix ends where the first choice's tokens leave the prompt's own: all are scored from one point, and each on the tokens that
    a tokenizer gives it. Without ``heal`` the prompt's tokens stay, and choices are read alone.
    """
    pending = merged(state.content.pending)
    choice_parts = [Text(choice, state.content.kind) for choice in choices]
    if not heal or (pending and not state.content.ends_in_text):
        prompt = await state.prompt()
        alone = await asyncio.gather(*(backend.encode((part,), first=False) for part in choice_parts))
        return Split(prompt, _checked(choices, alone))
    first = not state.content.ids
    prompt, *whole = await asyncio.gather(
        backend.encode(pending, first=first) if pending or first else _nothing(),
        *(backend.encode(merged((*pending, part)), first=first) for part in choice_parts),
    )
    shared = min(_common(prompt, tokens) for tokens in whole)
    continuations = _checked(choices, [tokens[shared:] for tokens in whole])
    return Split(state.content.ids + prompt[:shared], continuations)


async def _nothing() -> list[int]:
    return []


def _checked(choices: Sequence[str], tokens: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    for choice, own in zip(choices, tokens, strict=True):
        if not own:
            raise InvalidProgram("choices", f"{choice!r} adds no token to the prompt")
    return tuple(tuple(own) for own in tokens)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def _meta(method: Method, scored: Scored, decision: Decision, result: Continuations) -> dict[str, Any]:
    usage = result.usage
    return {
        "scores": dict(zip(scored.choices, decision.scores, strict=True)),
        "choices_method": method.name,
        "logprobs": dict(zip(scored.choices, scored.logprobs, strict=True)),
        "unconditional_logprobs": None
        if scored.unconditional is None
        else dict(zip(scored.choices, scored.unconditional, strict=True)),
        "token_ids": dict(zip(scored.choices, scored.token_ids, strict=True)),
        "normalized_prompt_logprobs": [sum(logprobs) / len(logprobs) for logprobs in scored.logprobs],
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "computed_tokens": usage.computed,
        "completion_tokens": usage.generated,
        "wall_s": usage.wall_s,
        "queue_s": usage.queue_s,
    }
