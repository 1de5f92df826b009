"""What the decoder needs to know of a model, whichever file format it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched.

    ``linear`` divides every frequency by ``factor`` (Chen et al. 2023); ``llama3`` does so for long wavelengths only and
    blends between (Llama 3.1's ``rope_scaling``). ``frequency_factors`` (GGUF's ``rope_freqs.weight``) divides frequency i by
    its i-th entry and stands alone.
    """

    kind: Literal["none", "linear", "llama3", "factors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and variants of a decoder-only transformer; sizes are counts of elements.

    ``sliding_window``: a query at position p sees positions (p - window, p]; None sees all. ``sliding_layers`` names the layers it
    applies to (None: all). ``attention_soft_cap``: attention scores become ``cap * tanh(score / cap)``; None is off.
    ``bias_qkv`` / ``bias_o`` / ``bias_mlp``: which linears carry a bias; ``qk_norm``: RMSNorm over each head of q and k.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    tied_head: bool = False
    bias_qkv: bool = False
    bias_o: bool = False
    bias_mlp: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] | None = None
    attention_soft_cap: float | None = None

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer; None sees all."""
        limited = self.sliding_layers
        return tuple(
            self.sliding_window if limited is None or layer in limited else None for layer in range(self.num_layers)
        )

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
