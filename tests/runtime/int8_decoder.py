"""A slow decoder in float64 that rounds what quantized linears read as the kernels do: the reference of the native weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig

Float64Array = npt.NDArray[np.float64]


def rounded(x: Float64Array) -> Float64Array:
    """Rows of ``x`` as int8 times a scale for each 16 elements: a unit of the row times a whole number of six bits; all made in float32."""
    groups = x.astype(np.float32).reshape(len(x), -1, 16)
    most = np.float32(2**14)
    largest = np.maximum(np.abs(groups).max(axis=(1, 2), keepdims=True), np.float32(1e-30))
    unit = largest / np.float32(127) / most
    mantissa, exponent = np.frexp(np.abs(groups).max(axis=-1, keepdims=True) * (most / largest))
    times = np.clip(np.ceil(np.ldexp(np.ceil(mantissa * 64) / np.float32(64), exponent)), 1, most)
    integers = np.clip(np.rint(groups * (1 / (unit * times))), -127, 127).astype(np.float64)
    values: Float64Array = (integers * unit * times).reshape(len(x), -1)
    return values


def reference_logits(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], tokens: Sequence[int], kept: set[str]
) -> Float64Array:
    """Logits [T, vocab] of one prompt. ``weights``: dequantized to float32; ``kept``: names of those that round their input."""

    def weight(name: str) -> Float64Array:
        return weights[name].double().numpy()

    def linear(name: str, x: Float64Array) -> Float64Array:
        out: Float64Array = (rounded(x) if name in kept else x) @ weight(name).T
        return out + weight(f"{name}_bias") if f"{name}_bias" in weights else out

    def norm(x: Float64Array, name: str) -> Float64Array:
        normed: Float64Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight(name)
        return normed

    half, count = config.head_dim // 2, len(tokens)
    positions = np.arange(count)
    angles = positions[:, None, None] * config.rope_theta ** (-np.arange(half) / half)

    def rotated(x: Float64Array) -> Float64Array:
        low, high = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    visible = positions[None, :] <= positions[:, None]
    if config.sliding_window is not None:
        visible &= positions[None, :] > positions[:, None] - config.sliding_window
    x = weight("embed")[list(tokens)]
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        h = norm(x, prefix + "attn_norm")
        q, k, v = (linear(prefix + name, h).reshape(count, -1, config.head_dim) for name in "qkv")
        if config.qk_norm:
            q, k = norm(q, prefix + "q_norm"), norm(k, prefix + "k_norm")
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(part, config.group_size, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * config.head_dim**-0.5
        scores = np.exp(
            np.where(visible, scores - scores.max(axis=-1, keepdims=True, where=visible, initial=-1e9), -np.inf)
        )
        attended = np.einsum("hqk,khd->qhd", scores / scores.sum(axis=-1, keepdims=True), v)
        x = x + linear(prefix + "o", attended.reshape(count, -1))
        h = norm(x, prefix + "mlp_norm")
        gate = linear(prefix + "gate", h)
        x = x + linear(prefix + "down", gate / (1 + np.exp(-gate)) * linear(prefix + "up", h))
    return linear("embed" if config.tied_head else "head", norm(x, "final_norm"))
