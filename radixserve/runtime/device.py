"""Which device computes, and what it must have for that."""

from __future__ import annotations

import math

import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.model.flashinfer_library import missing
from radixserve.model.weights import element_type, weight_shapes

# Of the memory that is free, this much is not counted on: other processes, and pieces between allocations.
SPARE_SHARE = 0.1
# FlashInfer's workspaces (at most 280 MB), logits in slices, cuBLAS's own workspace, kernels that are loaded later.
RESERVED_BYTES = 512 << 20


def require_device(name: str) -> torch.device:
    """The device called ``name`` (``cpu`` or ``cuda``), ready to compute.

    Raises `ConfigError` on ``device`` with everything that is missing and what to install.
    """
    if name == "cuda" and (reasons := missing(name)):
        raise ConfigError("device", f"cuda cannot be used here: {'; '.join(reasons)}")
    return torch.device(name)


def memory_for_kv(config: ModelConfig, dtype: torch.dtype, max_batch_tokens: int, device: torch.device) -> int:
    """Bytes of a GPU's free memory that are left for KV beside the model and its largest step. An estimate; may be negative.

    To be asked before the weights are on the device.
    """
    free, _ = torch.cuda.mem_get_info(device)
    return (
        int(free * (1 - SPARE_SHARE))
        - model_bytes(config, dtype)
        - step_bytes(config, dtype, max_batch_tokens)
        - RESERVED_BYTES
    )


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
