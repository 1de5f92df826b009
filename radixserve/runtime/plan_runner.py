"""Runs a step's plan: what all forward paths have in common. The only place where plans meet tensors."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from radixserve.errors import RequestFailed
from radixserve.messages import TokenLogprob
from radixserve.model.config import ModelConfig
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.sampler import Sampler
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult

LOGITS_BYTES = 32 << 20


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
        """Weights under canonical names; the dtype of ``embed`` is the dtype of the forward pass and of the KV."""

    @property
    def generation(self) -> EndTokens:
        """Generation defaults."""


class HiddenStates(Protocol):
    """What a forward pass leaves of its T tokens, before the final norm; valid until the next forward pass."""

    def non_finite_tokens(self) -> Int64Array:
        """Ascending indices in T of the tokens with a NaN or an infinity in their hidden state."""

    def logits(self, tokens: Int64Array) -> torch.Tensor:
        """Float32 logits [n, vocab] of ``tokens`` [n], indices in T; valid until the next call. The caller bounds n."""


class PlanRunner(ABC):
    """Executes plans, one at a time, over the KV of the whole pool; a subclass is one way to compute a forward pass."""

    kv: BlockStore

    def __init__(self, model: RunnableModel) -> None:
        embed = model.weights["embed"]
        self.config = model.config
        self.device, self.dtype = embed.device, embed.dtype
        self.sampler = Sampler(model.config.vocab_size, tuple(model.generation.eos_ids))
        self.logits_rows = max(1, LOGITS_BYTES // (4 * model.config.vocab_size))

    @abstractmethod
    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""

    @abstractmethod
    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers over the batch; K and V of its tokens are in ``kv`` afterwards."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Copy blocks, run the forward pass, draw tokens.

        A row whose hidden states or logits are not finite gets an error and nothing else; the other rows are untouched
        by it. Anything that raises has failed the whole step: its KV slots hold garbage, nothing was drawn.
        """
        began = time.perf_counter()
        with torch.inference_mode():
            self.kv.copy_blocks(plan.copies)
            rows = self._run(plan) if plan.rows else ()
        return StepResult(plan.step, rows, time.perf_counter() - began)

    def _run(self, plan: StepPlan) -> tuple[RowResult, ...]:
        batch = ForwardBatch.from_plan(plan, self.kv.block_size, self.device)
        hidden = self.forward(batch)
        results = self._non_finite_rows(batch, plan, hidden)
        self._prompt_logprobs(batch, plan, hidden, results)
        self._sample(batch, plan, hidden, results)
        return tuple(results.get(index, RowResult()) for index in range(batch.num_rows))

    def _non_finite_rows(self, batch: ForwardBatch, plan: StepPlan, hidden: HiddenStates) -> dict[int, RowResult]:
        """Errors by row for rows with a NaN or an infinity in any token's hidden state: their KV must not be used."""
        results: dict[int, RowResult] = {}
        for token in hidden.non_finite_tokens().tolist():
            row = int(batch.query_start.searchsorted(token, "right")) - 1
            position = plan.rows[row].start + token - int(batch.query_start[row])
            results.setdefault(row, RowResult(error=f"non-finite hidden state at position {position}"))
        return results

    def _sample(self, batch: ForwardBatch, plan: StepPlan, hidden: HiddenStates, results: dict[int, RowResult]) -> None:
        """Draw the tokens of the rows that want some and have no error, in slices of bounded memory."""
        failed = {row for row, result in results.items() if result.error is not None}
        drawing = [place for place, row in enumerate(batch.sample_rows.tolist()) if row not in failed]
        for first in range(0, len(drawing), self.logits_rows):
            part = drawing[first : first + self.logits_rows]
            rows = batch.sample_rows[part].tolist()
            logits = hidden.logits(batch.sample_tokens[part])
            drawn = self.sampler.sample([plan.rows[row] for row in rows], logits)
            for row, result in zip(rows, drawn, strict=True):
                if row in results and result.error is None:
                    result = dataclasses.replace(result, prompt_logprobs=results[row].prompt_logprobs)
                results[row] = result

    def _prompt_logprobs(
        self, batch: ForwardBatch, plan: StepPlan, hidden: HiddenStates, results: dict[int, RowResult]
    ) -> None:
        """Prompt logprobs of the rows that want them, in slices of bounded memory."""
        for index, row in enumerate(plan.rows):
            if row.prompt_logprob_targets is None or len(row.prompt_logprob_targets) == 0 or index in results:
                continue
            first = int(batch.query_start[index]) + row.prompt_logprob_start - row.start
            try:
                results[index] = RowResult(prompt_logprobs=tuple(self._score(row, hidden, first)))
            except RequestFailed as failure:
                results[index] = RowResult(error=failure.reason)

    def _score(self, row: PlanRow, hidden: HiddenStates, first: int) -> list[TokenLogprob]:
        """Logprobs of the row's targets, whose logits come from tokens ``first`` on of the batch."""
        assert row.prompt_logprob_targets is not None
        wanted = len(row.prompt_logprob_targets)
        entries: list[TokenLogprob] = []
        for offset in range(0, wanted, self.logits_rows):
            count = min(self.logits_rows, wanted - offset)
            logits = hidden.logits(np.arange(first + offset, first + offset + count))
            entries.extend(self.sampler.prompt_logprobs(row, logits, offset))
        return entries
