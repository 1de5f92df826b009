"""Chunk-grouped attention: against its definition, and its promise that company never shows in the bits."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.library import NativeLibrary
from tests.native.paged import Request, Scene, Shape
from tests.native.steps import ALL_ISAS, same_bits

# By arithmetic and type of the cache: what meets int8 is rounded to int16.
TOLERANCE = {
    (torch.bfloat16, torch.bfloat16): 0.02,
    (torch.bfloat16, torch.int8): 0.01,
    (torch.float32, torch.float32): 1e-5,
    (torch.float32, torch.int8): 1e-3,
}
CACHES = pytest.mark.parametrize("int8", [False, True], ids=["plain", "int8"])

shapes = st.builds(
    Shape,
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 3, 4, 5, 7, 8]),
    block_size=st.sampled_from([16, 32, 48, 64]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    int8=st.booleans(),
    window=st.none() | st.integers(1, 600),
    softcap=st.sampled_from([0.0, 5.0]),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """A few requests that fork from one another: decodes, short extends, prefill chunks, lengths about chunk boundaries."""
    scene = Scene(draw(shapes), num_blocks=220, seed=draw(st.integers(0, 1000)))
    for index in range(draw(st.integers(1, 6))):
        near = draw(st.sampled_from([16, 256, 512])) + draw(st.integers(-2, 2))
        length = draw(st.just(near) | st.integers(1, 600))
        queries = min(length, draw(st.sampled_from([1, 1, 1, 2, 16, 17, 40])))
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        scene.add(length, queries, parent, draw(st.integers(0, 40)))
    return scene


@settings(deadline=None, max_examples=60)
@given(scene=scenes(), isa=st.sampled_from(ALL_ISAS))
def test_equals_its_definition(scene: Scene, isa: str) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    q = scene.queries()
    tolerance = TOLERANCE[scene.shape.dtype, scene.shape.cached]
    torch.testing.assert_close(scene.attend(library, q).double(), scene.expected(q), rtol=tolerance, atol=tolerance)


@settings(deadline=None, max_examples=40)
@given(scene=scenes(), isa=st.sampled_from(ALL_ISAS), data=st.data())
def test_a_token_alone_has_the_bits_it_has_in_company(scene: Scene, isa: str, data: st.DataObject) -> None:
    """One token as the only query of the only request equals the same token in the whole step, on one thread or two."""
    library = NativeLibrary.load()
    library.set_isa(isa)
    library.set_threads(2)
    q = scene.queries()
    together = scene.attend(library, q)
    library.set_threads(1)
    assert same_bits(scene.attend(library, q), together)
    library.set_threads(2)
    row = 0
    for request in scene.requests:
        for offset in {0, request.queries - 1, data.draw(st.integers(0, request.queries - 1))}:
            length = request.length - request.queries + offset + 1
            table = request.table[: -(-length // scene.shape.block_size)]
            alone = scene.attend(library, q[row + offset : row + offset + 1], [Request(table, length, 1)])
            assert same_bits(alone[0], together[row + offset]), (request, offset)
        row += request.queries


@CACHES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [None, 100])
def test_any_cut_of_a_prompt_gives_the_bits_of_the_whole(
    library: NativeLibrary, dtype: torch.dtype, window: int | None, int8: bool
) -> None:
    scene = Scene(Shape(head_dim=32, kv_heads=1, dtype=dtype, int8=int8, window=window), num_blocks=40)
    request = scene.add(530, 530)
    q = scene.queries()
    whole = scene.attend(library, q)
    for step in (1, 7, 16, 17, 64, 256, 300):
        for start in range(0, 530, step) if step > 10 else range(240, 275, step):
            end = min(530, start + step)
            part = scene.attend(library, q[start:end], [Request(request.table, end, end - start)])
            assert same_bits(part, whole[start:end]), (step, start)


@CACHES
def test_blocks_that_were_not_written_are_not_read(library: NativeLibrary, int8: bool) -> None:
    """Free blocks and the places behind a request's last token hold NaN in every scene; none may come through."""
    scene = Scene(Shape(head_dim=64, int8=int8), num_blocks=30)
    for length in (1, 15, 16, 17, 255):
        scene.add(length, 1)
    assert scene.attend(library, scene.queries()).isfinite().all()


@CACHES
def test_blocks_below_the_window_are_not_read(library: NativeLibrary, int8: bool) -> None:
    scene = Scene(Shape(head_dim=64, int8=int8, window=40), num_blocks=60)
    request = scene.add(400, 1)
    for position in range(352):
        scene.v[scene.slot(request, position)] = float("nan")
    request.table[:22] = [-(2**20)] * 22
    assert scene.attend(library, scene.queries()).isfinite().all()


def test_large_scores_do_not_overflow(library: NativeLibrary) -> None:
    scene = Scene(Shape(head_dim=64), num_blocks=30)
    scene.add(300, 1)
    q = scene.queries(spread=1000)
    torch.testing.assert_close(scene.attend(library, q).double(), scene.expected(q), rtol=0.02, atol=0.02)


@CACHES
@pytest.mark.parametrize(("half", "value"), [("k", float("nan")), ("v", float("nan")), ("v", float("inf"))])
def test_a_request_that_is_not_finite_stays_alone(library: NativeLibrary, half: str, value: float, int8: bool) -> None:
    scene = Scene(Shape(head_dim=64, int8=int8), num_blocks=60)
    scene.add(100, 1)
    scene.add(120, 1, parent=0, shared_blocks=5)
    q = scene.queries()
    clean = scene.attend(library, q)
    getattr(scene, half)[scene.slot(scene.requests[1], 110), 0, 3] = value
    dirty = scene.attend(library, q)
    assert same_bits(dirty[0], clean[0])
    assert not dirty[1].isfinite().all()


