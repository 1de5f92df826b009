"""Chooses between the native kernels and torch."""

from __future__ import annotations

import logging

import torch

from radixserve.config import CacheConfig, ModelOptions, SchedulerConfig
from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.model.gguf_weights import placement, stored_matrices
from radixserve.native.library import NativeLibrary
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_runner import NativeModelRunner, unsupported
from radixserve.runtime.native_weights import BLOCK_FORMATS
from radixserve.runtime.plan_runner import PlanRunner, RunnableModel
from radixserve.runtime.tensor_parallel.runner import TensorParallelRunner
from radixserve.runtime.tensor_parallel.watchdog import DEFAULT_TIMEOUT_S

logger = logging.getLogger(__name__)

KV_DTYPES: dict[str, torch.dtype | None] = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def create_runner(
    model: RunnableModel, options: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig
) -> tuple[PlanRunner, dict[str, str | int]]:
    """The runner that ``options.kernels`` asks for, over ``cache.num_blocks`` blocks, and facts about it for information.

    ``auto`` is native where that can be had, and torch where not; the facts then give the reason as ``kernels_reason``. An
    ``attention`` other than ``auto`` names a backend of the torch path and so chooses it. ``options.weights`` likewise: where
    ``auto`` dequantizes what a file holds in blocks, ``weights_reason`` says why. Raises `ConfigError` where ``native`` is asked
    for, of either, and cannot be had.
    """
    assert cache.num_blocks is not None, "the size of the pool is resolved"
    reason = _why_not_native(model, options, cache)
    if reason is not None and options.kernels == "native":
        raise ConfigError("kernels", f"the native kernels cannot be used: {reason}")
    dense_reason = _why_dense(model, options, reason)
    if dense_reason is not None and options.weights == "native":
        raise ConfigError("weights", f"the file's own blocks cannot be used: {dense_reason}")
    if reason is None:
        runner: PlanRunner = NativeModelRunner(
            model,
            NativeLibrary.load(),
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            max_batch_tokens=scheduler.max_batch_tokens,
            threads=options.threads,
            keep_blocks=dense_reason is None,
            kv_dtype=KV_DTYPES[cache.kv_dtype],
        )
    elif options.tensor_parallel_size > 1:
        runner = TensorParallelRunner(
            model,
            ranks=options.tensor_parallel_size,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            attention=options.attention,
            threads=options.threads,
            kv_dtype=KV_DTYPES[cache.kv_dtype],
            deterministic=options.deterministic,
            watchdog_timeout_s=options.watchdog_timeout_s or DEFAULT_TIMEOUT_S,
        )
    else:
        runner = ModelRunner(
            model,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            attention=options.attention,
            threads=options.threads,
            kv_dtype=KV_DTYPES[cache.kv_dtype],
            deterministic=options.deterministic,
        )
    facts = runner.describe()
    if reason is not None and options.device == "cpu":
        facts["kernels_reason"] = reason
    if dense_reason is not None and any(stored.in_blocks for stored in stored_matrices(model.weights).values()):
        facts["weights_reason"] = dense_reason
    logger.info("forward pass: %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
    return runner, facts


def _why_dense(model: RunnableModel, options: ModelOptions, no_kernels: str | None) -> str | None:
    """None where the matrices stay in the blocks of their file; ``no_kernels``: why the native kernels do not run, if so."""
    if options.weights == "bf16":
        return "weights=bf16"
    if no_kernels is not None:
        return f"only the native kernels read them: {no_kernels}"
    if not any(stored.type_name in BLOCK_FORMATS for stored in stored_matrices(model.weights).values()):
        return f"the model has no matrix in {', '.join(sorted(BLOCK_FORMATS))}"
    dtype, _ = placement(model.weights)
    if options.weights == "auto" and dtype != torch.bfloat16:
        return f"dtype={str(dtype).removeprefix('torch.')}"
    return None


def _why_not_native(model: RunnableModel, options: ModelOptions, cache: CacheConfig) -> str | None:
    """None where the native kernels are wanted and can be had. Loads them only where all else speaks for them."""
    if options.kernels == "torch":
        return "kernels=torch"
    if options.attention != "auto":
        return f"attention={options.attention} is a backend of the torch path"
    if options.tensor_parallel_size > 1:
        return f"tensor_parallel_size={options.tensor_parallel_size}: no sum over ranks is part of what they run in one call"
    assert cache.num_blocks is not None
    dtype, device = placement(model.weights)
    reasons = unsupported(
        model.config, num_blocks=cache.num_blocks, block_size=cache.block_size, dtype=dtype, device=device
    )
    if reasons:
        return "; ".join(reasons)
    try:
        NativeLibrary.load()
    except NativeUnavailable as error:
        return str(error)
    return None
