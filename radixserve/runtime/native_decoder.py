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
from radixserve.native.program import Program, StepBatch
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.native_buffers import NativeBuffers
from radixserve.runtime.native_head import NativeHead
from radixserve.runtime.native_weights import NativeLayer, NativeLinear, NativeWeights
from radixserve.runtime.top_logits import TopLogits

Int32Array = npt.NDArray[np.int32]

# Room for activations grows in steps of so many tokens.
TOKEN_STEP = 64


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
        self._tokens = 0
        self._make_room(tokens, TABLE_BLOCK)

    def forward(self, batch: ForwardBatch) -> NativeHidden:
        """All layers; K and V of the batch's tokens are in the store afterwards. Raises `MemoryError`."""
        self._make_room(batch.num_tokens, batch.max_seq_len)
        step = _Step.of(batch)
        # The kernels check nothing: better a step that fails here than a read beside the pool.
        assert _within(step.tables, self.kv.num_blocks), "a block id lies outside the pool"
        assert _within(step.token_ids, self._config.vocab_size), "a token id lies outside the vocabulary"
        self._layers.run(step.batch(np.empty(0, np.int32)))
        return NativeHidden(self, step)

    def states(self, first: int, last: int) -> torch.Tensor:
        """Hidden states of tokens ``first`` to ``last`` - 1 of the last step, float32 [n, hidden], a copy."""
        return self._buffers.residual[first:last] + self._buffers.delta[first:last]

    def non_finite_tokens(self, count: int) -> Int64Array:
        """Which of the first ``count`` tokens of the last step have a NaN or an infinity in their hidden state."""
        residual, delta = self._buffers.residual[:count].numpy(), self._buffers.delta[:count].numpy()
        # A sum of finite numbers may overflow, so it only points at the rows worth looking at.
        with np.errstate(over="ignore", invalid="ignore"):
            suspects = np.flatnonzero(~np.isfinite(residual.sum(axis=1) + delta.sum(axis=1)))
            states = residual[suspects] + delta[suspects]
        found: Int64Array = suspects[~np.isfinite(states).all(axis=1)]
        return found

    def logits(self, step: _Step, tokens: Int64Array) -> torch.Tensor:
        """Float32 [n, vocab] of ``tokens`` of the last step: a view that the next call writes over."""
        return self._head.logits(step.batch(tokens.astype(np.int32)), len(tokens))

    def top(self, step: _Step, tokens: Int64Array, count: int) -> TopLogits:
        """The ``count`` largest logits of ``tokens`` of the last step: views that the next call writes over."""
        return self._head.top(step.batch(tokens.astype(np.int32)), len(tokens), count)

    def _make_room(self, tokens: int, positions: int) -> None:
        """Record anew where activations or rotary tables are too small for a step."""
        if tokens <= self._tokens and positions <= len(self._cos):
            return
        if positions > len(self._cos):
            held = len(self._cos)
            # Doubled at least, so that growth is rare.
            wanted = math.ceil(max(positions, 2 * held) / TABLE_BLOCK) * TABLE_BLOCK
            cos, sin = cosines_and_sines(self._frequencies, held, wanted - held)
            self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
        if tokens > self._tokens:
            self._tokens = math.ceil(tokens / TOKEN_STEP) * TOKEN_STEP
            self._buffers = NativeBuffers.allocate(self._config, self._weights, self._tokens)
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
            *linear(layer.gate_up, at.hidden, at.gate_up),
            ops.silu_mul(at.gate_up, at.inner),
            *linear(layer.down, at.inner, at.delta),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class NativeHidden:
    """The hidden states that the last step left in a decoder's buffers; valid until its next step."""

    decoder: NativeDecoder
    step: _Step

    def states(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Hidden states of tokens ``first`` to ``last`` - 1."""
        states: npt.NDArray[np.float32] = self.decoder.states(first, last).numpy()
        return states

    def non_finite_tokens(self) -> Int64Array:
        """Tokens with a NaN or an infinity in their hidden state."""
        return self.decoder.non_finite_tokens(len(self.step.token_ids))

    def logits(self, tokens: Int64Array) -> torch.Tensor:
        """Float32 logits of ``tokens``."""
        return self.decoder.logits(self.step, tokens)

    def top(self, tokens: Int64Array, count: int) -> TopLogits:
        """The ``count`` largest logits of ``tokens``, straight from the head."""
        return self.decoder.top(self.step, tokens, count)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A batch as the kernels want it: int32, and block tables side by side as [R, blocks of the longest]."""

    token_ids: Int32Array
    positions: Int32Array
    slots: Int32Array
    query_start: Int32Array
    seq_lens: Int32Array
    tables: Int32Array

    @classmethod
    def of(cls, batch: ForwardBatch) -> _Step:
        lengths = np.diff(batch.table_start)
        tables = np.zeros((batch.num_rows, int(lengths.max())), np.int32)
        tables[np.arange(tables.shape[1]) < lengths[:, None]] = batch.table_blocks
        return cls(
            token_ids=batch.tokens.numpy().astype(np.int32),
            positions=batch.positions.numpy().astype(np.int32),
            slots=batch.slots.numpy().astype(np.int32),
            query_start=batch.query_start.astype(np.int32),
            seq_lens=batch.seq_lens.astype(np.int32),
            tables=tables,
        )

    def batch(self, wanted: Int32Array) -> StepBatch:
        """This step with the tokens ``wanted``, whose logits are to be computed."""
        return StepBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            slots=self.slots,
            query_start=self.query_start,
            seq_lens=self.seq_lens,
            tables=self.tables,
            wanted_rows=wanted,
        )


def _within(ids: Int32Array, end: int) -> bool:
    """Whether all ids are in [0, end)."""
    return bool(ids.min() >= 0 and ids.max() < end)
