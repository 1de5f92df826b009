"""Runs a step's plan on the model: the only place where plans meet tensors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Protocol

import torch

from radixserve.attention.registry import create_attention
from radixserve.errors import RequestFailed
from radixserve.messages import TokenLogprob
from radixserve.model.config import ModelConfig
from radixserve.model.decoder import Decoder
from radixserve.model.torch_ops import TorchOps
from radixserve.runtime.bit_promise import broken_promises
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.runtime.machine import usable_cores
from radixserve.runtime.sampler import Sampler
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult

LOGITS_BYTES = 32 << 20


class EndTokens(Protocol):
    """The part of a model's generation defaults that sampling needs."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""


class RunnableModel(Protocol):
    """What the runner needs of a loaded model.

    The runner keeps no reference to it: of its weights only the embedding table stays in use, the rest is packed into
    copies.
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


class ModelRunner:
    """Executes plans, one at a time, and keeps the KV of the whole pool.

    ``num_blocks``, ``block_size``: the pool. ``attention``: a backend's name or ``auto``. ``threads``: of the forward pass,
    for the whole process; 0 takes the cores this process may use. Raises `ConfigError` where the model cannot be run here.
    """

    def __init__(
        self, model: RunnableModel, *, num_blocks: int, block_size: int, attention: str = "auto", threads: int = 0
    ) -> None:
        torch.set_num_threads(threads or usable_cores())
        embed = model.weights["embed"]
        self.config = model.config
        self.device, self.dtype = embed.device, embed.dtype
        with torch.inference_mode():
            self.attention = create_attention(
                attention, model.config, block_size=block_size, dtype=self.dtype, device=self.device
            )
            self.decoder = Decoder(model.config, model.weights, TorchOps(self.dtype))
        self.kv = KVStore(
            model.config, num_blocks=num_blocks, block_size=block_size, dtype=self.dtype, device=self.device
        )
        self.sampler = Sampler(model.config.vocab_size, tuple(model.generation.eos_ids))
        self._slice_rows = max(1, LOGITS_BYTES // (4 * model.config.vocab_size))

    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""
        return {
            "attention": self.attention.name,
            "linears": self.decoder.ops.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "kv_bytes": self.kv.num_bytes,
        }

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""
        return broken_promises(self.decoder, self.attention, self.kv.block_size)

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
        hidden = self.decoder.forward(batch, self.attention, self.kv)
        results = self._non_finite_rows(batch, plan, hidden)
        self._prompt_logprobs(batch, plan, hidden, results)
        self._sample(batch, plan, hidden, results)
        return tuple(results.get(index, RowResult()) for index in range(batch.num_rows))

    def _non_finite_rows(self, batch: ForwardBatch, plan: StepPlan, hidden: torch.Tensor) -> dict[int, RowResult]:
        """Errors by row for rows with a NaN or an infinity in any token's hidden state: their KV must not be used."""
        # 0 * x is 0 exactly where x is finite, so the sum of the products is NaN where a token is not.
        bad = torch.isnan((hidden * 0.0).sum(-1)).cpu().numpy()
        results: dict[int, RowResult] = {}
        for token in bad.nonzero()[0].tolist():
            row = int(batch.query_start.searchsorted(token, "right")) - 1
            position = plan.rows[row].start + token - int(batch.query_start[row])
            results.setdefault(row, RowResult(error=f"non-finite hidden state at position {position}"))
        return results

    def _sample(self, batch: ForwardBatch, plan: StepPlan, hidden: torch.Tensor, results: dict[int, RowResult]) -> None:
        """Draw the tokens of the rows that want some and have no error, in slices of bounded memory."""
        drawing = [
            (row, token)
            for row, token in zip(batch.sample_rows.tolist(), batch.sample_tokens.tolist(), strict=True)
            if row not in results or results[row].error is None
        ]
        for first in range(0, len(drawing), self._slice_rows):
            part = drawing[first : first + self._slice_rows]
            wanted = torch.tensor([token for _, token in part], device=self.device)
            logits = self.decoder.logits(hidden.index_select(0, wanted))
            drawn = self.sampler.sample([plan.rows[row] for row, _ in part], logits)
            for (row, _), result in zip(part, drawn, strict=True):
                if row in results and result.error is None:
                    result = dataclasses.replace(result, prompt_logprobs=results[row].prompt_logprobs)
                results[row] = result

    def _prompt_logprobs(
        self, batch: ForwardBatch, plan: StepPlan, hidden: torch.Tensor, results: dict[int, RowResult]
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

    def _score(self, row: PlanRow, hidden: torch.Tensor, first: int) -> list[TokenLogprob]:
        """Logprobs of the row's targets, whose logits come from tokens ``first`` on of the batch."""
        assert row.prompt_logprob_targets is not None
        wanted = len(row.prompt_logprob_targets)
        entries: list[TokenLogprob] = []
        for offset in range(0, wanted, self._slice_rows):
            count = min(self._slice_rows, wanted - offset)
            logits = self.decoder.logits(hidden[first + offset : first + offset + count])
            entries.extend(self.sampler.prompt_logprobs(row, logits, offset))
        return entries
