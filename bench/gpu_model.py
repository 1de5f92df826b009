"""Models made in code for the GPU's checks: random weights, a tokenizer of bytes, the shapes of Llama."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from radixserve.model.config import ModelConfig
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import LoadedModel
from radixserve.model.token_bytes import BYTE_CHARACTERS
from radixserve.model.tokenizer import SpecialTokens, Tokenizer
from radixserve.model.weights import element_type, weight_shapes

# Llama 3.2 1B (its config.json): 1.24e9 weights, grouped heads, an LM head that is the table of embeddings.
LLAMA_1B = ModelConfig(
    architecture="llama",
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    context_length=32768,
    rope_theta=500000.0,
    tied_head=True,
)
# The same in small, for parity with a CPU and for machines without a GPU.
LLAMA_TINY = ModelConfig(
    architecture="llama",
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    context_length=4096,
    tied_head=True,
)


class RandomWeights(Mapping[str, torch.Tensor]):
    """Normal numbers, scaled so that activations stay near one and logits apart.

    A weight is made when it is asked for, always the same.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes = weight_shapes(config)
        self._dtype = dtype
        self._device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name.endswith("norm"):
            return torch.ones(shape, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        dtype = element_type(name, self._dtype)
        spread = 0.1 if name == "embed" else shape[-1] ** -0.5
        return torch.empty(shape, dtype=dtype, device=self._device).normal_(std=spread, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def random_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """A model with random weights on ``device``; its tokens below 256 are bytes, all others mean nothing."""
    backend: Any = tokenizers.Tokenizer(models.BPE({char: byte for byte, char in enumerate(BYTE_CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(
        backend, alphabet="byte_level", special=SpecialTokens(eos_ids=(0,)), vocab_size=config.vocab_size
    )
    weights: Mapping[str, torch.Tensor] = RandomWeights(config, dtype, device)
    if device.type == "cpu":
        # Whoever computes there asks for a weight more than once.
        weights = {name: weights[name] for name in weights}
    return LoadedModel(
        name="random",
        source="made in code",
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=None,
        generation=GenerationDefaults(eos_ids=(0,)),
        fingerprint=f"random-{config.hidden_size}-{dtype}",
    )
