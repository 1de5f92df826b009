"""The decoder as a list of operations that the native library runs in one call a step.

The same arithmetic as `radixserve.model.decoder`, operation by operation: the residual stream and what is added to it are
float32, what the linears read is of the model's dtype (or float32, see `native_buffers`), logits are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig
from radixserve.model.rope import TABLE_BLOCK, cosines_and_sines, inverse_frequencies
from radixserve.native import operations as ops
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation
from radixserve.native.program import Program
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.native_buffers import NativeBuffers
from radixserve.runtime.native_head import NativeHead
from radixserve.runtime.native_step import NativeStep
from radixserve.runtime.native_weights import NativeLayer, NativeLinear, NativeWeights
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import StepPlan

# Room for activations grows in steps of so many tokens.
TOKEN_STEP = 64

_NONE = np.empty(0, np.int64)


class NativeDecoder:
    """The recorded forward pass of a model, or of its first layers, over one KV store.

    ``tokens``: room for so many tokens of a step at first; a longer step makes it grow. ``logits_rows``: most rows of one
    `logits`. As many layers are run as ``kv`` has. One step at a time: buffers are shared by all steps.
    """

    def __init__(
        self,
        library: NativeLibrary,
        config: ModelConfig,
        weights: NativeWeights,
        kv: BlockStore,
        *,
        tokens: int,
        logits_rows: int,
    ) -> None:
        self.library = library
        self.kv = kv
        self._config = config
        self._weights = weights
        self._logits_rows = logits_rows
        self._frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._cos, self._sin = cosines_and_sines(self._frequencies, 0, 0)
        self._tokens = self._positions = 0
        self._step = NativeStep(num_blocks=kv.num_blocks, block_size=kv.block_size, vocab_size=config.vocab_size)
        self._make_room(tokens, TABLE_BLOCK)

    def flatten(self, plan: StepPlan) -> NativeStep:
        """``plan`` as the step that `run` takes; valid until the next one."""
        self._step.take(plan)
        return self._step

    def forward(self, batch: ForwardBatch) -> NativeHidden:
        """`run` of a plan that was flattened for any path."""
        self._step.copy(batch)
        return self.run(self._step)

    def run(self, step: NativeStep) -> NativeHidden:
        """All layers over what `flatten` made; K and V of its tokens are in the store afterwards. Raises `MemoryError`."""
        self._make_room(step.num_tokens, step.longest)
        self._layers.run(step.batch())
        return NativeHidden(self, step)

    def states(self, first: int, last: int) -> torch.Tensor:
        """Hidden states of tokens ``first`` to ``last`` - 1 of the last step, float32 [n, hidden], a copy."""
        return self._buffers.residual[first:last] + self._buffers.delta[first:last]

    def non_finite_tokens(self, count: int) -> Int64Array:
        """Which of the first ``count`` tokens of the last step have a NaN or an infinity in their hidden state."""
        stream = self._stream[:, :count]
        # A sum of finite numbers may overflow, so it only points at what is worth looking at: first the step, then its rows.
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(np.add.reduce(stream, axis=None)):
                return _NONE
            suspects = np.flatnonzero(~np.isfinite(stream.sum(axis=(0, 2))))
            states = stream[0, suspects] + stream[1, suspects]
        found: Int64Array = suspects[~np.isfinite(states).all(axis=1)]
        return found

    def logits(self, step: NativeStep, tokens: Int64Array) -> torch.Tensor:
        """Float32 [n, vocab] of ``tokens`` of the last step: a view that the next call writes over."""
        return self._head.logits(step.batch(tokens), len(tokens))

    def top(self, step: NativeStep, tokens: Int64Array, count: int) -> TopLogits:
        """The ``count`` largest logits of ``tokens`` of the last step: views that the next call writes over."""
        return self._head.top(step.batch(tokens), len(tokens), count)

    def _make_room(self, tokens: int, positions: int) -> None:
        """Record anew where activations or rotary tables are too small for a step."""
        if tokens <= self._tokens and positions <= self._positions:
            return
        if positions > self._positions:
            held = self._positions
            # Doubled at least, so that growth is rare.
            wanted = math.ceil(max(positions, 2 * held) / TABLE_BLOCK) * TABLE_BLOCK
            cos, sin = cosines_and_sines(self._frequencies, held, wanted - held)
            self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
            self._positions = wanted
        if tokens > self._tokens:
            self._tokens = math.ceil(tokens / TOKEN_STEP) * TOKEN_STEP
            self._buffers = NativeBuffers.allocate(self._config, self._weights, self._tokens)
            self._stream = self._buffers.stream.numpy()
        self._record()

    def _record(self) -> None:
        config, weights, at = self._config, self._weights, self._buffers
        recorded = [ops.embedding(weights.embed, at.residual)]
        layers = weights.layers[: self.kv.num_layers]
        for index, layer in enumerate(layers):
            recorded += self._layer(index, layer)
        self._layers = Program(self.library, recorded)
        self._head = NativeHead(
            self.library, config, weights, at.residual, at.delta, rows=min(self._logits_rows, self._tokens)
        )

    def _layer(self, index: int, layer: NativeLayer) -> list[Operation]:
        config, at = self._config, self._buffers
        k_cache, v_cache = self.kv.layer(index)
        window = config.sliding_window
        if config.sliding_layers is not None and index not in config.sliding_layers:
            window = None

        def add_and_norm(weight: torch.Tensor, *, delta: bool) -> Operation:
            return ops.norm(
                at.residual,
                weight,
                at.hidden,
                eps=config.rms_norm_eps,
                delta=at.delta if delta else None,
                residual=at.residual if delta else None,
            )

        def linear(packed: NativeLinear, x: torch.Tensor, out: torch.Tensor) -> list[Operation]:
            widths = [part.weight.out_features for part in packed.parts]
            places = torch.split(out, widths, dim=1)
            return [
                ops.linear(part.weight, x, place, bias=part.bias)
                for part, place in zip(packed.parts, places, strict=True)
            ]

        def gated(packed: NativeLinear) -> list[Operation]:
            if packed.gated:
                (part,) = packed.parts
                return [ops.gated_linear(part.weight, at.hidden, at.inner, bias=part.bias)]
            return [*linear(packed, at.hidden, at.gate_up), ops.silu_mul(at.gate_up, at.inner)]

        return [
            add_and_norm(layer.attn_norm, delta=index > 0),
            *linear(layer.qkv, at.hidden, at.qkv),
            ops.rope_append(
                at.qkv,
                at.q,
                k_cache,
                v_cache,
                self._cos,
                self._sin,
                heads=config.num_heads,
                kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=config.rms_norm_eps,
            ),
            ops.attention(
                at.q,
                k_cache,
                v_cache,
                at.attended,
                heads=config.num_heads,
                kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                block_size=self.kv.block_size,
                scale=config.head_dim**-0.5,
                window=window,
            ),
            *linear(layer.o, at.attended, at.delta),
            add_and_norm(layer.mlp_norm, delta=True),
            *gated(layer.gate_up),
            *linear(layer.down, at.inner, at.delta),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class NativeHidden:
    """The hidden states that the last step left in a decoder's buffers; valid until its next step."""

    decoder: NativeDecoder
    step: NativeStep

    def states(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Hidden states of tokens ``first`` to ``last`` - 1."""
        states: npt.NDArray[np.float32] = self.decoder.states(first, last).numpy()
        return states

    def non_finite_tokens(self) -> Int64Array:
        """Tokens with a NaN or an infinity in their hidden state."""
        return self.decoder.non_finite_tokens(self.step.num_tokens)

    def logits(self, tokens: Int64Array) -> torch.Tensor:
        """Float32 logits of ``tokens``."""
        return self.decoder.logits(self.step, tokens)

    def top(self, tokens: Int64Array, count: int) -> TopLogits:
        """The ``count`` largest logits of ``tokens``, straight from the head."""
        return self.decoder.top(self.step, tokens, count)
