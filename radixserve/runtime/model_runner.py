"""The torch path: any model and any block size on a CPU, slower than the native kernels; and all there is for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.registry import create_attention
from radixserve.model.decoder import Decoder
from radixserve.model.flashinfer_ops import FlashInferOps
from radixserve.model.ops import Ops, SumOverRanks
from radixserve.model.torch_ops import TorchOps
from radixserve.native.threads import usable_cores
from radixserve.runtime.bit_promise import broken_promises
from radixserve.runtime.decode_graphs import DecodeGraphs
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.graph_recorder import GraphRecorder
from radixserve.runtime.host_copies import on_device
from radixserve.runtime.kv_store import KVStore, create_kv_store
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner, RunnableModel
from radixserve.scheduler.plan import StepPlan


class ModelRunner(PlanRunner):
    """Executes plans with the decoder in torch, on the device of the weights.

    ``num_blocks``, ``block_size``: the pool; ``kv_dtype``: of its blocks, None for the model's. ``attention``: a backend's name
    or ``auto``. ``threads``: of the forward pass, for the whole process; 0 takes the cores this process may use. ``sum_over_ranks``,
    ``with_head``: of the decoder, where the model is one rank's part. ``deterministic``: bits do not depend on the batch, which on a
    CPU they never do. Raises `ConfigError` where the model cannot be run here.
    """

    kv: KVStore

    def __init__(
        self,
        model: RunnableModel,
        *,
        num_blocks: int,
        block_size: int,
        attention: str = "auto",
        threads: int = 0,
        kv_dtype: torch.dtype | None = None,
        sum_over_ranks: SumOverRanks | None = None,
        with_head: bool = True,
        deterministic: bool = False,
    ) -> None:
        super().__init__(model)
        torch.set_num_threads(threads or usable_cores())
        self.deterministic = deterministic or self.device.type == "cpu"
        with torch.inference_mode():
            self.attention = create_attention(
                attention,
                model.config,
                block_size=block_size,
                dtype=self.dtype,
                device=self.device,
                kv_dtype=kv_dtype,
                deterministic=deterministic,
            )
            ops: Ops = TorchOps(self.dtype)
            if self.device.type == "cuda":
                ops = FlashInferOps(self.dtype, deterministic=deterministic)
            self.decoder = Decoder(model.config, model.weights, ops, sum_over_ranks=sum_over_ranks, with_head=with_head)
        self.kv_dtype = kv_dtype or self.dtype
        self.graphs: DecodeGraphs | None = None
        self._block_size = block_size
        self.allocate(num_blocks)

    def allocate(self, num_blocks: int, *, spare: bool = False) -> None:
        """Another pool in the place of the one it has, whose contents are lost. ``spare``: with one more block, which is nobody's."""
        self.graphs = None
        # Gone before the new one is made: there may not be room for both.
        self.__dict__.pop("kv", None)
        self.kv = create_kv_store(
            self.config,
            num_blocks=num_blocks + spare,
            block_size=self._block_size,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            device=self.device,
        )

    def capture(self, most_rows: int, context_length: int, budget_bytes: int, recorder: GraphRecorder) -> None:
        """Capture steps of up to ``most_rows`` decodes over the pool, which was allocated with a spare block; see `DecodeGraphs`."""
        assert isinstance(self.attention, FlashInferAttention), "only FlashInfer's attention can be captured"
        with torch.inference_mode():
            self.graphs = DecodeGraphs(
                self.decoder,
                self.attention,
                self.kv,
                spare=self.kv.num_blocks - 1,
                most_rows=most_rows,
                context_length=context_length,
                budget_bytes=budget_bytes,
                recorder=recorder,
            )

    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""
        facts: dict[str, str | int] = {
            "kernels": "torch" if self.device.type == "cpu" else "cuda",
            "attention": self.attention.name,
            "linears": self.decoder.ops.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(self.dtype).removeprefix("torch."),
            "kv_dtype": str(self.kv_dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "kv_bytes": self.kv.num_bytes,
        }
        if self.graphs is not None:
            facts["cuda_graphs"] = ", ".join(map(str, self.graphs.sizes)) or "none fits"
            facts["cuda_graph_bytes"] = self.graphs.used_bytes
        return facts

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""
        if not self.deterministic:
            return ["a GPU's kernels split their sums by the size of the batch: deterministic has them not do that"]
        return broken_promises(self.decoder, self.attention, self.kv.block_size, self.kv_dtype, self.device)

    def flatten(self, plan: StepPlan) -> ForwardBatch:
        """The plan's rows where the next forward pass reads them: for FlashInfer one copy brings all of a step to the device."""
        if not isinstance(self.attention, FlashInferAttention):
            return super().flatten(plan)
        batch = ForwardBatch.from_plan(plan, self.kv.block_size)
        captured = None if self.graphs is None else self.graphs.stage(batch)
        return self.attention.stage(batch) if captured is None else captured

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers over the batch; K and V of its tokens are in ``kv`` afterwards."""
        hidden = None if self.graphs is None else self.graphs.replay(batch)
        return _Hidden(self.decoder, self.decoder.forward(batch, self.attention, self.kv) if hidden is None else hidden)


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
        return self.decoder.logits(self.rows.index_select(0, on_device(tokens, self.rows.device)))
