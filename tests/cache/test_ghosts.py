"""The log of what was evicted: neighbours, bound, order of forgetting."""

from __future__ import annotations

import random

import pytest

from radixserve.cache.ghosts import Ghost, GhostLog
from radixserve.cache.token_key import encode_tokens
from tests.cache.oracle import common_prefix

NAME = ("m", "")


def _ghost(step: int, *, failed: bool = False) -> Ghost:
    return Ghost(step, failed, 3, 5, 8)


def _find(log: GhostLog, tokens: list[int], salt: bytes = b"", tree: tuple[str, str] = NAME) -> tuple[int, int | None]:
    length, ghost = log.find(tree, salt, encode_tokens(tokens))
    return length, ghost.step if ghost is not None else None


def test_a_ghost_tells_when_and_under_what_pressure() -> None:
    assert _ghost(7).detail == "evicted at step 7, when 3 more blocks were needed and 5 of 8 were in use"
    assert _ghost(7, failed=True).detail == "the forward pass of step 7 that computed it failed"


def test_a_path_that_another_extends_is_kept_once() -> None:
    log = GhostLog(100)
    for step, length in enumerate((8, 7, 5), start=1):
        log.record(NAME, b"", encode_tokens(list(range(length))), _ghost(step))
    assert (len(log), log.num_tokens) == (1, 8)
    assert _find(log, list(range(20))) == (8, 3), "the latest news count"
    log.record(NAME, b"", encode_tokens(list(range(10))), _ghost(4))
    assert (len(log), log.num_tokens) == (1, 10)
    assert _find(log, list(range(20))) == (10, 4)


def test_the_longest_common_prefix_wins_on_either_side() -> None:
    log = GhostLog(100)
    log.record(NAME, b"", encode_tokens([1, 2, 3, 4]), _ghost(1))
    log.record(NAME, b"", encode_tokens([1, 2, 5, 6]), _ghost(2))
    log.record(NAME, b"", encode_tokens([9]), _ghost(3))
    assert _find(log, [1, 2, 3, 9]) == (3, 1)
    assert _find(log, [1, 2, 5, 0]) == (3, 2)
    assert _find(log, [1, 2, 4]) == (2, 1)
    assert _find(log, [0]) == (0, None)
    assert _find(log, []) == (0, None)


def test_a_tenant_meets_its_own_ghosts_and_public_ones_only() -> None:
    log = GhostLog(100)
    log.record(NAME, b"x", encode_tokens([1, 2, 3]), _ghost(1))
    log.record(NAME, b"", encode_tokens([1, 2]), _ghost(2))
    assert len(log) == 2
    assert _find(log, [1, 2, 3], b"x") == (3, 1)
    assert _find(log, [1, 2, 3], b"y") == (2, 2)
    assert _find(log, [1, 2, 3]) == (2, 2)
    assert _find(log, [1, 2, 3], b"x", ("m", "adapter")) == (0, None)


def test_the_oldest_are_forgotten_when_the_bound_is_passed() -> None:
    log = GhostLog(10)
    for step in range(1, 5):
        log.record(NAME, b"", encode_tokens([step] * 4), _ghost(step))
        assert log.num_tokens <= 10
    assert [_find(log, [step] * 4)[0] for step in range(1, 5)] == [0, 0, 4, 4]


def test_a_path_longer_than_the_bound_forgets_nothing() -> None:
    log = GhostLog(5)
    log.record(NAME, b"", encode_tokens([1, 2]), _ghost(1))
    log.record(NAME, b"", encode_tokens([1, 2, 3, 4, 5, 6]), _ghost(2))
    assert (len(log), log.num_tokens) == (1, 2)
    assert _find(log, [1, 2, 3]) == (2, 1)


def test_a_bound_of_zero_keeps_nothing() -> None:
    log = GhostLog(0)
    log.record(NAME, b"", encode_tokens([1]), _ghost(1))
    assert (len(log), log.num_tokens) == (0, 0)


def test_clear_forgets_all() -> None:
    log = GhostLog(50)
    log.record(NAME, b"", encode_tokens([1, 2]), _ghost(1))
    log.clear()
    assert (len(log), log.num_tokens, _find(log, [1, 2])) == (0, 0, (0, None))
    log.record(NAME, b"", encode_tokens([1, 2]), _ghost(2))
    assert _find(log, [1, 2]) == (2, 2)


@pytest.mark.parametrize("seed", range(15))
def test_with_many_ghosts_neighbours_answer_as_a_search_of_all_would(seed: int) -> None:
    rng = random.Random(seed)
    log = GhostLog(10**6)
    paths: set[tuple[bytes, tuple[int, ...]]] = set()
    for step in range(1, 400):
        salt = rng.choice([b"", b"a", b"ab"])
        path = tuple(rng.choice([0, 1, 255, 256]) for _ in range(rng.randint(1, 8)))
        log.record(NAME, salt, encode_tokens(path), _ghost(step))
        if not any(held_salt == salt and held[: len(path)] == path for held_salt, held in paths):
            paths = {(s, held) for s, held in paths if not (s == salt and path[: len(held)] == held)} | {(salt, path)}
        assert len(log) == len(paths)
        assert log.num_tokens == sum(len(held) for _, held in paths)
        wanted = [rng.choice([0, 1, 255, 256]) for _ in range(rng.randint(0, 10))]
        asker = rng.choice([b"", b"a", b"ab", b"b"])
        best = max((common_prefix(held, wanted) for s, held in paths if s in (b"", asker)), default=0)
        assert _find(log, wanted, asker)[0] == best


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_through_any_mix_of_growing_and_shrinking_paths(seed: int) -> None:
    rng = random.Random(seed)
    log = GhostLog(60)
    for step in range(2000):
        path = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
        log.record(NAME, b"", encode_tokens(path), _ghost(step))
        assert log.num_tokens <= 60
        assert _find(log, path)[0] == len(path), "what was recorded last is there"
    assert len(log._order) <= 2 * len(log) + 64
