"""One `gen`: the call to the model, and what its output does to the state and the variable."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from radixlang.backends.base import Call, Output, Piece, Sample, TextBackend, TokenBackend, TokenScore
from radixlang.errors import BackendError, UnreadableOutput, Unsupported
from radixlang.expressions import Gen
from radixlang.variable import Variable

if TYPE_CHECKING:
    from radixlang.interpreter import Interpreter


async def generate(state: Interpreter, gen: Gen, variable: Variable | None) -> None:
    """Let the model continue ``state``. ``variable`` gets the value, or a list of them where several samples were wanted."""
    if state.run.tokens is not None:
        await _with_tokens(state, state.run.tokens, gen, variable)
    else:
        assert state.run.texts is not None
        await _with_texts(state, state.run.texts, gen, variable)


async def _with_tokens(state: Interpreter, backend: TokenBackend, gen: Gen, variable: Variable | None) -> None:
    prompt = await state.prompt()
    heal = (state.run.heal if gen.heal is None else gen.heal) and state.content.ends_in_text
    priority = await state.run.hints.before_call(state, prompt)
    call = _call(state, gen, heal=heal, priority=priority)
    output, streamed = await _consume(backend.generate(prompt, call), state, variable)
    settled = prompt[: len(prompt) - output.healed]
    outputs = [sample.token_ids for sample in output.samples]
    state.run.ledger.record(gen.name, "gen", output.usage, settled, outputs, state.branch)
    first = _checked(output)[0]
    state.content.settle(settled + list(first.token_ids[: first.kept]), first.text, first.rest, streamed=streamed)
    _resolve(gen, output, variable)


async def _with_texts(state: Interpreter, backend: TextBackend, gen: Gen, variable: Variable | None) -> None:
    # By default nothing is healed there; a backend that cannot says so where a `gen` asks for it.
    call = _call(state, gen, heal=bool(gen.heal), priority=0)
    content = state.content
    if content.role is None:
        if content.messages:
            raise Unsupported("gen outside of messages", backend.name, "a conversation has begun")
        pieces = backend.complete(content.text(), call)
    else:
        if any(piece.kind == "free" for piece in content.history):
            raise Unsupported("text outside of messages", backend.name, "its conversations have messages only")
        if content.role.name != "assistant":
            raise Unsupported(
                f"gen in a message of {content.role.name}", backend.name, "it writes its own messages only"
            )
        if len(content.history) > content.role.start:
            raise Unsupported("gen after the beginning of a message", backend.name, "it writes whole messages only")
        pieces = backend.answer(tuple(content.messages), call)
    output, streamed = await _consume(pieces, state, variable)
    state.run.ledger.record(gen.name, "gen", output.usage, branch=state.branch)
    state.content.settle([], _checked(output)[0].text, streamed=streamed)
    _resolve(gen, output, variable)


def _call(state: Interpreter, gen: Gen, *, heal: bool, priority: int) -> Call:
    return Call(
        gen.sampling.over(state.run.sampling),
        gen.constraint,
        heal=heal,
        priority=priority,
        stream=state.run.streams,
        tag=f"{state.branch}:{gen.name or ''}",
    )


async def _consume(
    pieces: AsyncGenerator[Piece, None], state: Interpreter, variable: Variable | None
) -> tuple[Output, str]:
    """The output, and how much of its first sample's text went into the streams before it was there."""
    streamed: list[str] = []
    # Closed in any case, which is what ends the generation where this is cancelled.
    async with aclosing(pieces):
        async for piece in pieces:
            if piece.index == 0 and state.run.streams and piece.text:
                streamed.append(piece.text)
                state.content.stream.write(piece.text)
                if variable is not None:
                    variable.stream.write(piece.text)
            if piece.output is not None:
                text = "".join(streamed)
                if variable is not None:
                    variable.stream.write(piece.output.samples[0].text[len(text) :])
                return piece.output, text
    raise BackendError("the generation ended without an output")


def _checked(output: Output) -> tuple[Sample, ...]:
    if any(sample.finish_reason == "abort" for sample in output.samples):
        raise BackendError("the generation was aborted")
    return output.samples


def _resolve(gen: Gen, output: Output, variable: Variable | None) -> None:
    values = [_value(gen, sample) for sample in output.samples]
    if variable is not None:
        several = len(values) > 1
        variable.resolve(values if several else values[0], _meta(output, several=several))


def _value(gen: Gen, sample: Sample) -> Any:
    if gen.reader is None:
        return sample.text
    try:
        return gen.reader(sample.text)
    except ValueError as error:
        cut = "; max_tokens cut it off" if sample.finish_reason == "length" else ""
        raise UnreadableOutput(f"{sample.text!r} is no value of the type that was asked for{cut}: {error}") from error


def _meta(output: Output, *, several: bool) -> dict[str, Any]:
    """Facts by the names that SGLang's users know. Of several samples, what belongs to one is a list."""
    usage = output.usage
    per_sample = [_sample_meta(sample) for sample in output.samples]
    merged = {key: [facts[key] for facts in per_sample] for key in per_sample[0]} if several else per_sample[0]
    return {
        **merged,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "computed_tokens": usage.computed,
        "completion_tokens": usage.generated,
        "forced_tokens": usage.forced,
        "healed_tokens": output.healed,
        "wall_s": usage.wall_s,
        "queue_s": usage.queue_s,
        "first_token_s": usage.first_token_s,
    }


def _sample_meta(sample: Sample) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": sample.finish_reason}
    if sample.matched is not None:
        reason["matched"] = sample.matched
    return {
        "finish_reason": reason,
        "text": sample.text,
        "token_ids": list(sample.token_ids),
        "output_token_logprobs": None if sample.logprobs is None else [_own(score) for score in sample.logprobs],
        "output_top_logprobs": None if sample.logprobs is None else [_top(score) for score in sample.logprobs],
    }


def _own(score: TokenScore) -> tuple[float, int, str]:
    return score.logprob, score.token_id, score.text


def _top(score: TokenScore) -> list[tuple[float, int, str]]:
    return [(logprob, token_id, text) for token_id, text, logprob in score.top]
