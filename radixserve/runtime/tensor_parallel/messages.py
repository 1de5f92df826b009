"""What rank 0 tells the other ranks, and what they answer: msgpack, tagged by kind. Arrays are the bytes of their int64."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message. ``model``: the whole model's shapes. ``parent``: the process of rank 0.

    Types are names of torch's; the rest as for `radixserve.runtime.model_runner.ModelRunner`.
    """

    rank: int
    ranks: int
    parent: int
    watchdog_timeout_s: float
    model: ModelConfig
    dtype: str
    device: Literal["cpu", "cuda"]
    num_blocks: int
    block_size: int
    attention: str
    threads: int
    kv_dtype: str | None
    deterministic: bool
    log_level: int


class Weight(msgspec.Struct, frozen=True, tag=True):
    """A rank's part of a weight, whose bytes follow."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Copy(msgspec.Struct, frozen=True, tag=True):
    """Copy blocks; ``pairs``: [n, 2] of (source, destination)."""

    pairs: bytes


class Poison(msgspec.Struct, frozen=True, tag=True):
    """Fill blocks with NaN."""

    blocks: bytes


class Pass(msgspec.Struct, frozen=True, tag=True):
    """A forward pass: the fields of `ForwardBatch` that layers read, by their names there."""

    tokens: bytes
    positions: bytes
    slots: bytes
    query_start: bytes
    seq_lens: bytes
    table_start: bytes
    table_blocks: bytes
    block_size: int

    @classmethod
    def of(cls, batch: ForwardBatch) -> Pass:
        """The pass over ``batch``. Waits for what the device has yet to compute of it."""
        return cls(
            tokens=array_bytes(batch.tokens.cpu().numpy()),
            positions=array_bytes(batch.positions.cpu().numpy()),
            slots=array_bytes(batch.slots.cpu().numpy()),
            query_start=array_bytes(batch.query_start),
            seq_lens=array_bytes(batch.seq_lens),
            table_start=array_bytes(batch.table_start),
            table_blocks=array_bytes(batch.table_blocks),
            block_size=batch.block_size,
        )

    def batch(self, device: torch.device) -> ForwardBatch:
        """The same batch on ``device``; it draws nothing."""
        none = np.empty(0, np.int64)
        return ForwardBatch(
            tokens=torch.from_numpy(read_array(self.tokens)).to(device),
            positions=torch.from_numpy(read_array(self.positions)).to(device),
            slots=torch.from_numpy(read_array(self.slots)).to(device),
            query_start=read_array(self.query_start),
            seq_lens=read_array(self.seq_lens),
            table_start=read_array(self.table_start),
            table_blocks=read_array(self.table_blocks),
            sample_rows=none,
            sample_tokens=none,
            block_size=self.block_size,
        )


class Check(msgspec.Struct, frozen=True, tag=True):
    """Try whether bits depend on the batch; all ranks do so at once."""


class Close(msgspec.Struct, frozen=True, tag=True):
    """The process may end."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """Torch is there, and the rank is about to look for the others."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Weights are packed. ``kv_bytes``: size of this rank's part of the KV pool."""

    kv_bytes: int


class Checked(msgspec.Struct, frozen=True, tag=True):
    """Why bits may depend on the batch on this rank; empty if they cannot."""

    reasons: list[str]


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The rank's last message. ``consequence``: another rank was lost, that is all."""

    reason: str
    consequence: bool


Order = Setup | Weight | Copy | Poison | Pass | Check | Close
Report = Started | Ready | Checked | Raised


def array_bytes(array: npt.NDArray[np.integer]) -> bytes:
    """The bytes of ``array`` as int64."""
    return array.astype(np.int64, copy=False).tobytes()


def read_array(data: bytes) -> Int64Array:
    """A writable int64 array of its own, flat."""
    return np.frombuffer(data, np.int64).copy()
