"""Which device computes, and what it must have for that."""

from __future__ import annotations

import math

import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.model.flashinfer_library import missing
from radixserve.model.weights import element_type, weight_shapes
from radixserve.runtime.tensor_parallel.shards import largest_part

# Of the memory that is free, this much is not counted on: other processes, and pieces between allocations.
SPARE_SHARE = 0.1
# FlashInfer's workspaces (at most 280 MB), logits in slices and draws from them, cuBLAS's own workspace, kernels that are loaded later.
RESERVED_BYTES = 512 << 20


def require_device(name: str, ranks: int = 1) -> torch.device:
    """The device called ``name`` (``cpu`` or ``cuda``), ready to compute; of ``ranks`` the first one's.

    Raises `ConfigError` on ``device`` with everything that is missing and what to install, and on ``tensor_parallel_size`` where there
    is not a GPU for each rank.
    """
    if name == "cuda" and (reasons := missing(name)):
        raise ConfigError("device", f"cuda cannot be used here: {'; '.join(reasons)}")
    if name == "cuda" and (found := torch.cuda.device_count()) < ranks:
        raise ConfigError("tensor_parallel_size", f"{ranks} ranks take a GPU each, and {found} can be seen here")
    return torch.device(name)


def memory_for_kv(
    config: ModelConfig, dtype: torch.dtype, max_batch_tokens: int, device: torch.device, ranks: int = 1
) -> int:
    """Bytes of a GPU's free memory that are left for KV beside the model and its largest step. An estimate, where the step is not
    run to see (`radixserve.runtime.device_start`): for one rank of several. May be negative.

    Of ``ranks`` it is the memory of all of them together. Their GPUs are taken to be alike and as free as ``device``, so the largest part
    decides: all blocks have a part on each rank, as large as its share of the KV heads. Raises `ConfigError` where the model
    cannot be parted so.

    To be asked before the weights are on the device.
    """
    free, _ = torch.cuda.mem_get_info(device)
    part = largest_part(config, ranks)
    left = (
        int(free * (1 - SPARE_SHARE))
        - model_bytes(part, dtype)
        - step_bytes(part, dtype, max_batch_tokens)
        - RESERVED_BYTES
    )
    return left * config.num_kv_heads // part.num_kv_heads


def model_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of all weights."""
    shapes = weight_shapes(config)
    return sum(math.prod(shape) * element_type(name, dtype).itemsize for name, shape in shapes.items())


def step_bytes(config: ModelConfig, dtype: torch.dtype, tokens: int) -> int:
    """Bytes of the largest activations of ``tokens`` tokens that live at once.

    The residual stream, its norm and the block's output; q, k, v with the rotated copy and the attention's output, or gate, up
    and their product; the last hidden states in float32.
    """
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim + config.num_heads * config.head_dim
    wide = max(heads, 3 * config.intermediate_size)
    return tokens * ((3 * config.hidden_size + wide) * dtype.itemsize + 4 * config.hidden_size)
