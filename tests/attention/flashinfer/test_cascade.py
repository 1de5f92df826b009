"""Which prefixes are worth reading once. Numpy only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.flashinfer import cascade as cascade_module
from radixserve.attention.flashinfer.cascade import Cascade, CascadeCost, find_cascade, level_tables, token_order
from radixserve.attention.flashinfer.pages import row_tables, token_rows
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row

FREE = CascadeCost(page=1, token=0, level=0)


def batch_of(
    tables: list[list[int]], extents: list[int] | None = None, tail: int = 0, block_size: int = 4
) -> ForwardBatch:
    """Rows whose last page holds ``tail`` computed tokens and then the row's extent."""
    rows = [
        plan_row([0] * extent, table, start=(len(table) - -(-extent // block_size)) * block_size + tail)
        for table, extent in zip(tables, extents or [1] * len(tables), strict=True)
    ]
    return ForwardBatch.from_plan(StepPlan(0, tuple(rows)), block_size)


def read_pages(batch: ForwardBatch, cascade: Cascade) -> list[list[int]]:
    """The pages that each row of the batch reads over all levels, in the order of the batch."""
    read: list[list[int]] = [[] for _ in range(batch.num_rows)]
    lengths = np.diff(batch.query_start)[cascade.order]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    for tables in level_tables(batch, cascade):
        assert tables.query_start[-1] == batch.num_tokens
        for group, (first, last) in enumerate(itertools.pairwise(tables.query_start.tolist())):
            pages = tables.pages[tables.page_start[group] : tables.page_start[group + 1]].tolist()
            for place in range(batch.num_rows):
                if first <= starts[place] < last:
                    assert starts[place + 1] <= last
                    read[int(cascade.order[place])] += pages
    return read


def pages_read(batch: ForwardBatch, cascade: Cascade) -> int:
    return sum(len(tables.pages) for tables in level_tables(batch, cascade))


def test_a_shared_prefix_is_read_once() -> None:
    batch = batch_of([[1, 2, 3, 9], [1, 2, 3, 7], [1, 2, 3, 8]])
    cascade = find_cascade(batch, FREE)
    assert cascade is not None
    assert cascade.saved == 6
    assert len(cascade.levels) == 1
    assert pages_read(batch, cascade) == 12 - 6


def test_two_groups_share_one_level() -> None:
    batch = batch_of([[1, 2, 9], [5, 6, 7, 20], [1, 2, 8], [5, 6, 7, 21], [30, 31]])
    cascade = find_cascade(batch, FREE)
    assert cascade is not None
    assert [level.row_start.tolist() for level in cascade.levels] == [[0, 2, 4, 5]]
    assert cascade.saved == 2 + 3
    order = token_order(batch, cascade)
    assert order is not None and order.tolist() == [0, 2, 1, 3, 4]


def test_branches_of_a_trunk_are_a_level_of_their_own() -> None:
    trunk, left, right = list(range(10)), [10, 11, 12], [20, 21, 22]
    batch = batch_of([[*trunk, *left, 30], [*trunk, *left, 31], [*trunk, *right, 32], [*trunk, *right, 33]])
    cascade = find_cascade(batch, FREE)
    assert cascade is not None
    assert [list(zip(level.begin, level.end, strict=True)) for level in cascade.levels] == [
        [(0, 10)],
        [(10, 13), (10, 13)],
    ]
    assert cascade.saved == 3 * 10 + 2 * 3
    one = find_cascade(batch, FREE, most_levels=1)
    assert one is not None and len(one.levels) == 1
    assert one.saved == 3 * 10
    # A second level that saves less than it costs is not taken.
    dear = find_cascade(batch, CascadeCost(page=1, token=0, level=7))
    assert dear is not None and len(dear.levels) == 1 and dear.saved == 30 - 7


def test_one_level_takes_the_branches_where_they_save_more_than_the_trunk() -> None:
    left, right = list(range(10, 30)), list(range(40, 60))
    batch = batch_of([[1, *left, 90], [1, *left, 91], [1, *right, 92], [1, *right, 93]])
    cascade = find_cascade(batch, FREE, most_levels=1)
    assert cascade is not None
    assert list(zip(cascade.levels[0].begin, cascade.levels[0].end, strict=True)) == [(0, 21), (0, 21)]
    assert cascade.saved == 42


@pytest.mark.parametrize(("level", "token", "worth"), [(29, 0, True), (30, 0, False), (0, 7, True), (0, 8, False)])
def test_what_a_level_costs_is_weighed(level: int, token: int, worth: bool) -> None:
    """Four rows save 3 x 10 pages; four queries pass through one more level."""
    batch = batch_of([[*range(10), 20 + row] for row in range(4)])
    assert (find_cascade(batch, CascadeCost(page=1, token=token, level=level)) is not None) == worth


def test_a_page_that_a_row_still_writes_is_its_own() -> None:
    """Leader and follower in one step: the leader's queries must not see all of a page that they are computing."""
    batch = batch_of([[1, 2, 3], [1, 2, 4], [1, 2, 5]], extents=[12, 1, 1])
    cascade = find_cascade(batch, FREE)
    assert cascade is not None
    assert cascade.saved == 2
    assert int(cascade.own[cascade.order.tolist().index(0)]) == 0


def test_strangers_and_single_rows_have_none() -> None:
    assert find_cascade(batch_of([[1, 2, 3], [4, 5, 6]]), FREE) is None
    assert find_cascade(batch_of([[1, 2, 3]]), FREE) is None
    assert find_cascade(batch_of([[1], [1]]), FREE) is None


def test_the_bytes_of_llama_3_8b() -> None:
    cost = CascadeCost.of(block_size=16, heads=32, kv_heads=8, head_dim=128, size=2, kv_size=2)
    assert cost.page == 65536
    assert cost.token == 32 * (5 * 256 + 16)
    # Sixteen agents over a prompt of 1,500 tokens save 15 x 93 pages of 64 KiB: 91 MB a layer against 32 MiB for the level.
    prompt = list(range(93))
    agents = batch_of([[*prompt, 1000 + row] for row in range(16)], block_size=16)
    assert find_cascade(agents, cost) is not None
    assert find_cascade(batch_of([[*prompt, 1000 + row] for row in range(4)], block_size=16), cost) is None


@st.composite
def tree_tables(draw: st.DrawFn) -> list[list[int]]:
    """Block tables that part from earlier ones at random depths."""
    names = itertools.count(1)
    tables: list[list[int]] = []
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(tables)) if tables else []
        kept = draw(st.integers(0, max(0, len(parent) - 1)))
        tables.append(parent[:kept] + [next(names) for _ in range(draw(st.integers(1, 6)))])
    return draw(st.permutations(tables))


@given(tables=tree_tables(), level=st.integers(0, 6), levels=st.integers(1, 3), tail=st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_row_reads_its_own_table_in_order(tables: list[list[int]], level: int, levels: int, tail: int) -> None:
    batch = batch_of(tables, tail=tail)
    cascade = find_cascade(batch, CascadeCost(1, 0, level), levels)
    if cascade is None:
        return
    assert sorted(cascade.order.tolist()) == list(range(len(tables)))
    assert len(cascade.levels) <= levels
    assert read_pages(batch, cascade) == tables
    assert cascade.saved == sum(map(len, tables)) - pages_read(batch, cascade) - level * len(cascade.levels)
    order = token_order(batch, cascade)
    assert order is None or sorted(order.tolist()) == list(range(batch.num_tokens))


@given(tables=tree_tables(), level=st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_one_level_saves_as_much_as_any(tables: list[list[int]], level: int) -> None:
    """Against all choices of prefixes, none of another, that all rows which have one read together."""
    prefixes = [tuple(table[:-1]) for table in tables]

    def best(prefix: tuple[int, ...]) -> int:
        rows = [row for row in prefixes if row[: len(prefix)] == prefix]
        longer = {row[: len(prefix) + 1] for row in rows if len(row) > len(prefix)}
        return max((len(rows) - 1) * len(prefix), sum(map(best, longer)))

    cascade = find_cascade(batch_of(tables), CascadeCost(1, 0, level), 1)
    assert (0 if cascade is None else cascade.saved) == max(0, best(()) - level)


def test_deep_chains_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row goes one page further than the one before: the worst tree for the search."""
    sets = 0
    search = cascade_module._Search._search

    def counted(self: object, *arguments: int) -> object:
        nonlocal sets
        sets += 1
        return search(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cascade_module._Search, "_search", counted)
    chain = list(range(600))
    batch = batch_of([[*chain[: row + 1], 1000 + row] for row in range(500)])
    cascade = find_cascade(batch, FREE)
    assert cascade is not None
    assert read_pages(batch, cascade) == [[*chain[: row + 1], 1000 + row] for row in range(500)]
    assert sets < 4 * cascade_module.MOST_SETS


def test_rows_as_flashinfer_reads_them() -> None:
    """Bounds count pages, unused blocks of a table are left out, the last page tells how many tokens it holds."""
    batch = ForwardBatch.from_plan(
        StepPlan(0, (plan_row([0] * 3, [7, 8, 9], start=4), plan_row([0], [5, 6], start=3), plan_row([0] * 4, [4]))), 4
    )
    tables = row_tables(batch)
    assert [each.dtype for each in tables.arrays] == [np.int32] * 4
    assert tables.query_start.tolist() == [0, 3, 4, 8]
    assert tables.page_start.tolist() == [0, 2, 3, 4]
    assert tables.pages.tolist() == [7, 8, 5, 4]
    assert tables.last_page.tolist() == [3, 4, 4]
    rows, positions = token_rows(batch)
    assert rows.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert positions.tolist() == [4, 5, 6, 3, 0, 1, 2, 3]
