"""A stream of messages and tensors between rank 0 and one other rank, over a pair of connected sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
import torch

from radixserve.runtime.tensor_parallel.messages import Order, Report

_LENGTH_BYTES = 8

M = TypeVar("M")


class Channel(Generic[M]):
    """One end; ``kind``: of the messages that come in. One thread at a time uses it.

    A message is its length (8 bytes, little-endian) and that many bytes of msgpack. A peer that is gone is an `EOFError` for who
    reads, and a `ConnectionError` for who writes.
    """

    def __init__(self, connection: socket.socket, kind: Any) -> None:
        self._socket = connection
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Order | Report) -> None:
        """Send one message."""
        self.send_bytes(self.encode(message))

    def encode(self, message: Order | Report) -> bytes:
        """``message`` as `send_bytes` takes it, to be sent to several."""
        data = self._encoder.encode(message)
        return len(data).to_bytes(_LENGTH_BYTES, "little") + data

    def send_bytes(self, data: bytes) -> None:
        """Send what `encode` made."""
        self._socket.sendall(data)

    def receive(self) -> M:
        """The next message; waits for it."""
        length = int.from_bytes(self._read(_LENGTH_BYTES), "little")
        return self._decoder.decode(self._read(length))

    def send_tensor(self, tensor: torch.Tensor) -> None:
        """Send the elements of ``tensor``."""
        self._socket.sendall(_as_bytes(tensor.cpu().contiguous()).numpy().data)

    def receive_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor with the elements that come next."""
        tensor = torch.empty(shape, dtype=dtype)
        self._fill(_as_bytes(tensor).numpy().data)
        return tensor

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Within, waiting for longer is a `TimeoutError`, after which the channel is of no use."""
        self._socket.settimeout(seconds)
        try:
            yield
        finally:
            self._socket.settimeout(None)

    def close(self) -> None:
        """The peer reads an end."""
        self._socket.close()

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        self._fill(memoryview(data))
        return data

    def _fill(self, view: memoryview) -> None:
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the other end is gone")
            view = view[count:]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as flat uint8."""
    return tensor.reshape(-1).view(torch.uint8)
