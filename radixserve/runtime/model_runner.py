"""The torch path: any model, any block size, slower than the native kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.attention.registry import create_attention
from radixserve.model.decoder import Decoder
from radixserve.model.torch_ops import TorchOps
from radixserve.native.threads import usable_cores
from radixserve.runtime.bit_promise import broken_promises
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.kv_store import KVStore
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner, RunnableModel


class ModelRunner(PlanRunner):
    """Executes plans with the decoder in torch.

    ``num_blocks``, ``block_size``: the pool. ``attention``: a backend's name or ``auto``. ``threads``: of the forward pass,
    for the whole process; 0 takes the cores this process may use. Raises `ConfigError` where the model cannot be run here.
    """

    kv: KVStore

    def __init__(
        self, model: RunnableModel, *, num_blocks: int, block_size: int, attention: str = "auto", threads: int = 0
    ) -> None:
        super().__init__(model)
        torch.set_num_threads(threads or usable_cores())
        with torch.inference_mode():
            self.attention = create_attention(
                attention, model.config, block_size=block_size, dtype=self.dtype, device=self.device
            )
            self.decoder = Decoder(model.config, model.weights, TorchOps(self.dtype))
        self.kv = KVStore(
            model.config, num_blocks=num_blocks, block_size=block_size, dtype=self.dtype, device=self.device
        )

    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""
        return {
            "kernels": "torch",
            "attention": self.attention.name,
            "linears": self.decoder.ops.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "kv_bytes": self.kv.num_bytes,
        }

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""
        return broken_promises(self.decoder, self.attention, self.kv.block_size)

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers over the batch; K and V of its tokens are in ``kv`` afterwards."""
        return _Hidden(self.decoder, self.decoder.forward(batch, self.attention, self.kv))


@dataclass(frozen=True, slots=True, eq=False)
class _Hidden:
    """``rows``: float32 [T, hidden]."""

    decoder: Decoder
    rows: torch.Tensor

    def states(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Hidden states of tokens ``first`` to ``last`` - 1."""
        found: npt.NDArray[np.float32] = self.rows[first:last].cpu().numpy()
        return found

    def non_finite_tokens(self) -> Int64Array:
        """Tokens with a NaN or an infinity in their hidden state."""
        # 0 * x is 0 exactly where x is finite, so the sum of the products is NaN where a token is not.
        found: Int64Array = torch.isnan((self.rows * 0.0).sum(-1)).nonzero().flatten().cpu().numpy()
        return found

    def logits(self, tokens: Int64Array) -> torch.Tensor:
        """Float32 logits of ``tokens``."""
        return self.decoder.logits(self.rows.index_select(0, torch.from_numpy(tokens).to(self.rows.device)))
