"""Canonical weight names: what the decoder asks for, whichever file the weights come from.

``embed`` [V, H], ``final_norm`` [H], ``head`` [V, H] (only if untied) and for each layer ``layers.{i}.`` followed by

- ``attn_norm`` [H], ``q`` [heads*D, H], ``k``, ``v`` [kv_heads*D, H], ``o`` [H, heads*D], ``q_norm``, ``k_norm`` [D],
- ``mlp_norm`` [H], ``gate``, ``up`` [F, H], ``down`` [H, F],
- ``q_bias``, ``k_bias``, ``v_bias``, ``o_bias``, ``gate_bias``, ``up_bias``, ``down_bias`` where the model has them.

Linear weights are [out, in]; rows of ``q`` and ``k`` are in the order of half-rotation RoPE (element i pairs with
element i + D/2). Norms and biases are float32, everything else is in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from radixserve.errors import ModelLoadError
from radixserve.model.config import ModelConfig

Shape = tuple[int, ...]


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Shape of every weight of the model, by canonical name."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, hidden)
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears: dict[str, tuple[int, int, bool]] = {
        "q": (queries, hidden, config.bias_qkv),
        "k": (keys, hidden, config.bias_qkv),
        "v": (keys, hidden, config.bias_qkv),
        "o": (hidden, queries, config.bias_o),
        "gate": (inner, hidden, config.bias_mlp),
        "up": (inner, hidden, config.bias_mlp),
        "down": (hidden, inner, config.bias_mlp),
    }
    shapes: dict[str, Shape] = {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    for name, (rows, columns, bias) in linears.items():
        shapes[name] = (rows, columns)
        if bias:
            shapes[f"{name}_bias"] = (rows,)
    return shapes


def is_float32(name: str) -> bool:
    """Whether the weight keeps full precision: norms and biases are small and set the scale of everything after them."""
    return name.endswith(("norm", "_bias"))


def element_type(name: str, dtype: torch.dtype) -> torch.dtype:
    """The type a weight is held in when the model's dtype is ``dtype``."""
    return torch.float32 if is_float32(name) else dtype


def check_names(config: ModelConfig, present: Mapping[str, str], source: str) -> None:
    """Check that a file has exactly the weights of ``config``.

    ``present`` maps canonical names to the file's own, which errors show. Raises `ModelLoadError` naming the weight.
    """
    if config.num_layers > len(present):  # before a list of that length is made
        raise ModelLoadError(
            f"{source}: {config.num_layers} layers are announced, but there are {len(present)} tensors"
        )
    expected = weight_shapes(config)
    if missing := [name for name in expected if name not in present]:
        raise ModelLoadError(f"{source}: weight {missing[0]!r} is missing ({len(missing)} of {len(expected)} are)")
    if extra := [own for name, own in present.items() if name not in expected]:
        raise unknown_tensors(extra, source)


def check_shape(config_shape: Shape, shape: Iterable[int], own_name: str, source: str) -> None:
    """Raise `ModelLoadError` if a tensor's shape is not the one the configuration asks for."""
    found = tuple(shape)
    if found != config_shape:
        raise ModelLoadError(
            f"{source}: tensor {own_name} is {list(found)}, the configuration asks for {list(config_shape)}"
        )


def unknown_tensors(names: list[str], source: str) -> ModelLoadError:
    """The error for tensors that the decoder has no use for: leaving one out would change the model."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return ModelLoadError(f"{source}: tensor {names[0]}{more} is not part of this architecture")
