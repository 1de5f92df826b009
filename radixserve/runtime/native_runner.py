"""The native path: the decoder on the package's own CPU kernels."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.native.kv_layout import SUB_BLOCK
from radixserve.native.library import NativeLibrary
from radixserve.native.threads import usable_cores
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.native_decoder import NativeDecoder
from radixserve.runtime.native_promise import broken_promises
from radixserve.runtime.native_weights import NativeWeights
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner, RunnableModel
from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import RowResult, StepPlan

MULTIPLE = 16
LARGEST_HEAD = 256
# Slots are int32 to the kernels.
MOST_SLOTS = 2**31


def unsupported(
    config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[str]:
    """Reasons why the native kernels cannot serve this model and pool; empty if they can."""
    reasons = []
    if device.type != "cpu":
        reasons.append(f"they run on the CPU, not on {device}")
    if dtype not in (torch.bfloat16, torch.float32):
        reasons.append(f"they compute in bfloat16 or float32, not in {dtype}")
    if block_size % SUB_BLOCK:
        reasons.append(f"block_size {block_size} is not a multiple of {SUB_BLOCK}")
    reasons += [
        f"the model's {name} {getattr(config, name)} is not a multiple of {MULTIPLE}"
        for name in ("hidden_size", "intermediate_size", "head_dim")
        if getattr(config, name) % MULTIPLE
    ]
    if config.attention_soft_cap is not None:
        reasons.append("the model caps its attention scores")
    if config.head_dim > LARGEST_HEAD:
        reasons.append(f"the model's head_dim {config.head_dim} is above {LARGEST_HEAD}")
    if num_blocks * block_size > MOST_SLOTS:
        reasons.append(f"a pool of {num_blocks} blocks of {block_size} tokens has more than {MOST_SLOTS} slots")
    return reasons


class NativeModelRunner(PlanRunner):
    """Executes plans with the kernels of ``library``.

    ``num_blocks``, ``block_size``: the pool. ``max_batch_tokens``: what a step is expected to hold at most; longer ones run
    as well, after more memory was taken. ``threads``: of the kernels, for the whole process; 0 takes the cores this process
    may use. ``keep_blocks``: matrices that a GGUF file holds in `BLOCK_FORMATS` stay as they are; otherwise all are packed in the
    dtype of the weights. ``kv_dtype``: of the pool, int8 or None for the dtype of the weights. Torch is set to one thread: it
    only moves blocks here, and its pool would spin on the cores the kernels need.
    Raises `ConfigError` for what `unsupported` names.
    """

    # A step has nothing of torch but memory, and to enter its mode takes as long as to plan a row.
    torch_mode = nullcontext

    def __init__(
        self,
        model: RunnableModel,
        library: NativeLibrary,
        *,
        num_blocks: int,
        block_size: int,
        max_batch_tokens: int,
        threads: int = 0,
        keep_blocks: bool = False,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(model)
        config = model.config
        reasons = unsupported(
            config, num_blocks=num_blocks, block_size=block_size, dtype=self.dtype, device=self.device
        )
        if reasons:
            raise ConfigError("kernels", f"the native kernels cannot serve this: {'; '.join(reasons)}")
        library.set_threads(threads or usable_cores())
        torch.set_num_threads(1)
        self.kv_dtype = kv_dtype or self.dtype
        self.kv = BlockStore(
            config, num_blocks=num_blocks, block_size=block_size, dtype=self.kv_dtype, device=self.device
        )
        with torch.inference_mode():
            self._weights = NativeWeights.pack(config, model.weights, keep_blocks=keep_blocks)
            self.decoder = NativeDecoder(
                library, config, self._weights, self.kv, tokens=max_batch_tokens, logits_rows=self.logits_rows
            )
        self._library = library

    def describe(self) -> dict[str, str | int]:
        """Which kernels run, for logs and server information."""
        return {
            "kernels": "native",
            "isa": self._library.isa,
            "dtype": str(self.dtype).removeprefix("torch."),
            **self._weights.describe(),
            "device": str(self.device),
            "threads": self._library.threads,
            "kv_dtype": str(self.kv_dtype).removeprefix("torch."),
            "kv_bytes": self.kv.num_bytes,
            "weight_bytes": self._weights.num_bytes,
        }

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on this machine, after a short self-test; empty if they cannot."""
        return broken_promises(self._library, self.config, self._weights, self.kv.block_size, self.kv_dtype)

    def _run(self, plan: StepPlan, choices: Choices | None) -> tuple[RowResult, ...]:
        step = self.decoder.flatten(plan)
        return self.results(plan, step, self.decoder.run(step), choices)

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers over the batch; K and V of its tokens are in ``kv`` afterwards. Raises `MemoryError`."""
        return self.decoder.forward(batch)
