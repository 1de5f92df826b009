"""Chooses the attention backend."""

from __future__ import annotations

import torch

from radixserve.attention.base import AttentionBackend
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig

# In order of preference for ``auto``.
BACKENDS = (TorchPagedAttention,)


def create_attention(
    name: str, config: ModelConfig, *, block_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """The backend called ``name``, or with ``auto`` the first that supports the model here.

    Raises `ConfigError` with every reason where none does, or where the name is unknown.
    """
    candidates = [backend for backend in BACKENDS if name in ("auto", backend.name)]
    if not candidates:
        known = ", ".join(["auto", *(backend.name for backend in BACKENDS)])
        raise ConfigError("attention", f"must be one of {known}, not {name!r}")
    reasons: list[str] = []
    for backend in candidates:
        against = backend.supports(config, device.type, dtype)
        if not against:
            return backend(config, block_size=block_size, dtype=dtype)
        reasons.extend(against)
    raise ConfigError("attention", "; ".join(reasons))
