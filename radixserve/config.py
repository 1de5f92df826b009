"""Frozen configuration, one object a part; ``resolve()`` returns a new object with the model's facts filled in.

Every option of `EngineConfig` and its parts has one name, the same as keyword of ``Engine(...)``, as command-line
flag and in files; `EngineConfig.from_options` maps the flat names to the parts and refuses unknown ones.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from radixserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and in what arithmetic.

    ``model``: ``smollm2``, a ``.gguf`` file, a Hugging Face directory or a hub id. ``dtype``: of weights,
    activations and KV. ``weights``: ``native`` keeps a quantized GGUF file's own blocks and rounds activations to int8 in groups of 16,
    ``bf16`` dequantizes; ``auto`` is native where the file has such blocks, the native kernels run and ``dtype`` is bfloat16.
    ``kernels``: ``native`` is the package's own library of CPU kernels; ``auto`` takes it where it can be had for this
    model and block size, and ``torch`` otherwise. ``context_length``: lowers the model's own limit (tokens). ``attention``: the
    attention backend of the torch path; naming one chooses that path. ``device``: ``cuda`` is an NVIDIA GPU with FlashInfer, in
    bfloat16 or float16. ``threads``: of the forward pass (0 takes the cores this
    process may use, shared among the ranks). ``tensor_parallel_size``: ranks, each a process with a part of the weights and of the KV
    heads; on the CPU they take the torch path. ``watchdog_timeout_s``: a rank that is stopped or stuck for so long ends the engine (None:
    300).
    ``deterministic``: on a GPU, attention and products whose bits do not depend on the batch, for a price; a CPU
    computes so anyway, and nothing changes there. ``cuda_graph``: decodes of up to ``cuda_graph_max_bs`` rows (None: ``max_running``)
    are captured when the engine starts and replayed, as far as ``cuda_graph_memory_mb`` (None: 1024) reach; ``auto`` is on for ``cuda``.
    """

    model: str = "smollm2"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    weights: Literal["auto", "native", "bf16"] = "auto"
    device: Literal["cpu", "cuda"] = "cpu"
    context_length: int | None = None
    kernels: Literal["auto", "native", "torch"] = "auto"
    attention: Literal["auto", "torch_paged", "flashinfer"] = "auto"
    threads: int = 0
    tensor_parallel_size: int = 1
    watchdog_timeout_s: float | None = None
    deterministic: bool = False
    cuda_graph: Literal["auto", "on", "off"] = "auto"
    cuda_graph_max_bs: int | None = None
    cuda_graph_memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV pool and the radix tree over it.

    ``block_size``: tokens a block. ``kv_dtype``: what K and V are kept in. ``auto`` is ``dtype``; ``int8``, on the CPU, rounds each
    head of each token with a scale of its own, for nearly twice the tokens in the same memory; ``fp8``, on a GPU, stores float8
    (e4m3, saturating, without scales). ``num_blocks``: size of the pool (None derives it from ``kv_memory_mb``, and that
    from free memory). ``hold_share``: share of the pool that holds may keep, all of them together; ``hold_max_s``: the longest
    that one lasts. ``prefix_cache``: ``on``; ``off`` shares nothing between requests; ``force_miss`` keeps the
    tree but never hits (what the tree costs). ``ghost_tokens``: how many evicted tokens are remembered to explain
    misses.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_memory_mb: int | None = None
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"
    prefix_cache: Literal["on", "off", "force_miss"] = "on"
    eviction: Literal["lru", "lfu"] = "lru"
    ghost_tokens: int = 1_000_000
    check_every_step: bool = False
    hold_share: float = 0.25
    hold_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What goes into a step.

    ``max_batch_tokens``: token budget of a step. ``max_running``: rows of a step. ``policy``: order of the waiting
    queue.
    ``age_weight``: tokens of prefix match that one arrival's seniority is worth (lpm). ``batching=static`` admits
    only into an empty batch, ``chunked_prefill=False`` runs whole prompts: the baselines. ``admission=reserve_max``
    reserves all of ``max_tokens``;
    ``adaptive`` an estimate. ``watermark``: share of the pool admission leaves free. ``itl_target_ms``: bounds a step's
    predicted time. ``fast_forward``: tokens that a constraint leaves no choice of are computed in one step; off takes one a step, with
    the same output. ``overlap``: the next step is planned while one runs, and what a step brings is handed out while the next runs;
    ``auto`` does so on a GPU.
    """

    max_batch_tokens: int = 512
    max_running: int = 64
    policy: Literal["lpm", "fcfs", "dfs-weight", "priority"] = "lpm"
    age_weight: float = 8.0
    batching: Literal["continuous", "static"] = "continuous"
    chunked_prefill: bool = True
    admission: Literal["adaptive", "reserve_max"] = "adaptive"
    watermark: float = 0.01
    itl_target_ms: float | None = None
    fast_forward: bool = True
    overlap: Literal["auto", "on", "off"] = "auto"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All options of one engine."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    seed: int = 0

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Build from flat option names (``block_size=16, policy="lpm"``); raises `ConfigError` naming the option."""
        parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
        seed = options.pop("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError("seed", f"must be an integer, not {seed!r}")
        for name, value in options.items():
            part = _OWNER.get(name)
            if part is None:
                raise ConfigError(name, f"unknown option; known are {', '.join(sorted([*_OWNER, 'seed']))}")
            parts[part][name] = value
        built = {name: _PARTS[name](**values) for name, values in parts.items()}
        config = cls(**built, seed=seed)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise `ConfigError` naming the first option that is of the wrong type or out of range."""
        for part in (self.model, self.cache, self.scheduler):
            hints = typing.get_type_hints(type(part))
            for item in dataclasses.fields(part):
                check_type(item.name, getattr(part, item.name), hints[item.name])
        cache, scheduler = self.cache, self.scheduler
        _check_range("context_length", self.model.context_length, 2)
        _check_range("threads", self.model.threads, 0, 1024)
        _check_range("tensor_parallel_size", self.model.tensor_parallel_size, 1, 256)
        _check_range("cuda_graph_max_bs", self.model.cuda_graph_max_bs, 1)
        _check_range("cuda_graph_memory_mb", self.model.cuda_graph_memory_mb, 1)
        _check_range("block_size", cache.block_size, 1, 1024)
        _check_range("num_blocks", cache.num_blocks, 2)
        _check_range("kv_memory_mb", cache.kv_memory_mb, 1)
        _check_range("ghost_tokens", cache.ghost_tokens, 0)
        if not 0 <= cache.hold_share <= 1:
            raise ConfigError("hold_share", f"must be between 0 and 1, not {cache.hold_share}")
        if not cache.hold_max_s >= 0:
            raise ConfigError("hold_max_s", f"must be at least 0, not {cache.hold_max_s}")
        _check_range("max_batch_tokens", scheduler.max_batch_tokens, 1)
        _check_range("max_running", scheduler.max_running, 1)
        self._validate_device()
        self._validate_ranks()
        if self.model.weights == "bf16" and self.model.dtype != "bfloat16":
            raise ConfigError(
                "weights", f"bf16 contradicts dtype={self.model.dtype}, which dequantizes to {self.model.dtype}"
            )
        if scheduler.max_batch_tokens < scheduler.max_running:
            raise ConfigError(
                "max_batch_tokens",
                f"{scheduler.max_batch_tokens} is less than max_running ({scheduler.max_running}): a step could not hold all decodes",
            )
        if not scheduler.age_weight > 0:
            raise ConfigError("age_weight", f"must be above 0, not {scheduler.age_weight}")
        if not 0 <= scheduler.watermark < 1:
            raise ConfigError("watermark", f"must be at least 0 and below 1, not {scheduler.watermark}")
        if scheduler.itl_target_ms is not None and not scheduler.itl_target_ms > 0:
            raise ConfigError("itl_target_ms", f"must be above 0, not {scheduler.itl_target_ms}")

    def _validate_device(self) -> None:
        """Raise `ConfigError` for what the device does not do, whatever the machine."""
        model = self.model
        if model.device == "cpu" or model.cuda_graph == "off" or model.tensor_parallel_size > 1:
            for name in ("cuda_graph_max_bs", "cuda_graph_memory_mb"):
                if getattr(model, name) is not None:
                    raise ConfigError(name, "needs device=cuda, one rank, and graphs that are not switched off")
        if model.device == "cuda":
            if model.dtype == "float32":
                raise ConfigError("dtype", "device=cuda computes in bfloat16 or float16, not in float32")
            if model.kernels == "native":
                raise ConfigError("kernels", "the native kernels run on the CPU, not on device=cuda")
            if model.tensor_parallel_size > 1 and model.cuda_graph == "on":
                raise ConfigError(
                    "cuda_graph", "on is for one GPU: sums over tensor_parallel_size ranks are not captured"
                )
            if self.cache.kv_dtype == "int8":
                raise ConfigError("kv_dtype", "int8 is for the CPU; device=cuda stores fp8")
            return
        if model.dtype == "float16":
            raise ConfigError("dtype", "float16 needs device=cuda; a CPU computes in bfloat16 or float32")
        if model.attention == "flashinfer":
            raise ConfigError("attention", "flashinfer needs device=cuda")
        if model.cuda_graph == "on":
            raise ConfigError("cuda_graph", "on needs device=cuda; a CPU has no graphs to capture")
        if self.cache.kv_dtype == "fp8":
            raise ConfigError("kv_dtype", "fp8 needs device=cuda; a CPU stores int8")

    def _validate_ranks(self) -> None:
        """Raise `ConfigError` for what several ranks do not do, whatever the model."""
        model = self.model
        timeout = model.watchdog_timeout_s
        if model.tensor_parallel_size == 1:
            if timeout is not None:
                raise ConfigError("watchdog_timeout_s", "is for several ranks, and tensor_parallel_size is 1")
            return
        if timeout is not None and not 1 <= timeout <= 1e6:
            raise ConfigError("watchdog_timeout_s", f"must be between 1 and 1000000, not {timeout:g}")
        if model.kernels == "native":
            raise ConfigError(
                "kernels",
                "native runs a step's layers in one call, without sums over ranks; tensor_parallel_size needs torch",
            )

    def resolve(self, *, context_length: int, num_blocks: int) -> EngineConfig:
        """This configuration with the model's context limit (tokens) and the pool's size (blocks) filled in, and no ``overlap=auto``."""
        limit = min(context_length, self.model.context_length or context_length)
        overlap = self.scheduler.overlap
        if overlap == "auto":
            overlap = "on" if self.model.device == "cuda" else "off"
        return dataclasses.replace(
            self,
            model=dataclasses.replace(self.model, context_length=limit),
            cache=dataclasses.replace(self.cache, num_blocks=num_blocks),
            scheduler=dataclasses.replace(self.scheduler, overlap=overlap),
        )


_PARTS: dict[str, Any] = {"model": ModelOptions, "cache": CacheConfig, "scheduler": SchedulerConfig}
_OWNER = {item.name: part for part, cls in _PARTS.items() for item in dataclasses.fields(cls)}


def check_type(name: str, value: Any, hint: Any) -> None:
    """Check ``value`` against a field's type: Literal, a plain type, a tuple of texts, or a union of such with None.

    Raises `ConfigError` naming the option. What should be a list of texts is not shown: it may hold a secret.
    """
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for choice in choices:
        if typing.get_origin(choice) is Literal:
            if isinstance(value, str) and value in typing.get_args(choice):
                return
        elif choice is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
                return
        elif typing.get_origin(choice) is tuple:
            if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
                return
        elif isinstance(value, choice) and not (choice is int and isinstance(value, bool)):
            return
    if typing.get_origin(hint) is Literal:
        raise ConfigError(name, f"must be one of {', '.join(typing.get_args(hint))}, not {value!r}")
    if typing.get_origin(hint) is tuple:
        raise ConfigError(name, "must be a list of texts")
    raise ConfigError(name, f"must be {getattr(hint, '__name__', hint)}, not {value!r}")


def _check_range(name: str, value: int | None, low: int, high: int | None = None) -> None:
    if value is not None and (value < low or (high is not None and value > high)):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(name, f"must be {bound}, not {value}")
