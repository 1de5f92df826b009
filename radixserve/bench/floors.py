"""The least time that work on a model can take on a machine: bytes over bandwidth or operations over peak, whichever is more.

Three parts that follow one another in a forward pass are bounded each by itself: the *projections* of all layers (weights read once a
step), *attention* (keys and values of every distinct position read once a step, however many requests share it), and the *head* with the
choice of tokens (its matrix read once a step, logits never written). Norms, activations and everything outside the forward pass are free
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radixserve.bench.machine import Limits
from radixserve.model.config import ModelConfig
from radixserve.model.gguf import GGUFFile
from radixserve.model.gguf_model import read_config
from radixserve.model.location import find_model
from radixserve.model.text import directory_config

Part = Literal["projections", "attention", "head"]
Peak = Literal["bf16", "int8", "fp32"]
Precision = Literal["bf16", "fp32", "native"]
"""Of the weights: dense, or in the model file's own blocks, which are multiplied as int8."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bytes to read and operations to do, and the seconds that each takes; ``seconds``: the larger one, or a sum of such."""

    bytes: int = 0
    operations: int = 0
    memory_s: float = 0.0
    compute_s: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Bound) -> Bound:
        return Bound(
            self.bytes + other.bytes,
            self.operations + other.operations,
            self.memory_s + other.memory_s,
            self.compute_s + other.compute_s,
            self.seconds + other.seconds,
        )

    @property
    def by(self) -> Literal["bytes", "operations"]:
        """What bounds most of it."""
        return "bytes" if self.memory_s >= self.compute_s else "operations"


def bound(size: int, operations: int, *, bandwidth: float, peak: float) -> Bound:
    """Work that reads ``size`` bytes and does ``operations``, at the same time."""
    memory_s, compute_s = size / bandwidth, operations / peak
    return Bound(size, operations, memory_s, compute_s, max(memory_s, compute_s))


@dataclass(frozen=True, slots=True)
class Floor:
    """The parts of a step, or of many: parts of several steps are added up."""

    projections: Bound = Bound()
    attention: Bound = Bound()
    head: Bound = Bound()

    @property
    def total(self) -> Bound:
        """All parts."""
        return self.projections + self.attention + self.head

    @property
    def seconds(self) -> float:
        """The least time of all parts together."""
        return self.total.seconds

    def __add__(self, other: Floor) -> Floor:
        return Floor(self.projections + other.projections, self.attention + other.attention, self.head + other.head)


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step in numbers: ``tokens`` computed, ``sampled`` rows whose logits are wanted, ``pairs`` of a query and a position that it
    attends to, ``kv_tokens``: distinct positions whose keys and values are read.
    """

    tokens: int
    sampled: int
    pairs: int
    kv_tokens: int


def attended_pairs(start: int, count: int) -> int:
    """Pairs of query and position of ``count`` causal tokens after ``start`` others: each sees all before it, and itself."""
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a token costs: operations and bytes of all layers together.

    ``layer_weights``, ``head_weights``: elements of the matrices; ``*_bytes``: what they take in memory. ``kv_bytes``: of one
    position. ``pair_operations``: of one query on one position, scores and mix, over all heads. ``longest``: the context beyond
    which a sliding window would make these numbers too large; None: none does.
    """

    precision: Precision
    layer_weights: int
    head_weights: int
    layer_bytes: int
    head_bytes: int
    kv_bytes: int
    pair_operations: int
    linear_peak: Peak
    attention_peak: Peak
    longest: int | None

    @classmethod
    def dense(cls, config: ModelConfig, precision: Literal["bf16", "fp32"] = "bf16") -> ModelCost:
        """All matrices in ``precision``, and so the KV."""
        size = 2 if precision == "bf16" else 4
        layers, head = _weights(config)
        return cls(
            precision=precision,
            layer_weights=layers,
            head_weights=head,
            layer_bytes=layers * size,
            head_bytes=head * size,
            kv_bytes=config.kv_bytes_per_token(size),
            pair_operations=4 * config.num_layers * config.num_heads * config.head_dim,
            linear_peak=precision,
            attention_peak=precision,
            longest=config.sliding_window,
        )

    @classmethod
    def stored(cls, config: ModelConfig, *, layer_bytes: int, head_bytes: int) -> ModelCost:
        """Matrices that take so many bytes in their file's blocks, with int8 activations; KV in bf16."""
        layers, head = _weights(config)
        return cls(
            precision="native",
            layer_weights=layers,
            head_weights=head,
            layer_bytes=layer_bytes,
            head_bytes=head_bytes,
            kv_bytes=config.kv_bytes_per_token(2),
            pair_operations=4 * config.num_layers * config.num_heads * config.head_dim,
            linear_peak="int8",
            attention_peak="bf16",
            longest=config.sliding_window,
        )

    def step(self, work: StepWork, limits: Limits) -> Floor:
        """The floor of one step."""
        peak: dict[Peak, float] = {"bf16": limits.bf16, "int8": limits.int8, "fp32": limits.fp32}
        return Floor(
            projections=bound(
                self.layer_bytes if work.tokens else 0,
                2 * self.layer_weights * work.tokens,
                bandwidth=limits.dram,
                peak=peak[self.linear_peak],
            ),
            attention=bound(
                self.kv_bytes * work.kv_tokens,
                self.pair_operations * work.pairs,
                bandwidth=limits.dram,
                peak=peak[self.attention_peak],
            ),
            head=bound(
                self.head_bytes if work.sampled else 0,
                2 * self.head_weights * work.sampled,
                bandwidth=limits.dram,
                peak=peak[self.linear_peak],
            ),
        )


def _weights(config: ModelConfig) -> tuple[int, int]:
    """Elements of all layers' matrices, and of the head."""
    heads, width = config.num_heads * config.head_dim, config.hidden_size
    kv = 2 * config.num_kv_heads * config.head_dim
    layer = width * (heads + kv) + heads * width + 3 * width * config.intermediate_size
    return layer * config.num_layers, config.vocab_size * width


_HEADS = ("output.weight", "token_embd.weight")
_QUANTIZED = "Q"


def model_costs(model: str) -> dict[Precision, ModelCost]:
    """What a model costs in each precision: dense ones always, ``native`` where its file holds quantized matrices.

    Reads no weights. Raises as `radixserve.model.loader.load_model` does.
    """
    path = find_model(model)
    if path.is_dir():
        return _dense_costs(directory_config(path))
    return gguf_costs(path)


def gguf_costs(path: Path) -> dict[Precision, ModelCost]:
    """`model_costs` of a GGUF file."""
    file = GGUFFile.open(path)
    config = read_config(file)
    costs = _dense_costs(config)
    tensors = {name: file.tensor(name) for name in file.tensor_names}
    head = next(tensors[name] for name in _HEADS if name in tensors)
    layers = [tensor for name, tensor in tensors.items() if name.startswith("blk.") and len(tensor.shape) == 2]
    if any(tensor.type.name.startswith(_QUANTIZED) for tensor in layers):
        costs["native"] = ModelCost.stored(
            config, layer_bytes=sum(tensor.raw.nbytes for tensor in layers), head_bytes=head.raw.nbytes
        )
    return costs


def _dense_costs(config: ModelConfig) -> dict[Precision, ModelCost]:
    return {"bf16": ModelCost.dense(config), "fp32": ModelCost.dense(config, "fp32")}
