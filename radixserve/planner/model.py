"""What a plan needs of a model: how it reads and writes text, and its sizes. No weights, no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from radixserve.config import CacheConfig, EngineConfig
from radixserve.engine.client import EngineInfo
from radixserve.engine.token_index import TokenIndex
from radixserve.errors import ConfigError, ModelLoadError
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.model.gguf import GGUFFile
from radixserve.model.location import find_model
from radixserve.model.text import TextModel, directory_config, load_text_model
from radixserve.planner.step_cost import StepCost
from radixserve.planner.traced_core import TracedCore
from radixserve.runtime.step_runner import Runner

# Where nobody says how large the pool is: more than nearly every plan fills, so that nothing is evicted.
AMPLE_BLOCKS = 1 << 18
_ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class PlanModel:
    """The text side of a model, and the longest context (tokens) it takes."""

    text: TextModel
    context_length: int


def load_plan_model(name: str) -> PlanModel:
    """Of a model as `radixserve.model.text.load_text_model` takes it; raises as that does."""
    path = find_model(name)
    if path.is_dir():
        return PlanModel(load_text_model(name), directory_config(path).context_length)
    metadata = GGUFFile.open(path).metadata
    length = metadata.typed(f"{metadata.typed('general.architecture', str)}.context_length", int)
    if length is None:
        raise ModelLoadError(f"{path}: the file does not tell the context length")
    return PlanModel(load_text_model(name), length)


def traced_core(model: PlanModel, config: EngineConfig, runner: Runner, *, cost: StepCost) -> TracedCore:
    """The core of an engine as ``config`` asks for, over ``runner``, with a model or without. Raises `ConfigError`."""
    if config.scheduler.itl_target_ms is not None and cost.nominal:
        raise ConfigError("itl_target_ms", "is a time: a plan needs step_cost to know how long a step takes")
    num_blocks = _pool_blocks(config.cache, config)
    # The clock is the plan's own, so there is no time to save; and what a step computes is told exactly only one step at a time.
    config = dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, overlap="off"))
    config = config.resolve(context_length=model.context_length, num_blocks=num_blocks)
    text = model.text
    return TracedCore(
        config,
        runner,
        text.tokenizer,
        cost=cost,
        vocab_size=text.tokenizer.vocab_size,
        eos_ids=text.generation.eos_ids,
        fingerprint=f"plan:{text.source}",
        compiler=ConstraintCompiler(text.tokenizer, text.generation.eos_ids),
        token_index=TokenIndex(text.tokenizer),
    )


def plan_info(model: PlanModel, core: TracedCore) -> EngineInfo:
    """What the engine of a plan says of itself. It has no hidden states, so their size is 0."""
    text, limits = model.text, core.limits
    return EngineInfo(
        model=text.name,
        source=text.source,
        architecture="",
        fingerprint=f"plan:{text.source}",
        vocab_size=limits.vocab_size,
        hidden_size=0,
        context_length=limits.context_length,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_running=limits.max_running,
        eos_ids=tuple(text.generation.eos_ids),
        default_sampling=text.generation.sampling(),
        runner={"kernels": "none"},
        options={},
    )


def _pool_blocks(cache: CacheConfig, config: EngineConfig) -> int:
    if cache.num_blocks is not None:
        return cache.num_blocks
    if cache.kv_memory_mb is None:
        return AMPLE_BLOCKS
    size = _kv_bytes_per_token(find_model(config.model.model), _ELEMENT_BYTES[config.model.dtype]) * cache.block_size
    blocks = (cache.kv_memory_mb << 20) // size
    if blocks < 2:
        raise ConfigError("kv_memory_mb", f"{cache.kv_memory_mb} MiB hold {blocks} KV blocks; at least 2 are needed")
    return blocks


def _kv_bytes_per_token(path: Path, element_size: int) -> int:
    if path.is_dir():
        return directory_config(path).kv_bytes_per_token(element_size)
    # Reads the shapes of all weights, and torch with them: only where memory is asked about.
    from radixserve.model.gguf_model import read_config

    return read_config(GGUFFile.open(path)).kv_bytes_per_token(element_size)
