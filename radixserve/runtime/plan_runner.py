"""Runs a step's plan: what all forward paths have in common. The only place where plans meet tensors."""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, cast, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixserve.errors import RankFailed, RequestFailed
from radixserve.messages import TokenLogprob
from radixserve.model.config import ModelConfig
from radixserve.model.gguf_weights import placement
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.device_draw import draw_rows
from radixserve.runtime.forward_batch import FlatRows, ForwardBatch, Int64Array
from radixserve.runtime.sampler import MOST_CANDIDATES, Sampler
from radixserve.runtime.token_choice import Choices, TokenChoice
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import Int32Array, PlanRow, RowResult, StepPlan, StepResult

LOGITS_BYTES = 8 << 20
# Each slice reads the LM head again, which on a GPU takes longer than what is multiplied; a step of a hundred decodes is one slice.
DEVICE_LOGITS_BYTES = 64 << 20

_NOTHING = RowResult()


class EndTokens(Protocol):
    """The part of a model's generation defaults that sampling needs."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""


class RunnableModel(Protocol):
    """What a runner needs of a loaded model.

    A runner keeps no reference to it: what it needs of the weights is packed into copies, except that the torch path
    goes on using the embedding table.
    """

    @property
    def config(self) -> ModelConfig:
        """Shapes and variants."""

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Weights under canonical names; the dtype of the matrices is the dtype of the forward pass and of the KV."""

    @property
    def generation(self) -> EndTokens:
        """Generation defaults."""


