"""Paged attention on torch's CPU flash kernel, under the chunk law of `radixserve.attention.tiling`.

Each entry (tile of query rows, chunk of keys) is one batch element of a flash call of fixed shape (Dao et al. 2022,
section 3.1), which gives the chunk's softmax output and its log-sum-exp. The partial results of a row are merged in
ascending order of chunk with the running maximum of Milakov and Gimelshein 2018. The kernel runs a batch element on one
thread, so its bits depend neither on the number of elements nor on the threads; that they do not depend on the tile's
row count either holds for some row counts only, which is why `usable_rows` tries them. Scores, softmax and sums are
float32; in bf16 the kernel rounds probabilities and each chunk's output to bf16.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.tiling import Tiles, TileShape, chunk_blocks, cut_entries, cut_tiles, visible_keys
from radixserve.model.config import ModelConfig

if TYPE_CHECKING:
    from radixserve.attention.tiling import Entries
    from radixserve.runtime.forward_batch import ForwardBatch
    from radixserve.runtime.kv_store import KVStore

CHUNK_TOKENS = 256
ROW_CHOICES = (8, 16, 32, 64, 128, 256, 768)
WAVE_BYTES = 64 << 20
UNSEEN = -1e30  # stands for -inf where a difference of two must not be NaN

# K and V of blocks of one layer, as `KVStore.read` gives them.
ReadBlocks = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """One flash call over E entries.

    ``tile`` [E]: the entries' tiles, None where it is all tiles in order. ``blocks`` [E * chunk / block_size].
    ``missing``: flat indices into [E * chunk] of keys that do not exist, None where all do.
    ``mask`` float32 [E or 1, 1, rows, chunk]: 0 or -inf. ``blind`` bool [E, 1, rows]: rows that see no key.
    ``segments``: stretches of entries (begin, end), each with the tiles it merges into.
    """

    tile: torch.Tensor | None
    blocks: torch.Tensor
    missing: torch.Tensor | None
    mask: torch.Tensor
    blind: torch.Tensor | None
    segments: tuple[tuple[int, int, torch.Tensor | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileGroup:
    """All tiles of one shape, and their waves in order.

    ``gather`` int64 [n * shape.tokens]: token of the batch for each place of each tile (padding repeats the first).
    ``places`` and ``tokens``: the places that are not padding, and the tokens they hold. ``identity``: each tile has one
    entry, so there is nothing to merge.
    """

    shape: TileShape
    num_tiles: int
    gather: torch.Tensor
    places: torch.Tensor
    tokens: torch.Tensor
    waves: tuple[Wave, ...]
    identity: bool


class TorchPagedAttention:
    """`radixserve.attention.base.AttentionBackend` for the CPU."""

    name = "torch_paged"

    def __init__(self, config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> None:
        self._config = config
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self.chunk = math.ceil(CHUNK_TOKENS / block_size) * block_size
        rows = usable_rows(config.head_dim, self.chunk, config.group_size, dtype)
        self._shapes = tuple(TileShape(count, config.group_size, self.chunk) for count in rows)
        self._element_size = dtype.itemsize
        self._windows = config.windows
        self._groups: dict[int | None, list[TileGroup]] = {}

    @staticmethod
    def supports(model: ModelConfig, device: str, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> list[str]:
        """Any model without a soft cap in bf16 or float32 on the CPU."""
        reasons = []
        if device != "cpu":
            reasons.append(f"torch_paged runs on the CPU, not on {device}")
        if dtype not in (torch.bfloat16, torch.float32):
            reasons.append(f"torch_paged computes in bfloat16 or float32, not in {dtype}")
        if kv_dtype not in (None, dtype, torch.int8):
            reasons.append(f"torch_paged stores KV in {dtype} or int8, not in {kv_dtype}")
        if model.attention_soft_cap is not None:
            reasons.append("torch_paged has no soft cap of attention scores")
        if not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
            reasons.append("this torch build has no flash attention for the CPU")
        return reasons

    def plan(self, batch: ForwardBatch) -> None:
        """Cut the batch into tiles and entries, once for each window that some layer has."""
        all_tiles = cut_tiles(batch, self._shapes)
        self._groups = {
            window: [self._plan_group(batch, tiles, window) for tiles in all_tiles]
            for window in dict.fromkeys(self._windows)
        }

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
        kv: KVStore,
    ) -> torch.Tensor:
        """Write K and V, then attend tile by tile; the result is a new tensor."""
        kv.write(layer, batch.slots, k, v)
        read = functools.partial(kv.read, layer)
        attended = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in self._groups[self._windows[layer]]:
            rows = self._attend(group, q, read)
            attended.index_copy_(0, group.tokens, rows.index_select(0, group.places))
        return attended

    def _attend(self, group: TileGroup, q: torch.Tensor, read: ReadBlocks) -> torch.Tensor:
        """Attention of one group's tiles: [n * shape.tokens, heads, head_dim], padding places included."""
        queries = self._tile_queries(group, q)
        if group.identity:
            out, _ = self._flash(queries, group.waves[0], read)
        else:
            state = RunningSoftmax(queries)
            for wave in group.waves:
                partial, lse = self._flash(queries, wave, read)
                for begin, end, tiles in wave.segments:
                    state.merge(tiles, partial[begin:end], lse[begin:end])
            out = state.result()
        shape, config = group.shape, self._config
        kept = out[:, :, : shape.tokens * shape.group].to(q.dtype)
        heads = kept.reshape(group.num_tiles, config.num_kv_heads, shape.tokens, shape.group, config.head_dim)
        return heads.transpose(1, 2).reshape(-1, config.num_heads, config.head_dim)

    def _flash(self, queries: torch.Tensor, wave: Wave, read: ReadBlocks) -> tuple[torch.Tensor, torch.Tensor]:
        """Partial results of a wave: [E, kv_heads, rows, head_dim] and their log-sum-exp, `UNSEEN` for blind rows."""
        if wave.tile is not None:
            queries = queries.index_select(0, wave.tile)
        keys, values = (self._chunks(half, wave) for half in read(wave.blocks))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=wave.mask, scale=self._scale
        )
        return out, lse if wave.blind is None else lse.masked_fill(wave.blind, UNSEEN)

    def _tile_queries(self, group: TileGroup, q: torch.Tensor) -> torch.Tensor:
        """Queries by tile and KV head: [n, kv_heads, rows, head_dim], padding rows zero."""
        shape, config = group.shape, self._config
        tokens = q.index_select(0, group.gather)
        split = tokens.view(group.num_tiles, shape.tokens, config.num_kv_heads, shape.group, config.head_dim)
        used = split.transpose(1, 2).reshape(group.num_tiles, config.num_kv_heads, -1, config.head_dim)
        if used.shape[2] == shape.rows:
            return used
        queries = q.new_zeros(group.num_tiles, config.num_kv_heads, shape.rows, config.head_dim)
        queries[:, :, : used.shape[2]] = used
        return queries

    def _chunks(self, blocks: torch.Tensor, wave: Wave) -> torch.Tensor:
        """The chunks of a wave, [E, kv_heads, chunk, head_dim] (strided), made of its ``blocks``.

        Slots without a token are zeroed: they may hold NaN, and 0 * NaN is NaN.
        """
        config = self._config
        chunks = blocks.view(-1, config.num_kv_heads * config.head_dim)
        if wave.missing is not None:
            chunks.index_fill_(0, wave.missing, 0.0)
        return chunks.view(-1, self.chunk, config.num_kv_heads, config.head_dim).transpose(1, 2)

    def _plan_group(self, batch: ForwardBatch, tiles: Tiles, window: int | None) -> TileGroup:
        shape, config = tiles.shape, self._config
        # K, V; the entry's copy of its queries, its output, and that in float32.
        width = config.num_kv_heads * config.head_dim
        entry_bytes = width * (2 * self.chunk * self._element_size + shape.rows * (2 * self._element_size + 4))
        max_entries = max(1, WAVE_BYTES // entry_bytes)
        waves = tuple(self._plan_wave(batch, tiles, e, window) for e in cut_entries(tiles, window, max_entries))
        place = np.arange(shape.tokens)
        used = place < tiles.length[:, None]
        gather = tiles.first[:, None] + np.where(used, place, 0)
        return TileGroup(
            shape=shape,
            num_tiles=len(tiles),
            gather=torch.from_numpy(gather.reshape(-1)),
            places=torch.from_numpy(np.flatnonzero(used)),
            tokens=torch.from_numpy(gather[used]),
            waves=waves,
            identity=len(waves) == 1 and len(waves[0].segments) == 1,
        )

    def _plan_wave(self, batch: ForwardBatch, tiles: Tiles, entries: Entries, window: int | None) -> Wave:
        blocks, missing = chunk_blocks(batch, tiles, entries)
        blind = None
        if entries.full:
            mask = torch.zeros(1, 1, tiles.shape.rows, self.chunk)
        else:
            visible = visible_keys(tiles, entries, window)
            mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf))).unsqueeze(1)
            blind = torch.from_numpy(~visible.any(-1)).unsqueeze(1)
        bounds = entries.segments.tolist()
        return Wave(
            tile=_tiles_or_all(entries.tile, tiles),
            blocks=torch.from_numpy(blocks.reshape(-1)),
            missing=torch.from_numpy(missing) if len(missing) else None,
            mask=mask,
            blind=blind,
            segments=tuple(
                (begin, end, _tiles_or_all(entries.tile[begin:end], tiles)) for begin, end in itertools.pairwise(bounds)
            ),
        )


