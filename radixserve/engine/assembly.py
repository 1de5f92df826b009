"""A loaded model and its options to a machine that can step."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.config import EngineConfig
from radixserve.engine.client import EngineInfo
from radixserve.engine.core import EngineCore
from radixserve.engine.token_index import TokenIndex
from radixserve.grammar.compiler import ConstraintCompiler

if TYPE_CHECKING:
    from radixserve.engine.loop import EngineLoop
    from radixserve.model.loader import LoadedModel
    from radixserve.runtime.plan_runner import PlanRunner
    from radixserve.runtime.token_feed import TokenFeed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """``core`` is ready to step; ``info`` is what can be said about it.

    ``runner``: what computes the core's steps; ``feed``: what begins them early, where the device lets it.
    """

    core: EngineCore
    info: EngineInfo
    runner: PlanRunner
    feed: TokenFeed | None = None

    def run_by(self, loop: EngineLoop) -> EngineLoop:
        """``loop`` runs the core: the runner ends with it, and it with the runner. The same loop."""
        loop.at_end(lambda failure: self.runner.close())
        self.runner.when_lost(loop.fail)
        return loop


def assemble(model: LoadedModel, config: EngineConfig, stage: Callable[[str], None] = lambda text: None) -> Assembly:
    """The core over ``model`` that ``config`` asks for.

    ``stage`` is told what is being done. Raises `ConfigError` for what cannot be on this machine.
    """
    from radixserve.model.device_weights import DeviceWeights
    from radixserve.model.gguf_weights import placement
    from radixserve.runtime.device import memory_for_kv, require_device
    from radixserve.runtime.device_start import StepLimits, start_on_gpu
    from radixserve.runtime.machine import pool_blocks, returning_freed_memory
    from radixserve.runtime.model_runner import ModelRunner
    from radixserve.runtime.runner_choice import KV_DTYPES, create_runner
    from radixserve.runtime.token_feed import TokenFeed

    device = require_device(config.model.device, config.model.tensor_parallel_size)
    dtype, _ = placement(model.weights)
    device_memory = None
    if device.type != "cpu":
        model = dataclasses.replace(model, weights=DeviceWeights(model.weights, dtype, device))
        ranks = config.model.tensor_parallel_size
        device_memory = memory_for_kv(model.config, dtype, config.scheduler.max_batch_tokens, device, ranks)
    size_pool = functools.partial(
        pool_blocks,
        model.config,
        block_size=config.cache.block_size,
        kv_dtype=KV_DTYPES[config.cache.kv_dtype] or dtype,
        num_blocks=config.cache.num_blocks,
        kv_memory_mb=config.cache.kv_memory_mb,
    )
    limits = StepLimits.of(config, model.config.context_length)
    # On one GPU the pool is what the largest step leaves, which is run first.
    measured = device.type == "cuda" and config.model.tensor_parallel_size == 1
    num_blocks = limits.blocks if measured else size_pool(device_memory=device_memory)
    config = config.resolve(context_length=model.config.context_length, num_blocks=num_blocks)
    with returning_freed_memory():
        stage("packing weights")
        runner, facts = create_runner(model, config.model, config.cache, config.scheduler)
        if measured:
            assert isinstance(runner, ModelRunner)
            stage("measuring the largest step and capturing graphs")
            num_blocks = start_on_gpu(runner, limits, config.model, lambda memory: size_pool(device_memory=memory))
            config = config.resolve(context_length=model.config.context_length, num_blocks=num_blocks)
            facts |= runner.describe()
        stage("checking that bits do not depend on the batch")
        try:
            broken_promises = runner.broken_promises()
        except BaseException:
            runner.close()
            raise
    for reason in broken_promises:
        logger.warning("cold == warm cannot be kept on this machine: %s", reason)
    feed = TokenFeed(runner) if config.scheduler.overlap == "on" and measured else None
    core = EngineCore(
        config,
        feed or runner,
        model.tokenizer,
        vocab_size=model.config.vocab_size,
        eos_ids=model.generation.eos_ids,
        fingerprint=model.fingerprint,
        compiler=ConstraintCompiler(model.tokenizer, model.generation.eos_ids),
        token_index=TokenIndex(model.tokenizer),
    )
    info = EngineInfo(
        model=model.name,
        source=model.source,
        architecture=model.config.architecture,
        fingerprint=model.fingerprint,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        context_length=core.limits.context_length,
        num_blocks=core.limits.num_blocks,
        block_size=core.limits.block_size,
        max_running=core.limits.max_running,
        eos_ids=tuple(model.generation.eos_ids),
        default_sampling=model.generation.sampling(),
        runner=facts,
        options=_flat(config),
        broken_promises=broken_promises,
    )
    return Assembly(core, info, runner, feed)


def _flat(config: EngineConfig) -> dict[str, Any]:
    """Every option by the name it is given under."""
    flat: dict[str, Any] = {}
    for part in (config.model, config.cache, config.scheduler):
        flat |= {item.name: getattr(part, item.name) for item in dataclasses.fields(part)}
    return {**flat, "seed": config.seed}
