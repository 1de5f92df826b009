"""Which part of a model each rank holds (Shoeybi et al. 2019, section 3).

The rows of q, k, v, gate and up are parted, and with them the columns of o and down, so that a rank goes from a whole hidden
state to its part of a sum without asking anybody. A KV head and the query heads that read it stay together. The embedding is
whole on every rank: a lookup costs nothing, and parting it would cost a sum. The LM head is whole on rank 0 and nowhere else:
only rank 0 draws tokens, so parted logits would have to be gathered there, and how often and for which tokens they are asked
for is decided by the sampler, of which the other ranks know nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.model.weights import weight_shapes

# The feed-forward block is cut at multiples of this, or of the largest smaller power of two that the model allows: whole
# vectors and cache lines of every type.
INNER_UNIT = 64
_BY_QUERY, _BY_KEY, _BY_INNER = ("q", "q_bias"), ("k", "k_bias", "v", "v_bias"), ("gate", "gate_bias", "up", "up_bias")
# What is added once to a sum over all ranks, or needed by the one that draws.
_OF_RANK_0 = ("o_bias", "down_bias", "head")


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank ``rank``: KV heads ``first_head`` to ``end_head`` - 1 of the model, and rows ``first_inner`` to
    ``end_inner`` - 1 of gate and up.
    """

    rank: int
    first_head: int
    end_head: int
    first_inner: int
    end_inner: int

    def config(self, model: ModelConfig) -> ModelConfig:
        """The shapes of this part of ``model``."""
        heads = self.end_head - self.first_head
        return dataclasses.replace(
            model,
            num_heads=heads * model.group_size,
            num_kv_heads=heads,
            intermediate_size=self.end_inner - self.first_inner,
        )

    def names(self, model: ModelConfig) -> frozenset[str]:
        """The weights of which this rank has a part."""
        return frozenset(name for name in weight_shapes(model) if self.rank == 0 or _kind(name) not in _OF_RANK_0)

    def part(self, model: ModelConfig, name: str, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole weight that it has a part of: a copy, or ``weight`` itself where that is all of it."""
        kind, keys = _kind(name), model.head_dim
        queries = keys * model.group_size
        if kind in _BY_QUERY:
            cut = weight[self.first_head * queries : self.end_head * queries]
        elif kind in _BY_KEY:
            cut = weight[self.first_head * keys : self.end_head * keys]
        elif kind in _BY_INNER:
            cut = weight[self.first_inner : self.end_inner]
        elif kind == "o":
            cut = weight[:, self.first_head * queries : self.end_head * queries]
        elif kind == "down":
            cut = weight[:, self.first_inner : self.end_inner]
        else:
            return weight
        # A view would keep the whole weight in memory.
        return cut.clone(memory_format=torch.contiguous_format)


def cut_model(model: ModelConfig, ranks: int) -> tuple[Shard, ...]:
    """The parts of all ranks, as even as may be; the first ranks get what KV heads are left over, the last ones what is of the rest.

    Raises `ConfigError` where there are more ranks than KV heads, or than rows of the feed-forward block.
    """
    if ranks > model.num_kv_heads:
        raise ConfigError(
            "tensor_parallel_size",
            f"every rank holds at least one KV head, and the model has {model.num_kv_heads}: at most "
            f"{model.num_kv_heads} ranks, not {ranks}",
        )
    if ranks > model.intermediate_size:
        raise ConfigError(
            "tensor_parallel_size", f"an intermediate size of {model.intermediate_size} is not for {ranks} ranks"
        )
    unit = math.gcd(model.intermediate_size, INNER_UNIT)
    while unit > 1 and model.intermediate_size // unit < ranks:
        unit //= 2
    heads = _bounds(model.num_kv_heads, ranks, first=True)
    units = _bounds(model.intermediate_size // unit, ranks, first=False)
    return tuple(
        Shard(rank, heads[rank], heads[rank + 1], units[rank] * unit, units[rank + 1] * unit) for rank in range(ranks)
    )


def largest_part(model: ModelConfig, ranks: int) -> ModelConfig:
    """Shapes of which every rank's part has no more."""
    parts = [shard.config(model) for shard in cut_model(model, ranks)]
    return dataclasses.replace(
        parts[0],
        num_heads=max(part.num_heads for part in parts),
        num_kv_heads=max(part.num_kv_heads for part in parts),
        intermediate_size=max(part.intermediate_size for part in parts),
    )


def _bounds(count: int, ranks: int, *, first: bool) -> list[int]:
    """Where ``ranks`` nearly equal stretches of ``count`` begin, and the end; the longer ones come first, or last."""
    size, longer = divmod(count, ranks)
    sizes = [size + 1] * longer + [size] * (ranks - longer)
    return [0, *itertools.accumulate(sizes if first else reversed(sizes))]


def _kind(name: str) -> str:
    """``q`` of ``layers.3.q``."""
    return name.rpartition(".")[2]