class RunningSoftmax:
    """Merges partial attention results of tiles: maximum, sum and accumulator of every query row, in float32.

    A partial result whose log-sum-exp is `UNSEEN` leaves a row's bits alone, so it does not matter whether a chunk that
    a row cannot see was skipped or computed. Every operation is rounded by itself; ``exp`` has the same bits at every
    place of a tensor.
    """

    def __init__(self, queries: torch.Tensor) -> None:
        rows = queries.shape[:3]
        self._max = torch.full(rows, UNSEEN)
        self._sum = torch.zeros(rows)
        self._acc = torch.zeros(queries.shape)

    def merge(self, tiles: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Add ``out`` [s, kv_heads, rows, head_dim] and ``lse`` [s, kv_heads, rows] to ``tiles`` (None: all)."""
        if tiles is None:
            self._max, self._sum, self._acc = self._merged(self._max, self._sum, self._acc, out, lse)
            return
        held = (self._max.index_select(0, tiles), self._sum.index_select(0, tiles), self._acc.index_select(0, tiles))
        for state, new in zip((self._max, self._sum, self._acc), self._merged(*held, out, lse), strict=True):
            state.index_copy_(0, tiles, new)

    @staticmethod
    def _merged(
        old_max: torch.Tensor, old_sum: torch.Tensor, acc: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        new_max = torch.maximum(old_max, lse)
        keep = torch.exp(old_max - new_max)
        weight = torch.exp(lse - new_max)
        acc = acc.mul_(keep.unsqueeze(-1)).add_(out * weight.unsqueeze(-1))
        return new_max, old_sum.mul_(keep).add_(weight), acc

    def result(self) -> torch.Tensor:
        """The attention output [n, kv_heads, rows, head_dim]."""
        return self._acc.div_(self._sum.unsqueeze(-1))


@functools.cache
def usable_rows(head_dim: int, chunk: int, group: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Row counts a tile may have here: those whose rows come out of the kernel with the bits of the largest.

    GEMM libraries pick other instructions for some small sizes, so every choice is tried on random numbers; what
    differs is not used. The largest is always in, and is enlarged to hold at least one token's group of heads.
    """
    largest = max(ROW_CHOICES[-1], math.ceil(group / 16) * 16)
    generator = torch.Generator().manual_seed(head_dim)
    q = torch.randn(2, 1, largest, head_dim, generator=generator).to(dtype)
    k = torch.randn(2, 1, chunk, head_dim, generator=generator).to(dtype)
    v = torch.randn(2, 1, chunk, head_dim, generator=generator).to(dtype)
    mask = torch.zeros(2, 1, largest, chunk)
    mask[1].masked_fill_(torch.rand(1, largest, chunk, generator=generator) < 0.5, -math.inf)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    whole, whole_lse = flash(q, k, v, 0.0, False, attn_mask=mask, scale=0.125)
    usable = []
    for rows in ROW_CHOICES:
        if not group <= rows < largest:
            continue
        part, part_lse = flash(q[:, :, :rows], k, v, 0.0, False, attn_mask=mask[:, :, :rows], scale=0.125)
        if torch.equal(part, whole[:, :, :rows]) and torch.equal(part_lse, whole_lse[:, :, :rows]):
            usable.append(rows)
    return (*usable, largest)


def _tiles_or_all(tile: np.ndarray[tuple[int, ...], np.dtype[np.int64]], tiles: Tiles) -> torch.Tensor | None:
    if len(tile) == len(tiles) and (tile == np.arange(len(tiles))).all():
        return None
    return torch.from_numpy(tile)
