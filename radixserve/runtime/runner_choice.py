"""Chooses between the native kernels and torch."""

from __future__ import annotations

import logging

from radixserve.config import CacheConfig, ModelOptions, SchedulerConfig
from radixserve.errors import ConfigError, NativeUnavailable
from radixserve.native.library import NativeLibrary
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_runner import NativeModelRunner, unsupported
from radixserve.runtime.plan_runner import PlanRunner, RunnableModel

logger = logging.getLogger(__name__)


def create_runner(
    model: RunnableModel, options: ModelOptions, cache: CacheConfig, scheduler: SchedulerConfig
) -> tuple[PlanRunner, dict[str, str | int]]:
    """The runner that ``options.kernels`` asks for, over ``cache.num_blocks`` blocks, and facts about it for information.

    ``auto`` is native where that can be had, and torch where not; the facts then give the reason as ``kernels_reason``. An
    ``attention`` other than ``auto`` names a backend of the torch path and so chooses it. Raises `ConfigError` where
    ``native`` is asked for and cannot be had.
    """
    assert cache.num_blocks is not None, "the size of the pool is resolved"
    reason = _why_not_native(model, options, cache)
    if reason is None:
        runner: PlanRunner = NativeModelRunner(
            model,
            NativeLibrary.load(),
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            max_batch_tokens=scheduler.max_batch_tokens,
            threads=options.threads,
        )
    elif options.kernels == "native":
        raise ConfigError("kernels", f"the native kernels cannot be used: {reason}")
    else:
        runner = ModelRunner(
            model,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            attention=options.attention,
            threads=options.threads,
        )
    facts = runner.describe()
    if reason is not None:
        facts["kernels_reason"] = reason
    logger.info("forward pass: %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
    return runner, facts


def _why_not_native(model: RunnableModel, options: ModelOptions, cache: CacheConfig) -> str | None:
    """None where the native kernels are wanted and can be had. Loads them only where all else speaks for them."""
    if options.kernels == "torch":
        return "kernels=torch"
    if options.attention != "auto":
        return f"attention={options.attention} is a backend of the torch path"
    assert cache.num_blocks is not None
    embed = model.weights["embed"]
    reasons = unsupported(
        model.config,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        dtype=embed.dtype,
        device=embed.device,
    )
    if reasons:
        return "; ".join(reasons)
    try:
        NativeLibrary.load()
    except NativeUnavailable as error:
        return str(error)
    return None
