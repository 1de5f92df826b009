"""The cut of a step's attention into tiles and entries."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.tiling import TileShape, chunk_blocks, cut_entries, cut_tiles, visible_keys
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row

CHUNK, SIZE, GROUP = 8, 4, 2
SHAPES = tuple(TileShape(rows, GROUP, CHUNK) for rows in (2, 5, 12))


def batch_of(rows: list[tuple[int, int]]) -> ForwardBatch:
    used = 0
    planned = []
    for context, extent in rows:
        blocks = -(-(context + extent) // SIZE)
        planned.append(plan_row([0] * extent, range(used, used + blocks), start=context))
        used += blocks
    return ForwardBatch.from_plan(StepPlan(0, tuple(planned)), SIZE)


rows_strategy = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6)


@given(rows=rows_strategy)
@settings(deadline=None)
def test_every_token_is_in_one_tile(rows: list[tuple[int, int]]) -> None:
    batch = batch_of(rows)
    seen: list[int] = []
    for tiles in cut_tiles(batch, SHAPES):
        assert (tiles.length <= tiles.shape.tokens).all()
        for first, length, position, row in zip(tiles.first, tiles.length, tiles.position, tiles.row, strict=True):
            assert batch.query_start[row] <= first
            assert first + length <= batch.query_start[row + 1]
            assert position == batch.positions[first]
            seen.extend(range(first, first + length))
    assert sorted(seen) == list(range(batch.num_tokens))


@given(rows=rows_strategy, window=st.sampled_from([None, 1, 3, 8, 20]), max_entries=st.integers(1, 7))
@settings(deadline=None)
def test_entries_cover_what_a_query_sees_in_ascending_order(
    rows: list[tuple[int, int]], window: int | None, max_entries: int
) -> None:
    batch = batch_of(rows)
    for tiles in cut_tiles(batch, SHAPES):
        chunks: dict[int, list[int]] = {index: [] for index in range(len(tiles))}
        keys: dict[tuple[int, int], set[int]] = {}
        for entries in cut_entries(tiles, window, max_entries):
            assert 0 < len(entries) <= max_entries
            for begin, end in itertools.pairwise(entries.segments):
                assert len(set(entries.tile[begin:end].tolist())) == end - begin > 0
            visible = visible_keys(tiles, entries, window)
            blocks, missing = chunk_blocks(batch, tiles, entries)
            absent = np.zeros(len(entries) * CHUNK, bool)
            absent[missing] = True
            for index, (tile, chunk) in enumerate(zip(entries.tile.tolist(), entries.chunk.tolist(), strict=True)):
                chunks[tile].append(chunk)
                row = tiles.row[tile]
                table = batch.table_blocks[batch.table_start[row] : batch.table_start[row + 1]].tolist()
                for key in range(CHUNK):
                    position = chunk * CHUNK + key
                    assert absent[index * CHUNK + key] == (position >= batch.seq_lens[row])
                    if position < batch.seq_lens[row]:
                        assert blocks[index, key // SIZE] == table[position // SIZE]
                for place in range(tiles.length[tile] * GROUP):
                    seen = set((np.flatnonzero(visible[index, place]) + chunk * CHUNK).tolist())
                    assert not entries.full or len(seen) == CHUNK
                    keys.setdefault((tile, place), set()).update(seen)
        for tile, order in chunks.items():
            assert order == sorted(set(order))
            for place in range(tiles.length[tile] * GROUP):
                query = int(tiles.position[tile]) + place // GROUP
                oldest = 0 if window is None else max(0, query - window + 1)
                assert keys[tile, place] == set(range(oldest, query + 1))
