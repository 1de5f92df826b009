"""Weights of a Hugging Face model directory: one ``model.safetensors`` or shards with an index."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownTensorType
from radixserve.model.config import ModelConfig
from radixserve.model.config_fields import read_json
from radixserve.model.weights import check_names, check_shape, element_type, unknown_tensors, weight_shapes

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_TOP = {"model.embed_tokens.weight": "embed", "model.norm.weight": "final_norm", "lm_head.weight": "head"}
_PARTS = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    **{f"{own}.weight": name for own, name in _PARTS.items()},
    **{f"{own}.bias": f"{name}_bias" for own, name in _PARTS.items()},
}
_BLOCK = re.compile(r"^model\.layers\.(\d{1,6})\.(.+)$")
# Old checkpoints store the rotary frequencies, which follow from the configuration.
_DERIVED = re.compile(r"^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")
_READ_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of ``directory``, in a fixed order.

    Raises `ModelNotFound` if there are none or one that the index names is missing, `ModelLoadError` for a bad index.
    """
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ModelNotFound(
            f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}; weights in other formats are not read"
        )
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelLoadError(f"{index}: weight_map must be an object of tensor name to file name")
    names = sorted({name for name in mapping.values() if isinstance(name, str)})
    if any(not isinstance(name, str) or Path(name).name != name for name in mapping.values()):
        raise ModelLoadError(f"{index}: weight_map must name files beside it")
    for name in names:
        if not (directory / name).is_file():
            raise ModelNotFound(f"{index} names {name}, which is not there")
    return tuple(directory / name for name in names)


def canonical_name(own: str) -> str | None:
    """Canonical name of the checkpoint's tensor ``own``; None for one that has no place in the decoder."""
    if own in _TOP:
        return _TOP[own]
    match = _BLOCK.match(own)
    if match and match[2] in _LAYER:
        return f"layers.{int(match[1])}.{_LAYER[match[2]]}"
    return None


def read_weights(
    files: tuple[Path, ...], config: ModelConfig, dtype: torch.dtype, advance: Callable[[int], None]
) -> dict[str, torch.Tensor]:
    """All weights by canonical name in ``dtype`` (norms and biases in float32).

    A tied model's file may repeat the embedding as ``lm_head.weight``; if the two differ the file contradicts its
    configuration and is refused. ``advance`` is told the bytes of the files used up. Raises `ModelLoadError` naming a tensor
    that is missing, left over, or of another shape than the configuration's.
    """
    source = str(files[0].parent)
    with ExitStack() as stack:
        try:
            opened = [(path, stack.enter_context(safe_open(path, framework="pt"))) for path in files]
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{source}: a safetensors file cannot be read: {error}") from error
        readers = {}
        present: dict[str, str] = {}
        unknown: list[str] = []
        for path, reader in opened:
            for own in reader.keys():  # noqa: SIM118 - the reader is not iterable
                name = canonical_name(own)
                if name is not None and name in present:
                    raise ModelLoadError(f"{path}: tensor {own} is in an earlier file too")
                if name is not None:
                    present[name], readers[name] = own, reader
                elif not _DERIVED.match(own):
                    unknown.append(own)
        if unknown:
            raise unknown_tensors(unknown, source)
        repeated_head = present.pop("head", None) if config.tied_head else None
        check_names(config, present, source)
        shapes = weight_shapes(config)
        for name, own in present.items():
            view = readers[name].get_slice(own)
            if view.get_dtype() not in _READ_TYPES:
                readable = ", ".join(_READ_TYPES)
                raise UnknownTensorType(
                    f"{source}: tensor {own} is of type {view.get_dtype()}; the types read are {readable}"
                )
            check_shape(shapes[name], view.get_shape(), own, source)
        weights: dict[str, torch.Tensor] = {}
        for name in shapes:
            stored = readers[name].get_tensor(present[name])
            if name == "embed" and repeated_head is not None:
                _check_tied(stored, readers["head"].get_tensor(repeated_head), source)
            # A clone where the type stays: the file's mapping must not outlive the load, nor be written through.
            weights[name] = stored.to(element_type(name, dtype), copy=True).contiguous()
            advance(stored.nbytes)
    return weights


def _check_tied(embed: torch.Tensor, head: torch.Tensor, source: str) -> None:
    if embed.shape != head.shape or not torch.equal(embed, head):
        raise ModelLoadError(
            f"{source}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight"
        )
