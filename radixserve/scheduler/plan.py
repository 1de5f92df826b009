"""What the scheduler hands to the runner for one step, and what it gets back.

Both sides are frozen and hold copies: nothing in a plan aliases the scheduler's live state, so a plan may be read late,
on another thread or in another process. Rows are msgspec structs, because there is one for each request and step, and a frozen dataclass
takes ten times as long to make.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.messages import SamplingParams, TokenLogprob

Int32Array = npt.NDArray[np.int32]

UNKNOWN = -1
"""Stands for a token that a step in flight will draw."""


class PlanRow(msgspec.Struct, frozen=True, eq=False):
    """The share of one request in one step: ``len(tokens)`` consecutive tokens to extend by.

    ``start``
        position of ``tokens[0]``; KV of positions ``[0, start)`` is in place when the step's layer has
        written its own K and V (some of it may be written by other rows of this very step).
    ``table``
        int32[ceil((start + len(tokens)) / block_size)]: the block table, a snapshot that nobody writes to. Plans of one request have the
        same array for as long as it is the same table.
    ``num_samples``
        how many tokens to draw from the logits of the last token: 0 (a prefill chunk that does not end the
        prompt), 1, or ``n`` when parallel samples fork here. Sample ``i`` has index ``first_sample + i``.
    ``history``
        int32[start + len(tokens)]: all tokens of the request so far, given only where a penalty needs them.
    ``num_prompt``
        tokens whose text is the prompt's: output tokens that only repeat some of it are among them.
    ``prompt_logprob_targets``
        ``targets[j]`` is the token that follows position ``prompt_logprob_start + j``; the logits of those
        positions (all inside this row) are wanted for prompt logprobs.
    ``states_from``
        the final hidden states of the positions from here to the row's end are wanted; None: of none.
    ``token_from``
        (step, index of its row): the row's only token is the one that is drawn there, by a step that was planned before this one and
        is not collected; ``tokens`` holds `UNKNOWN`. None: all tokens are known. See `StepPlan.filled`.
    ``forced_targets``
        likewise from position ``forced_start`` on, for output tokens that are not drawn and whose logprobs are wanted.
    """

    rid: str
    start: int
    tokens: Int32Array
    table: Int32Array
    sampling: SamplingParams
    seed: int
    num_prompt: int
    num_samples: int = 0
    first_sample: int = 0
    history: Int32Array | None = None
    prompt_logprob_start: int = 0
    prompt_logprob_targets: Int32Array | None = None
    forced_start: int = 0
    forced_targets: Int32Array | None = None
    states_from: int | None = None
    token_from: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """Position after the row's last token; also the position of the token that is drawn from it."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One forward pass: rows in the order of the flattened batch, and block copies that run before the first layer.

    ``copies`` is int32[C, 2] of (source block, destination block); a copy takes the whole block in every layer.
    """

    step: int
    rows: tuple[PlanRow, ...]
    copies: Int32Array = field(default_factory=lambda: np.empty((0, 2), np.int32))

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum([len(row.tokens) for row in self.rows])

    @property
    def is_open(self) -> bool:
        """Whether some of its tokens are drawn by a step that it was planned after."""
        return any(row.token_from is not None for row in self.rows)

    def filled(self, before: StepResult) -> StepPlan:
        """This plan with the tokens that ``before``, the result of the step it was planned after, has drawn for it.

        Every row it names must have drawn one: see `StepResult.sound`.
        """
        if not self.is_open:
            return self
        return dataclasses.replace(self, rows=tuple(_filled(row, before) for row in self.rows))


def _filled(row: PlanRow, before: StepResult) -> PlanRow:
    if row.token_from is None:
        return row
    step, index = row.token_from
    assert step == before.step, f"a token of step {step} is looked for in step {before.step}"
    [token] = before.rows[index].token_ids
    return msgspec.structs.replace(row, tokens=np.array([token], np.int32), token_from=None)


class RowResult(msgspec.Struct, frozen=True, eq=False):
    """What one row brought: drawn tokens with their logprobs, prompt logprobs, or an error that is its alone.

    ``logprobs`` is empty unless ``sampling.logprobs`` asks for them; ``prompt_logprobs`` and ``forced_logprobs`` have one
    entry per wanted target.
    ``states``: the wanted hidden states, float64 [n, hidden]. ``error`` is set when the row's logits were not finite, or
    its constraint failed; then nothing was drawn. ``error_param``: the field of the request that led to it, if one did.
    Equal where all but the states are.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    forced_logprobs: tuple[TokenLogprob, ...] = ()
    states: npt.NDArray[np.float64] | None = None
    error_param: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowResult) and self._compared == other._compared

    def __ne__(self, other: object) -> bool:
        # Not derived from `__eq__` here: a struct has one of its own, by identity.
        return not self == other

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[object, ...]:
        return (
            self.token_ids,
            self.logprobs,
            self.prompt_logprobs,
            self.error,
            self.forced_logprobs,
            self.error_param,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results in the order of ``StepPlan.rows``; ``seconds`` is the wall time of the forward pass and sampling."""

    step: int
    rows: tuple[RowResult, ...]
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether a step that was planned after this one may count on its KV and its tokens.

        Not where a row failed by itself: then what it wrote leaves the cache, and others must not have read it.
        """
        return all(row.error is None or row.error_param is not None for row in self.rows)