class HiddenStates(Protocol):
    """What a forward pass leaves of its T tokens, before the final norm; valid until the next forward pass."""

    def states(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """The hidden states [n, hidden] themselves of tokens ``first`` to ``last`` - 1; only to be read."""

    def non_finite_tokens(self) -> Int64Array:
        """Ascending indices in T of the tokens with a NaN or an infinity in their hidden state."""

    def logits(self, tokens: Int64Array) -> torch.Tensor:
        """Float32 logits [n, vocab] of ``tokens`` [n], indices in T; valid until the next call. The caller bounds n."""


@runtime_checkable
class ShortHead(Protocol):
    """Hidden states whose path has a shorter way to the largest logits than through all of them."""

    def top(self, tokens: Int64Array, count: int) -> TopLogits:
        """The ``count`` (at most the vocabulary) largest logits of ``tokens`` [n], with the bits that `HiddenStates.logits` gives them.

        Valid until the next call. The caller bounds n.
        """


@functools.cache
def _has_short_head(kind: type[HiddenStates]) -> bool:
    """Remembered: looking whether a class meets a protocol takes as long as to draw ten rows."""
    return issubclass(kind, ShortHead)


class PlanRunner(ABC):
    """Executes plans, one at a time, over the KV of the whole pool; a subclass is one way to compute a forward pass.

    ``draws_on_device``: whether rows are drawn where their logits are, as far as that can be done there.
    """

    kv: BlockStore
    torch_mode: Callable[[], AbstractContextManager[object]] = torch.inference_mode
    """What a step runs in."""

    def __init__(self, model: RunnableModel) -> None:
        self.config = model.config
        self.dtype, self.device = placement(model.weights)
        self.sampler = Sampler(model.config.vocab_size, tuple(model.generation.eos_ids))
        self.draws_on_device = self.device.type != "cpu"
        slice_bytes = DEVICE_LOGITS_BYTES if self.draws_on_device else LOGITS_BYTES
        self.logits_rows = max(1, slice_bytes // (4 * model.config.vocab_size))
        self._final_norm = model.weights["final_norm"].double().cpu().numpy()

    @abstractmethod
    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""

    @abstractmethod
    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""

    def close(self) -> None:  # noqa: B027  most runners have nothing but memory
        """End what runs beside this process. No plan is executed afterwards."""

    def when_lost(self, callback: Callable[[RankFailed], None]) -> None:  # noqa: B027
        """``callback`` is told, on any thread, if no plan can be executed any more, in the middle of one or between two."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers over the batch; K and V of its tokens are in ``kv`` afterwards."""

    def flatten(self, plan: StepPlan) -> ForwardBatch:
        """The plan's rows as the batch that `forward` takes next, its tensors on the device."""
        return ForwardBatch.from_plan(plan, self.kv.block_size, self.device)

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """Copy blocks, run the forward pass, draw tokens.

        ``choices``: of the rows that may not draw every token; waited for after the forward pass.

        A row whose hidden states or logits are not finite gets an error and nothing else; the other rows are untouched
        by it. Anything that raises has failed the whole step: its KV slots hold garbage, nothing was drawn.
        """
        began = time.perf_counter()
        with self.torch_mode():
            self.kv.copy_blocks(plan.copies)
            rows = self._run(plan, choices) if plan.rows else ()
        return StepResult(plan.step, rows, time.perf_counter() - began)

    def _run(self, plan: StepPlan, choices: Choices | None) -> tuple[RowResult, ...]:
        batch = self.flatten(plan)
        return self.results(plan, batch, self.forward(batch), choices)

    def results(
        self, plan: StepPlan, batch: FlatRows, hidden: HiddenStates, choices: Choices | None
    ) -> tuple[RowResult, ...]:
        """What the rows of ``plan``, flattened to ``batch``, bring, given the hidden states of its forward pass."""
        results = self.non_finite_rows(plan, batch, hidden.non_finite_tokens())
        self._target_logprobs(batch, plan, hidden, results)
        self._sample(batch, plan, hidden, results, choices.wait() if choices is not None else {})
        self._states(batch, plan, hidden, results)
        return tuple([results.get(index, _NOTHING) for index in range(batch.num_rows)])

    def non_finite_rows(self, plan: StepPlan, batch: FlatRows, tokens: Int64Array) -> dict[int, RowResult]:
        """Errors by row of those with any of ``tokens``, ascending in T, whose hidden states are not finite: their KV must not be used."""
        results: dict[int, RowResult] = {}
        for token in tokens.tolist():
            row = int(batch.query_start.searchsorted(token, "right")) - 1
            position = plan.rows[row].start + token - int(batch.query_start[row])
            results.setdefault(row, RowResult(error=f"non-finite hidden state at position {position}"))
        return results

    def _sample(
        self,
        batch: FlatRows,
        plan: StepPlan,
        hidden: HiddenStates,
        results: dict[int, RowResult],
        choices: Mapping[str, TokenChoice],
    ) -> None:
        """Draw the tokens of the rows that want some and have no error, in slices of bounded memory."""
        failed = {row for row, result in results.items() if result.error is not None}
        short = _has_short_head(type(hidden))
        # Rows that a few of their logits decide are drawn apart from those that need all, by the number they need.
        drawing: dict[int | None, list[int]] = {}
        sample_rows = batch.sample_rows.tolist()
        for place, index in enumerate(sample_rows):
            if index in failed:
                continue
            row = plan.rows[index]
            # A choice is made among all tokens.
            needed = None if row.rid in choices else self._needed_logits(row, short)
            if needed in drawing:
                drawing[needed].append(place)
            else:
                drawing[needed] = [place]
        parts = [
            (needed, places[first : first + self.logits_rows])
            for needed, places in drawing.items()
            for first in range(0, len(places), self.logits_rows)
        ]
        for needed, part in parts:
            rows, tokens = sample_rows, batch.sample_tokens
            if len(part) < len(sample_rows):
                rows, tokens = [sample_rows[place] for place in part], tokens[part]
            drawn = self._draw([plan.rows[row] for row in rows], hidden, tokens, needed, choices)
            for row, result in zip(rows, drawn, strict=True):
                if row in results and result.error is None:
                    scored = results[row]
                    result = msgspec.structs.replace(
                        result, prompt_logprobs=scored.prompt_logprobs, forced_logprobs=scored.forced_logprobs
                    )
                results[row] = result

    def _needed_logits(self, row: PlanRow, short: bool) -> int | None:
        """The number of its largest logits that the host draws ``row`` from; None for all of them, 0 where the device draws.

        ``short``: whether there is a shorter way to a few of them.
        """
        if self.draws_on_device and self.sampler.is_plain(row):
            return 0
        if not short:
            return None
        candidates = self.sampler.candidates(row)
        # Two numbers only, one and many, so that rows with different filters still share a pass.
        return candidates if candidates in (None, 1) else min(MOST_CANDIDATES, self.config.vocab_size)

    def _draw(
        self,
        rows: list[PlanRow],
        hidden: HiddenStates,
        tokens: Int64Array,
        needed: int | None,
        choices: Mapping[str, TokenChoice],
    ) -> list[RowResult]:
        if needed == 0:
            drawn = draw_rows(hidden.logits, rows, tokens, self.logits_rows)
            return self.sampler.drawn(rows, drawn.tokens.cpu().numpy(), drawn.peaks.cpu().numpy())
        if needed is not None:
            return self.sampler.sample_top(rows, cast(ShortHead, hidden).top(tokens, needed))
        return self.sampler.sample(rows, hidden.logits(tokens), choices)

    def _target_logprobs(
        self, batch: FlatRows, plan: StepPlan, hidden: HiddenStates, results: dict[int, RowResult]
    ) -> None:
        """Logprobs of prompt tokens and of forced tokens, for the rows that want them."""
        for index, row in enumerate(plan.rows):
            if (row.prompt_logprob_targets is None and row.forced_targets is None) or index in results:
                continue
            shift = int(batch.query_start[index]) - row.start
            try:
                results[index] = RowResult(
                    prompt_logprobs=self._score(
                        row,
                        hidden,
                        shift + row.prompt_logprob_start,
                        row.prompt_logprob_targets,
                        self.sampler.prompt_logprobs,
                    ),
                    forced_logprobs=self._score(
                        row, hidden, shift + row.forced_start, row.forced_targets, self.sampler.forced_logprobs
                    ),
                )
            except RequestFailed as failure:
                results[index] = RowResult(error=failure.reason)

    def _score(
        self,
        row: PlanRow,
        hidden: HiddenStates,
        first: int,
        targets: Int32Array | None,
        score: Callable[[PlanRow, torch.Tensor, int], list[TokenLogprob]],
    ) -> tuple[TokenLogprob, ...]:
        """Logprobs of ``targets``, whose logits come from tokens ``first`` on of the batch, in slices of bounded memory."""
        wanted = 0 if targets is None else len(targets)
        entries: list[TokenLogprob] = []
        for offset in range(0, wanted, self.logits_rows):
            count = min(self.logits_rows, wanted - offset)
            logits = hidden.logits(np.arange(first + offset, first + offset + count))
            entries.extend(score(row, logits, offset))
        return tuple(entries)

    def _states(self, batch: FlatRows, plan: StepPlan, hidden: HiddenStates, results: dict[int, RowResult]) -> None:
        """Final hidden states, after the final norm, of the rows that want them and have no error.

        The norm is computed in float64 here, and by itself for each token, so all paths have the same one.
        """
        for index, row in enumerate(plan.rows):
            if row.states_from is None:
                continue
            result = results.get(index, _NOTHING)
            if result.error is not None:
                continue
            end = int(batch.query_start[index + 1])
            states = hidden.states(end - (row.end - row.states_from), end).astype(np.float64)
            for state in states:
                state *= self._final_norm / np.sqrt((state * state).mean() + self.config.rms_norm_eps)
            results[index] = msgspec.structs.replace(result, states=states)
