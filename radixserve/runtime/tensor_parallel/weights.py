"""A model's weights on their way to the ranks.

Every rank builds the same decoder, so all ask for the same weights in the same order. Rank 0 reads each when it asks for it itself, once,
and gives everybody their part of it; no rank ever holds more than its own part and the weight at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import Order, Report, Weight
from radixserve.runtime.tensor_parallel.pulse import Pulse
from radixserve.runtime.tensor_parallel.shards import Shard


class ScatteredWeights(Mapping[str, torch.Tensor]):
    """Rank 0's part of ``weights``; asking for one sends the other ranks theirs.

    ``shards``: of all ranks, rank 0 first; ``channels``: to the others; ``pulse``: rank 0's.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        model: ModelConfig,
        shards: Sequence[Shard],
        channels: Sequence[Channel[Report]],
        pulse: Pulse,
    ) -> None:
        self._weights = weights
        self._model = model
        self._own = shards[0]
        self._pulse = pulse
        self._others = [
            (shard, shard.names(model), channel) for shard, channel in zip(shards[1:], channels, strict=True)
        ]

    def __getitem__(self, name: str) -> torch.Tensor:
        whole = self._weights[name]
        self._pulse.move()
        for shard, names, channel in self._others:
            if name in names:
                part = shard.part(self._model, name, whole)
                channel.send(Weight(name, str(part.dtype).removeprefix("torch."), tuple(part.shape)))
                channel.send_tensor(part)
        return self._own.part(self._model, name, whole)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class ReceivedWeights(Mapping[str, torch.Tensor]):
    """The part of another rank, as rank 0 sends it; asking for a weight waits for it. ``pulse``: of that rank."""

    def __init__(self, names: frozenset[str], channel: Channel[Order], pulse: Pulse) -> None:
        self._names = names
        self._channel = channel
        self._pulse = pulse

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        message = self._channel.receive()
        assert isinstance(message, Weight) and message.name == name, f"{name} is asked for, and {message} comes"
        tensor = self._channel.receive_tensor(message.shape, getattr(torch, message.dtype))
        self._pulse.move()
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
