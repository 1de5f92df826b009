"""The weights of a GGUF file: dequantized on request, or in the blocks in which they lie in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig
from radixserve.model.device_weights import DeviceWeights
from radixserve.model.gguf import GGUFFile
from radixserve.model.gguf_model import canonical_names, row_order
from radixserve.model.gguf_tensor import GGUFTensor
from radixserve.model.gguf_types import Bytes
from radixserve.model.weights import check_names, check_shape, element_type, weight_shapes

_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class StoredMatrix:
    """A matrix as the file has it; ``order``: which of the file's rows is row i, None where they are in order."""

    tensor: GGUFTensor
    order: npt.NDArray[np.intp] | None = None

    @property
    def type_name(self) -> str:
        """Name of the tensor type: ``Q4_1``, ``F16``."""
        return self.tensor.type.name

    @property
    def in_blocks(self) -> bool:
        """Whether it is quantized."""
        return self.tensor.type.block_elements > 1

    @property
    def in_features(self) -> int:
        """Elements of a row."""
        return self.tensor.shape[1]

    def blocks(self) -> Bytes:
        """uint8 [out_features, bytes of a row], rows in canonical order: a view of the mapped file, or a copy."""
        return self.tensor.raw if self.order is None else self.tensor.raw[self.order]

    def release(self) -> None:
        """See `GGUFTensor.release`."""
        self.tensor.release()


class GGUFWeights(Mapping[str, torch.Tensor]):
    """All weights by canonical name. A weight is read and dequantized each time it is asked for, and not kept here.

    So neither the file's blocks nor what is made of them is held beside the copies that a forward pass packs. ``dtype``: of the
    matrices (norms and biases are float32). ``matrices``: the same matrices as they are stored.
    """

    def __init__(self, tensors: Mapping[str, StoredMatrix], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self.dtype = dtype
        self.matrices: Mapping[str, StoredMatrix] = {
            name: stored for name, stored in tensors.items() if len(stored.tensor.shape) == 2
        }

    @classmethod
    def of(cls, file: GGUFFile, config: ModelConfig, dtype: torch.dtype) -> GGUFWeights:
        """The weights of ``file``, which the configuration was read from.

        Raises `ModelLoadError` naming a tensor that is missing, left over or of another shape than the configuration's.
        """
        names, source = canonical_names(file), str(file.parts[0])
        check_names(config, names, source)
        shapes = weight_shapes(config)
        for name, own in names.items():
            check_shape(shapes[name], file.tensor(own).shape, own, source)
        return cls(
            {name: StoredMatrix(file.tensor(names[name]), row_order(file, config, name)) for name in shapes}, dtype
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        weight = _dequantized(stored.tensor, stored.order, element_type(name, self.dtype))
        stored.release()
        return weight

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def stored_matrices(weights: Mapping[str, torch.Tensor]) -> Mapping[str, StoredMatrix]:
    """The matrices among ``weights`` that can be had as they are stored; none where they are tensors already."""
    return weights.matrices if isinstance(weights, GGUFWeights) else {}


def placement(weights: Mapping[str, torch.Tensor]) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the matrices."""
    if isinstance(weights, GGUFWeights):
        return weights.dtype, torch.device("cpu")
    if isinstance(weights, DeviceWeights):
        return weights.dtype, weights.device
    embed = weights["embed"]
    return embed.dtype, embed.device


def _dequantized(tensor: GGUFTensor, order: npt.NDArray[np.intp] | None, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in ``dtype``, converted in pieces so that little more than the result is ever held."""
    if len(tensor.shape) == 1:
        values = tensor.dequantize()
        return torch.from_numpy(values if order is None else values[order]).to(dtype)
    result = torch.empty(tensor.shape, dtype=dtype)
    rows = max(1, _CHUNK_ELEMENTS // tensor.shape[-1])
    for start in range(0, tensor.shape[0], rows):
        taken = tensor.raw[start : start + rows] if order is None else tensor.raw[order[start : start + rows]]
        result[start : start + rows].copy_(torch.from_numpy(tensor.type.dequantize(taken)))
    return result
