"""Chooses the attention backend."""

from __future__ import annotations

import torch

from radixserve.attention.base import AttentionBackend
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig

BACKENDS: tuple[type[AttentionBackend], ...] = (TorchPagedAttention, FlashInferAttention)


def create_attention(
    name: str,
    config: ModelConfig,
    *,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    kv_dtype: torch.dtype | None = None,
    deterministic: bool = False,
) -> AttentionBackend:
    """The backend called ``name``, or with ``auto`` the one for the device; ``kv_dtype`` None stores KV in ``dtype``.

    ``deterministic``: a token's bits depend on its own context alone, as torch_paged's always do.

    Raises `ConfigError` with every reason where it cannot serve the model here, or where the name is unknown.
    """
    backends = {backend.name: backend for backend in BACKENDS}
    if name not in ("auto", *backends):
        raise ConfigError("attention", f"must be one of {', '.join(['auto', *backends])}, not {name!r}")
    if name == "auto":
        name = FlashInferAttention.name if device.type == "cuda" else TorchPagedAttention.name
    if reasons := backends[name].supports(config, device.type, dtype, kv_dtype):
        raise ConfigError("attention", "; ".join(reasons))
    if name == FlashInferAttention.name:
        return FlashInferAttention(
            config, block_size=block_size, dtype=dtype, device=device, kv_dtype=kv_dtype, deterministic=deterministic
        )
    return TorchPagedAttention(config, block_size=block_size, dtype=dtype)
