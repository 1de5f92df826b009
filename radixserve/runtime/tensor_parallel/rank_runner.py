"""What every rank runs: the torch path over its part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.plan_runner import EndTokens
from radixserve.runtime.tensor_parallel.rank_sum import RankSum


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """What a runner needs of a rank's part of a model."""

    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    generation: EndTokens


class RankRunner(ModelRunner):
    """One rank's decoder, attention and KV. All ranks go through the layers together, with equal batches.

    ``draws``: whether the rank is the one that has a head and draws tokens. The rest as for `ModelRunner`.
    """

    def __init__(
        self,
        part: ModelPart,
        rank_sum: RankSum,
        *,
        draws: bool,
        num_blocks: int,
        block_size: int,
        attention: str,
        threads: int,
        kv_dtype: torch.dtype | None,
        deterministic: bool,
    ) -> None:
        super().__init__(
            part,
            num_blocks=num_blocks,
            block_size=block_size,
            attention=attention,
            threads=threads,
            kv_dtype=kv_dtype,
            sum_over_ranks=rank_sum,
            with_head=draws,
            deterministic=deterministic,
        )
        self.rank_sum = rank_sum

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch: in this rank's own part, or in the sum. All ranks ask at once."""
        own = super().broken_promises()
        if not self.deterministic:
            return own
        with torch.inference_mode():
            return own + self.rank_sum.broken_promises(self.config.hidden_size, self.dtype)
