"""How a step's attention is cut into work of fixed shape. Host side, numpy only.

The chunk law: keys are reduced over chunks of a fixed number of tokens that begin at multiples of that number in
*absolute position*, whole chunks always, and each query row's partial results are merged in ascending order of chunk.
What a (query row, chunk) pair contributes then depends on nothing else, so a row's bits cannot depend on how its prompt
was chunked, on where a cache hit ended, or on its batch mates::

    positions     0        256       512       768
    chunks        |---c0----|---c1----|---c2----|
    tile (5 queries at 600..604)                  c0 full   c1 full   c2 partial: keys after a query and
    sees              xxxxxxxxxxxxxxxxxxxxx..                         slots not written are masked

Queries are gathered into *tiles* of a few fixed row counts (heads of one KV group count as rows). A pair (tile, chunk)
is an *entry*. Entries whose queries all see the whole chunk need no mask; they are consecutive for a tile, so its
entries fall into three phases, run one after the other: *head* (cut by a sliding window), *full*, *tail* (cut by
causality).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from radixserve.runtime.forward_batch import ForwardBatch

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TileShape:
    """``rows``: query rows of a tile, padding included. ``group``: query heads per KV head. ``chunk``: keys of a chunk."""

    rows: int
    group: int
    chunk: int

    @property
    def tokens(self) -> int:
        """Query tokens of a tile."""
        return self.rows // self.group


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Tiles of one shape: n consecutive stretches of query tokens, each inside one row of the batch.

    ``first`` [n]: index of the first token in the flattened batch. ``length`` [n]: tokens, at most ``shape.tokens``.
    ``position`` [n]: absolute position of the first. ``row`` [n]: row of the batch.
    """

    shape: TileShape
    first: Int64Array
    length: Int64Array
    position: Int64Array
    row: Int64Array

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """A run of (tile, chunk) pairs, all full or all partial.

    ``segments``: bounds [s + 1] of stretches that name each tile at most once; merging stretch by stretch keeps each
    tile's chunks in ascending order.
    """

    tile: Int64Array
    chunk: Int64Array
    full: bool
    segments: Int64Array

    def __len__(self) -> int:
        return len(self.tile)


def cut_tiles(batch: ForwardBatch, shapes: tuple[TileShape, ...]) -> list[Tiles]:
    """Cut every row into tiles: as many of the largest shape as it fills, the rest in the smallest shape that holds it.

    ``shapes`` ascend. Shapes without tiles are left out.
    """
    lengths = np.diff(batch.query_start)
    capacities = np.array([shape.tokens for shape in shapes])
    whole, rest = np.divmod(lengths, capacities[-1])
    counts = whole + (rest > 0)
    row = np.repeat(np.arange(len(lengths)), counts)
    offset = (np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)) * capacities[-1]
    length = np.minimum(lengths[row] - offset, capacities[-1])
    kind = np.searchsorted(capacities, length)
    first = batch.query_start[row] + offset
    position = batch.seq_lens[row] - lengths[row] + offset
    tiles = []
    for index, shape in enumerate(shapes):
        chosen = kind == index
        if chosen.any():
            tiles.append(Tiles(shape, first[chosen], length[chosen], position[chosen], row[chosen]))
    return tiles


def cut_entries(tiles: Tiles, window: int | None, max_entries: int) -> Iterator[Entries]:
    """The entries of all tiles in the order in which they are to be run, at most ``max_entries`` at a time."""
    chunk = tiles.shape.chunk
    last = tiles.position + tiles.length - 1
    begin = np.zeros_like(last)
    full_begin = begin
    if window is not None:
        begin = np.maximum(0, tiles.position - window + 1) // chunk
        full_begin = np.maximum(begin, -((window - 1 - last) // chunk))
    full_end = np.maximum((tiles.position + 1) // chunk, full_begin)
    end = last // chunk + 1
    # Where no chunk is seen whole the two cuts may cross: then everything is tail.
    crossed = full_begin >= full_end
    full_begin = np.where(crossed, begin, full_begin)
    full_end = np.where(crossed, begin, full_end)
    for first, stop, full in ((begin, full_begin, False), (full_begin, full_end, True), (full_end, end, False)):
        yield from _phase(first, stop, full, max_entries)


def _phase(first: Int64Array, stop: Int64Array, full: bool, max_entries: int) -> Iterator[Entries]:
    """Entries of chunks [first, stop) of every tile, the tiles' lowest chunks before their second lowest and so on."""
    counts = stop - first
    tile = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(len(tile)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort(rank, kind="stable")
    tile, rank = tile[order], rank[order]
    chunk = first[tile] + rank
    for start in range(0, len(tile), max_entries):
        run = slice(start, start + max_entries)
        borders = np.flatnonzero(np.diff(rank[run])) + 1
        segments = np.concatenate(([0], borders, [len(tile[run])]))
        yield Entries(tile[run], chunk[run], full, segments)


def visible_keys(tiles: Tiles, entries: Entries, window: int | None) -> BoolArray:
    """[entries, rows, chunk]: which keys of its chunk each query row of each entry may see. Padding rows see none."""
    shape = tiles.shape
    token = np.arange(shape.rows) // shape.group
    query = tiles.position[entries.tile, None] + token
    key = entries.chunk[:, None] * shape.chunk + np.arange(shape.chunk)
    visible: BoolArray = key[:, None, :] <= query[:, :, None]
    if window is not None:
        visible &= key[:, None, :] > query[:, :, None] - window
    visible &= (token < tiles.length[entries.tile, None])[:, :, None]
    return visible


def chunk_blocks(batch: ForwardBatch, tiles: Tiles, entries: Entries) -> tuple[Int64Array, Int64Array]:
    """Where each entry's keys are, and which of them do not exist.

    Returns block ids [entries, chunk / block_size] (beyond a block table: 0) and the flat indices into [entries, chunk]
    of the keys at or after the end of the row: slots that hold garbage, NaN perhaps.
    """
    chunk = tiles.shape.chunk
    per_chunk = chunk // batch.block_size
    row = tiles.row[entries.tile]
    index = (batch.table_start[row] + entries.chunk * per_chunk)[:, None] + np.arange(per_chunk)
    inside = index < batch.table_start[row + 1][:, None]
    blocks = np.where(inside, batch.table_blocks[np.where(inside, index, 0)], 0)
    if entries.full:
        return blocks, np.empty(0, np.int64)
    key = entries.chunk[:, None] * chunk + np.arange(chunk)
    return blocks, np.flatnonzero(key >= batch.seq_lens[row][:, None])