@settings(deadline=None, max_examples=20)
@given(scene=scenes(), data=st.data())
def test_integers_of_a_head_of_zeros_and_of_tiny_numbers(scene: Scene, data: st.DataObject) -> None:
    """Heads that are all zero, or too small for a scale, count as zero; the others are as exact as ever."""
    scene.shape = dataclasses.replace(scene.shape, int8=True)
    library = NativeLibrary.load()
    library.set_isa(data.draw(st.sampled_from(ALL_ISAS)))
    for half in (scene.k, scene.v):
        slots = torch.rand(len(half), generator=scene.generator)
        half[(slots < 0.2) & half.isfinite().flatten(1).all(1)] = 0.0
        half[(slots > 0.8) & half.isfinite().flatten(1).all(1)] *= 1e-37
    q = scene.queries()
    tolerance = TOLERANCE[scene.shape.dtype, torch.int8]
    torch.testing.assert_close(scene.attend(library, q).double(), scene.expected(q), rtol=tolerance, atol=tolerance)


def traffic(library: NativeLibrary, scene: Scene) -> tuple[int, int]:
    """Blocks read and asked for in one call."""
    library.reset_counters()
    scene.attend(library, scene.queries())
    counted = library.kv_traffic()
    size = scene.shape.block_bytes
    assert counted.read % size == counted.asked % size == 0
    return counted.read // size, counted.asked // size


@CACHES
def test_a_shared_prefix_is_read_once(library: NativeLibrary, int8: bool) -> None:
    """Sixteen decodes over 62 shared blocks (992 tokens) with 3 own each."""
    scene = Scene(Shape(int8=int8), num_blocks=120)
    scene.add(1032, 1)
    for _ in range(15):
        scene.add(1032, 1, parent=0, shared_blocks=62)
    assert traffic(library, scene) == (62 + 16 * 3, 16 * 65)


def test_a_tree_is_read_once_at_every_level(library: NativeLibrary) -> None:
    """A root of 20 blocks, two branches of 10, two leaves each of 2: 20 + 2 * 10 + 4 * 2 blocks."""
    scene = Scene(Shape(), num_blocks=60)
    scene.add(32 * 16, 1)
    scene.add(32 * 16, 1, parent=0, shared_blocks=30)
    scene.add(32 * 16, 1, parent=0, shared_blocks=20)
    scene.add(32 * 16, 1, parent=2, shared_blocks=30)
    assert traffic(library, scene) == (20 + 2 * 10 + 4 * 2, 4 * 32)


def test_a_request_that_ends_where_another_goes_on_shares_too(library: NativeLibrary) -> None:
    scene = Scene(Shape(), num_blocks=60)
    scene.add(20 * 16, 1)
    scene.add(30 * 16, 1, parent=0, shared_blocks=20)
    assert traffic(library, scene) == (30, 50)


def test_nothing_shared_is_read_for_each(library: NativeLibrary) -> None:
    scene = Scene(Shape(), num_blocks=60)
    for _ in range(3):
        scene.add(17 * 16, 1)
    assert traffic(library, scene) == (51, 51)


@pytest.mark.parametrize(
    ("threads", "longest", "tasks"), [(1, 600, 12), (2, 600, 12), (2, 9000, 10 + 72), (1, 9000, 12)]
)
def test_who_shares_nothing_walks_alone_unless_threads_would_wait(
    library: NativeLibrary, threads: int, longest: int, tasks: int
) -> None:
    """Six decodes of three chunks: a task each and KV head. One of 36 chunks beside five is handed out by chunk to two threads."""
    scene = Scene(Shape(), num_blocks=770)
    for length in (longest, 600, 600, 600, 600, 600):
        scene.add(length, 1)
    library.set_threads(threads)
    q = scene.queries()
    library.reset_counters()
    together = scene.attend(library, q)
    assert library.kv_traffic().tasks == tasks
    for row, request in enumerate(scene.requests):
        assert same_bits(scene.attend(library, q[row : row + 1], [request])[0], together[row])


@pytest.mark.parametrize(
    ("threads", "shared", "tasks", "read"), [(1, 3, 2, 3 + 8 * 12), (2, 3, 16, 8 * 15), (2, 8, 2, 8 + 8 * 7)]
)
def test_a_group_that_keeps_a_thread_waiting_is_cut_where_little_is_shared(
    library: NativeLibrary, threads: int, shared: int, tasks: int, read: int
) -> None:
    """Eight decodes over the same chunk of 15 blocks, of which the first are shared: cut, each piece reads these again."""
    scene = Scene(Shape(), num_blocks=130)
    scene.add(15 * 16, 1)
    for _ in range(7):
        scene.add(15 * 16, 1, parent=0, shared_blocks=shared)
    library.set_threads(threads)
    q = scene.queries()
    library.reset_counters()
    together = scene.attend(library, q)
    size = scene.shape.block_bytes
    assert (library.kv_traffic().tasks, library.kv_traffic().read // size) == (tasks, read)
    for row, request in enumerate(scene.requests):
        assert same_bits(scene.attend(library, q[row : row + 1], [request])[0], together[row])
