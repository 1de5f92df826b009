"""From the language's words to the engine's, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.backends.base import Output, Reason, Sample, TokenScore, Usage
from radixlang.backends.generate_fields import schema_text
from radixlang.backends.score_trie import Answer, Question
from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex

if TYPE_CHECKING:
    from radixserve import SamplingParams
    from radixserve.constraints import Constraint as EngineConstraint
    from radixserve.messages import GenerationOutput, SampleOutput, TokenLogprob
    from radixserve.model.tokenizer import Tokenizer

_REASONS: dict[str, Reason] = {"stop": "stop", "length": "length", "abort": "abort"}


def engine_constraint(constraint: Constraint) -> EngineConstraint:
    """The constraint as the engine has it."""
    from radixserve import constraints

    match constraint:
        case JsonSchema(schema):
            return constraints.JsonSchema(schema=schema_text(schema))
        case Regex(pattern):
            return constraints.Regex(pattern=pattern)
        case Grammar(source):
            return constraints.Grammar(text=source)
        case Choice(choices):
            return constraints.Choice(choices=choices)


def output_of(output: GenerationOutput, tokenizer: Tokenizer, *, wall_s: float) -> Output:
    """What one call brought; it did not fail."""
    prompt = output.prompt_tokens - output.healed_tokens
    samples = output.all_samples
    return Output(
        samples=tuple(_sample(sample, tokenizer) for sample in samples),
        usage=Usage(
            prompt=prompt,
            cached=output.cached_tokens,
            computed=prompt - output.cached_tokens,
            generated=output.completion_tokens,
            forced=sum(sample.forced_tokens for sample in samples),
            wall_s=wall_s,
            queue_s=output.timings.queued_s,
            first_token_s=output.timings.first_token_s,
        ),
        healed=output.healed_tokens,
    )


def sampling_for(question: Question) -> SamplingParams:
    """Parameters of the request that answers ``question``."""
    from radixserve import SamplingParams

    on_the_way = question.start < len(question.token_ids)
    return SamplingParams(
        max_tokens=1,
        temperature=0,
        logprobs=0,
        prompt_logprobs=0 if on_the_way else None,
        logprob_start=question.start if on_the_way else 0,
        logprob_token_ids=question.asked,
    )


def answer_of(question: Question, output: GenerationOutput) -> Answer:
    """What its request says to ``question``."""
    entries = [*(output.prompt_logprobs or [])[question.start :], *(output.logprobs or [])]
    places = [{**dict(entry.asked), entry.token_id: entry.logprob} for entry in entries if entry is not None]
    return Answer(
        tuple(places),
        Usage(
            prompt=output.prompt_tokens,
            cached=output.cached_tokens,
            computed=output.prompt_tokens - output.cached_tokens,
            queue_s=output.timings.queued_s,
            first_token_s=output.timings.first_token_s,
        ),
    )


def _sample(sample: SampleOutput, tokenizer: Tokenizer) -> Sample:
    assert sample.finish_reason is not None, "the output is whole"
    reason = _REASONS[sample.finish_reason.value]
    matched = sample.stop_reason if reason == "stop" else None
    if reason == "stop" and matched is None and sample.token_ids:
        # The model's own end token, which is no stop that anybody asked for.
        matched = sample.token_ids[-1]
    return Sample(
        text=sample.text,
        finish_reason=reason,
        token_ids=tuple(sample.token_ids),
        kept=sample.kept_tokens,
        rest=sample.rest,
        matched=matched,
        logprobs=None if sample.logprobs is None else tuple(_score(entry, tokenizer) for entry in sample.logprobs),
    )


def _score(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenScore:
    return TokenScore(
        token_id=entry.token_id,
        text=tokenizer.token_text(entry.token_id),
        logprob=entry.logprob,
        top=tuple((token, tokenizer.token_text(token), logprob) for token, logprob in entry.top),
        forced=entry.forced,
    )
