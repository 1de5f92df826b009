"""The vocabulary shared by every part: sampling parameters, finish reasons and what a generation returns.

These are msgspec structs because they travel between processes; fields are only ever appended.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from radixserve.constraints import Constraint
from radixserve.sampling_check import check_sampling


class FinishReason(enum.StrEnum):
    """Why a generation ended; the values are OpenAI's, plus ``abort`` and ``error``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


# How hidden states of a prompt's tokens become one vector: their mean, or the last one.
Pooling = Literal["mean", "last"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to continue a prompt. Every field is enforced; ``validate()`` refuses what cannot be.

    ``max_tokens``: output limit; None takes what the context leaves. 0 computes the prompt only.
    ``min_tokens``: no stop token or stop string ends the output before that many tokens.
    ``temperature``: 0 is greedy (ties go to the lowest id).
    ``top_k``: 0 or -1 is off. ``top_p``, ``min_p``: on the distribution after temperature, in that order of
    filters: top_k, top_p, min_p.
    ``repetition_penalty``: Keskar et al. 2019 (CTRL), over prompt and output; ``frequency_penalty`` and
    ``presence_penalty``: OpenAI's, over the output only.
    ``logit_bias``: token id -> added to the logit.
    ``stop``: strings; the output ends before the first of them (after it with ``include_stop``).
    ``stop_regex``: patterns; the output ends after the first match of one (in a linear-time dialect without anchors).
    ``stop_token_ids``: added to the model's own end tokens, which ``ignore_eos`` turns off.
    ``seed``: with the sample index and the position it fixes every draw; None lets the engine choose one.
    ``n``: parallel samples from one prefill.
    ``logprobs``: None off, k the chosen token and the k most likely. ``prompt_logprobs``: the same for prompt tokens
    from position ``logprob_start`` on (position 0 has none).
    ``logprobs_mode``: ``raw`` is the model's log-softmax; ``processed`` is after penalties, bias, temperature and
    filters.
    ``logprob_token_ids``: tokens whose logprobs are given at every place that has any.
    ``constraint``: what the output must look like (`radixserve.constraints`); the model's end tokens are drawn only where
    it is complete, and an output that ``max_tokens`` cuts says ``length``. ``finish_json``: with a constraint, the output is
    brought to a valid end within ``max_tokens``; ``stop_reason`` is ``finish_json`` where that cut it short.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_start: int = 0
    logprobs_mode: Literal["raw", "processed"] = "raw"
    constraint: Constraint | None = None
    finish_json: bool = False
    logprob_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()

    @property
    def needs_history(self) -> bool:
        """Whether a penalty looks at the tokens so far."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidRequest` naming the first field that is of the wrong type or out of range."""
        check_sampling(self, vocab_size)


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of one token, and the most likely tokens at its place.

    ``top`` holds (id, logprob) pairs, most likely first, ties by lowest id; it may leave out the chosen token, whose
    own logprob and ``rank`` (1 = most likely) are always given. ``forced``: it was not drawn, the request's constraint left
    no choice; its logprob is the model's raw one. ``asked``: the logprobs of the tokens of ``logprob_token_ids``, in their order.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
    forced: bool = False
    asked: tuple[tuple[int, float], ...] = ()


class Timings(msgspec.Struct, kw_only=True):
    """Wall times of one request in seconds since it was queued, and the engine steps it waited before its first
    token.
    """

    queued_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0
    steps_waited: int = 0
    preemptions: int = 0


class SampleOutput(msgspec.Struct, kw_only=True):
    """One of the ``n`` samples of a generation.

    ``kept_tokens``: how many of ``token_ids``, from the first, end inside ``text``, with a whole character; end tokens and what a
    stop string cut are not among them. ``rest``: the text after those (a stop began inside a token, or the output ended inside a
    character). So a conversation goes on token by token from the prompt and the kept tokens, with ``rest`` as text to be
    tokenized with what follows. ``forced_tokens``: how many of ``token_ids`` the constraint left no choice of.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None
    kept_tokens: int = 0
    rest: str = ""
    forced_tokens: int = 0


MissReason = Literal["never_seen", "diverged", "evicted", "namespace", "capped", "pending_failed", "disabled"]


class Explanation(msgspec.Struct, frozen=True):
    """Why a prompt hits ``cached_tokens`` and not more.

    ``position``: first token that is not served from the cache; ``text``: what the prompt says there. ``detail``:
    the circumstances in words.

    * ``never_seen``: what is held ends at ``position``, nothing continues it;
    * ``diverged``: what is held goes on with other tokens at ``position``;
    * ``evicted``: the tokens from ``position`` on were held once; ``detail`` says when they went and under what
      pressure;
    * ``pending_failed``: they were about to be held, but the forward pass that computed them failed;
    * ``capped``: more is held, but must be computed again (``detail`` says why);
    * ``namespace``: another namespace holds more (told to the operator only);
    * ``disabled``: the prefix cache is off.

    ``held_tokens``: how many of the cached tokens a hold keeps there.
    """

    reason: MissReason
    position: int
    cached_tokens: int
    prompt_tokens: int
    detail: str
    text: str | None = None
    held_tokens: int = 0


class HeldPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that is held in the cache under the generation's ``rid``.

    ``tokens``: how many of its tokens are, 0 for no hold at all (quotas, or nothing is shared). ``expires_in_s``: when it ends by itself.
    ``computed_tokens``: prompt tokens that had to be computed for it.
    """

    tokens: int
    expires_in_s: float
    computed_tokens: int


class GenerationOutput(msgspec.Struct, kw_only=True):
    """What one prompt brought. The fields of sample 0 are at the top; ``samples`` holds all when ``n`` > 1.

    ``prompt_logprobs[i]`` belongs to prompt token ``i`` and is None where none was asked for (always at 0).
    ``cached_tokens`` counts prompt tokens whose KV this request did not have to compute. ``embedding``: the pooled final
    hidden states of the prompt, of length 1, where they were asked for. ``error_param``: the sampling field that an ``error`` is
    owed to (what it asks for is too much work for this output); None for the engine's own failures. ``healed_tokens``: how many
    tokens at the prompt's end the first output tokens replace (token healing): those repeat the text of the replaced ones, which
    is no part of ``text``, and after them the output counts and is looked at. Where ``text`` ends before that, ``rest`` begins
    with what was not repeated. ``hold``: where the prompt was to be held.
    """

    rid: str
    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    timings: Timings = msgspec.field(default_factory=Timings)
    samples: list[SampleOutput] = []
    error: str | None = None
    explanation: Explanation | None = None
    embedding: list[float] | None = None
    error_param: str | None = None
    kept_tokens: int = 0
    rest: str = ""
    forced_tokens: int = 0
    healed_tokens: int = 0
    hold: HeldPrefix | None = None

    @property
    def all_samples(self) -> list[SampleOutput]:
        """Every sample, also where there is only one and its fields are at the top."""
        if self.samples:
            return self.samples
        return [
            SampleOutput(
                index=0,
                text=self.text,
                token_ids=self.token_ids,
                finish_reason=self.finish_reason,
                stop_reason=self.stop_reason,
                logprobs=self.logprobs,
                error=self.error,
                kept_tokens=self.kept_tokens,
                rest=self.rest,
                forced_tokens=self.forced_tokens,
            )
        ]


class GenerationChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of sample ``index`` of prompt ``prompt_index``.

    ``text`` may lag behind ``token_ids`` (an incomplete character, what could become a stop string).
    ``finish_reason`` comes once per sample, with its last piece; ``output`` with the last piece of the prompt.
    ``stop_reason`` comes with it, as `GenerationOutput` has it. With the first piece of the prompt come ``cached_tokens`` and,
    where they were asked for, ``prompt_logprobs``; and ``healed_tokens``. With a sample's last piece come its ``kept_tokens``,
    ``rest`` and ``forced_tokens``.
    """

    rid: str
    index: int
    prompt_index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish_reason: FinishReason | None = None
    output: GenerationOutput | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    stop_reason: str | int | None = None
    cached_tokens: int | None = None
    healed_tokens: int | None = None
    kept_tokens: int | None = None
    rest: str | None = None
    forced_tokens: int | None = None


class HoldOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a prompt that was to be held.

    ``id``: to release it by. ``held_tokens``: how many of the ``prompt_tokens`` are held, 0 for none; the hold ends in
    ``expires_in_s`` seconds by itself. ``cached_tokens`` were there, ``computed_tokens`` had to be computed.
    """

    id: str
    held_tokens: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    expires_in_s: float
    timings: Timings


class ScoreOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of one continuation after a prompt; ``total`` is their sum."""

    token_ids: list[int]
    logprobs: list[float]
    total: float
    cached_tokens: int
