"""Messages and tensors over a pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import Close, Copy, Order, Pass, Raised, Ready, Report, array_bytes
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row

Pair = tuple[Channel[Report], Channel[Order]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    channels: Pair = Channel(one, Report), Channel(other, Order)
    yield channels
    for channel in channels:
        channel.close()


def test_messages_come_in_order_and_by_kind(pair: Pair) -> None:
    rank_0, rank_1 = pair
    orders: list[Order] = [Copy(array_bytes(np.arange(6))), Close()]
    for order in orders:
        rank_0.send(order)
    assert [rank_1.receive() for _ in orders] == orders
    rank_1.send(Ready(7))
    rank_1.send(Raised("no", consequence=False))
    assert [rank_0.receive(), rank_0.receive()] == [Ready(7), Raised("no", consequence=False)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensors_larger_than_any_buffer_keep_their_bits(pair: Pair, dtype: torch.dtype) -> None:
    tensor = torch.randn(1000, 1500).to(dtype)[:, ::3]
    sender = threading.Thread(target=pair[0].send_tensor, args=(tensor,))
    sender.start()
    received = pair[1].receive_tensor(tuple(tensor.shape), dtype)
    sender.join()
    assert torch.equal(received, tensor)


def test_a_batch_arrives_as_it_was(pair: Pair) -> None:
    rows = (plan_row(range(20), [3, 1], rid="a"), plan_row([7], [5, 4, 2], start=35, rid="b"))
    batch = ForwardBatch.from_plan(StepPlan(0, rows), 16)
    pair[0].send(Pass.of(batch))
    message = pair[1].receive()
    assert isinstance(message, Pass)
    arrived = message.batch(torch.device("cpu"))
    for name in ("tokens", "positions", "slots"):
        assert torch.equal(getattr(arrived, name), getattr(batch, name))
    for name in ("query_start", "seq_lens", "table_start", "table_blocks"):
        np.testing.assert_array_equal(getattr(arrived, name), getattr(batch, name))
    assert arrived.block_size == 16 and arrived.num_rows == 2 and len(arrived.sample_rows) == 0


def test_a_peer_that_is_gone_is_an_end(pair: Pair) -> None:
    pair[1].send(Ready(1))
    pair[1].close()
    assert pair[0].receive() == Ready(1)
    with pytest.raises(EOFError):
        pair[0].receive()
    with pytest.raises(ConnectionError):
        pair[0].send(Close())


def test_an_end_in_the_middle_of_a_message_is_an_end() -> None:
    one, other = socket.socketpair()
    channel: Channel[Report] = Channel(one, Report)
    other.sendall((100).to_bytes(8, "little") + b"half")
    other.close()
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


def test_patience_ends(pair: Pair) -> None:
    with pytest.raises(TimeoutError), pair[0].patience(0.01):
        pair[0].receive()
