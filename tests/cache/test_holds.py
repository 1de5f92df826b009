"""Holds: exact to the token, within quotas, and the first to go under pressure. The driver checks books and KV after each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixserve.cache import holds
from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig, EngineConfig
from radixserve.errors import CacheInconsistent, ConfigError
from tests.cache.driver import PUBLIC, Driver

SIZE = 4
ONE, TWO, THREE = (Namespace("m", "", salt) for salt in (b"1", b"2", b"3"))
A, B, C, D = ([token] * 4 for token in (1, 2, 3, 4))


def make(blocks: int = 40, share: float = 0.5, **options: Any) -> Driver:
    config = CacheConfig(block_size=SIZE, num_blocks=blocks, hold_share=share, **options)
    return Driver(config, alphabet=20)


def held(driver: Driver, tokens: list[int], namespace: Namespace = PUBLIC) -> int:
    """Tokens of it that are found."""
    return driver.cache.match(namespace, encode_tokens(tokens), len(tokens)).total


def own(token: int, blocks: int) -> list[int]:
    """A sequence of so many whole blocks that shares nothing with others."""
    return [token] * SIZE * blocks


def squeeze(driver: Driver) -> None:
    """Evict all that can be."""
    driver.evict(driver.cache.tree.evictable_blocks)


# ---------------------------------------------------------------- to the token


@pytest.mark.parametrize("length", range(1, 14))
def test_exactly_what_was_wanted_outlives_an_eviction(length: int) -> None:
    driver = make()
    whole = [*A, *B, *C, 5, 6]
    driver.serve(whole)
    assert driver.hold(PUBLIC, whole[:length]) == length
    squeeze(driver)
    assert held(driver, whole[:length]) == length
    # No more than the block in which it ends.
    assert driver.cache.tree.num_blocks == driver.cache.holds.num_blocks == -(-length // SIZE)


def test_what_is_longer_than_what_is_there_is_held_as_far_as_it_is() -> None:
    driver = make()
    driver.serve([*A, *B, 5])
    assert driver.hold(PUBLIC, [*A, *B, 5, 6, 7, 8]) == 9
    assert driver.hold(PUBLIC, [*A, 9, 9, 9, 9]) == 4
    assert driver.hold(PUBLIC, [9, 9]) == 0 and driver.hold(ONE, [*A]) == 4
    assert driver.cache.holds.stats.taken == 3 and driver.cache.holds.stats.shortened == 3


def test_a_tail_that_others_go_on_from_stays_held() -> None:
    """A request that fills the held tail's block replaces it in the tree; the hold moves to what has its tokens."""
    driver = make()
    prefix = [*A, 5, 6]
    driver.serve(prefix)
    driver.hold(PUBLIC, prefix)
    driver.serve([*prefix, 7, 8, 9, 9, 9])
    squeeze(driver)
    assert held(driver, prefix) == 6 and driver.cache.holds.num_blocks == 2
    assert not driver.cache.flights.replaced()
    # And back: a longer tail replaces a shorter one in the same way.
    driver.serve([*A, 5, 6, 7])
    squeeze(driver)
    assert held(driver, prefix) == 6


def test_a_tail_comes_back_if_what_was_to_replace_it_fails() -> None:
    driver = make()
    prefix = [*A, 5, 6]
    driver.serve(prefix)
    driver.hold(PUBLIC, prefix)
    job = driver.arrive(PUBLIC, [*prefix, 7, 8, 9])
    driver.admit(job)
    driver.plan([(job, 9)])
    driver.fail()
    assert held(driver, prefix) == 6 and not driver.cache.flights.replaced()
    squeeze(driver)
    assert held(driver, prefix) == 6


def test_a_tail_is_not_given_up_while_what_replaces_it_is_written() -> None:
    driver = make()
    first, second = [*A, 5, 6], [*B, 5, 6]
    for prefix in (first, second):
        driver.serve(prefix)
        driver.hold(PUBLIC, prefix)
    job = driver.arrive(PUBLIC, [*first, 7, 8, 9])
    driver.admit(job)
    # Meanwhile another tail is replaced by one that is there already.
    other = driver.arrive(PUBLIC, [*second, 7, 8])
    driver.admit(other)
    driver.plan([(other, 1)])
    driver.collect()
    driver.plan([(job, 9)])
    driver.leave(other, keep_tail=True)
    driver.collect()
    assert held(driver, second) == 6
    squeeze(driver)
    assert held(driver, first) == 6


def test_what_a_step_is_still_writing_is_not_held() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, *B, 5])
    driver.admit(job)
    driver.plan([(job, 9)])
    assert driver.hold(PUBLIC, [*A, *B]) == 0
    driver.collect()
    assert driver.hold(PUBLIC, [*A, *B]) == 8


def test_a_public_prefix_is_held_for_whoever_sees_it() -> None:
    driver = make()
    driver.serve([*A, *B])
    driver.serve([*A, *B, *C], ONE)
    assert driver.hold(ONE, [*A, *B, *C]) == 12
    squeeze(driver)
    assert held(driver, [*A, *B]) == 8


# ---------------------------------------------------------------- quotas


def test_all_holds_together_keep_a_share_of_the_pool() -> None:
    driver = make(blocks=40, share=0.2)
    for token in range(1, 4):
        driver.serve(own(token, 4))
    assert driver.hold(PUBLIC, own(1, 4)) == 16 and driver.hold(PUBLIC, own(2, 4)) == 16
    # The oldest of the same namespace makes room.
    assert driver.hold(PUBLIC, own(3, 4)) == 16
    assert sorted(driver.holds) == ["h5", "h6"] and driver.cache.holds.stats.gave_way == 1


def test_one_that_is_too_long_is_held_in_part() -> None:
    driver = make(blocks=40, share=0.1)
    driver.serve([*own(1, 6), 9])
    assert driver.hold(PUBLIC, [*own(1, 6), 9]) == 16
    assert driver.cache.holds.stats.shortened == 1 and driver.cache.holds.num_blocks == 4
    squeeze(driver)
    assert held(driver, own(1, 6)) == 16


def test_shared_blocks_count_once() -> None:
    driver = make(blocks=40, share=0.2)
    for last in (7, 8, 9):
        driver.serve([*own(1, 6), last])
    assert [driver.hold(PUBLIC, [*own(1, 6), last]) for last in (7, 8)] == [25, 25]
    assert driver.cache.holds.num_blocks == 8
    # A deeper hold on a path that is held takes only what it adds, and ends nothing above it.
    driver.serve([*own(1, 6), 7, 7, 7, 7, 7])
    assert driver.hold(PUBLIC, own(1, 3)) == 12 and len(driver.holds) == 3


def test_each_namespace_has_a_fair_part() -> None:
    driver = make(blocks=60, share=0.2)
    for namespace in (ONE, TWO, THREE):
        for token in (1, 2, 3):
            driver.serve(own(token, 4), namespace)
    for token in (1, 2, 3):
        driver.hold(ONE, own(token, 4))
    assert driver.cache.tree.held_blocks == {b"1": 12}
    # Alone it may have all of it; with others it gives back what is beyond its part, the oldest first.
    assert driver.hold(TWO, own(1, 4)) == 16
    assert driver.cache.tree.held_blocks == {b"1": 8, b"2": 4} and "h10" not in driver.holds
    assert driver.hold(TWO, own(2, 4)) == 16
    # More than its part nobody gets at the cost of those who have no more than theirs; its own older ones make room.
    assert driver.cache.tree.held_blocks == {b"1": 4, b"2": 8}
    assert driver.hold(THREE, own(1, 4)) == 16
    assert driver.cache.tree.held_blocks == {b"1": 4, b"2": 4, b"3": 4}
    assert driver.hold(THREE, own(2, 4)) == 16
    assert driver.cache.tree.held_blocks == {b"1": 4, b"2": 4, b"3": 4}


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "MAX_HOLDS", 3)
    driver = make()
    driver.serve([*A, *B])
    for _ in range(5):
        assert driver.hold(PUBLIC, [*A, *B]) == 8
    assert sorted(driver.holds) == ["h4", "h5", "h6"]


def test_many_small_ones_push_out_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "MAX_HOLDS", 3)
    driver = make()
    for namespace in (ONE, TWO):
        driver.serve([*A, *B], namespace)
    driver.hold(ONE, [*A, *B])
    for _ in range(5):
        assert driver.hold(TWO, A) == 4
    assert len(driver.holds) == 3 and "h3" in driver.holds


@pytest.mark.parametrize("options", [{"share": 0.0}, {"prefix_cache": "off"}, {"prefix_cache": "force_miss"}])
def test_nothing_is_held_where_nothing_may_be(options: dict[str, Any]) -> None:
    driver = make(**options)
    driver.serve([*A, *B])
    assert driver.hold(PUBLIC, [*A, *B]) == 0 and len(driver.cache.holds) == 0


@pytest.mark.parametrize(("name", "value"), [("hold_share", -0.1), ("hold_share", 1.5), ("hold_max_s", -1.0)])
def test_options_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(**{name: value})
    assert caught.value.field == name


# ---------------------------------------------------------------- ends


def test_a_hold_ends_at_its_time() -> None:
    driver = make()
    driver.serve([*A, *B, 5])
    driver.hold(PUBLIC, A, seconds=5)
    driver.hold(PUBLIC, [*A, *B, 5], seconds=2)
    assert driver.cache.holds.next_expiry == 2
    driver.wait(1.5)
    assert len(driver.holds) == 2
    driver.wait(0.5)
    squeeze(driver)
    assert held(driver, [*A, *B]) == 4 and driver.cache.holds.stats.expired == 1
    driver.wait(10)
    assert not driver.holds and driver.cache.holds.next_expiry is None
    squeeze(driver)
    assert driver.cache.tree.num_nodes == 0


def test_a_release_is_for_those_that_are_named() -> None:
    driver = make()
    driver.serve([*A, *B])
    driver.hold(PUBLIC, A)
    driver.hold(PUBLIC, [*A, *B])
    assert driver.cache.holds.release(["h2", "h2", "h9"]) == 1
    driver.holds.pop("h2")
    squeeze(driver)
    assert held(driver, [*A, *B]) == 8
    driver.release("h3")
    assert driver.cache.holds.release(["h3"]) == 0 and driver.cache.holds.stats.released == 2


def test_a_flush_ends_those_of_its_namespace() -> None:
    driver = make()
    for namespace in (ONE, TWO):
        driver.serve([*A, *B], namespace)
        driver.hold(namespace, [*A, *B])
    assert driver.cache.flush(b"1") == 2
    assert held(driver, [*A, *B], ONE) == 0 and held(driver, [*A, *B], TWO) == 8
    driver._forget_holds()
    assert len(driver.holds) == 1
    driver.flush()


def test_a_lease_keeps_what_a_hold_lets_go() -> None:
    driver = make()
    driver.serve([*A, *B, 5])
    driver.hold(PUBLIC, [*A, *B])
    job = driver.arrive(PUBLIC, [*A, *B, 6])
    driver.admit(job)
    # Its end would free nothing, so it does not give way.
    assert driver.cache.yieldable_blocks == 0 and not driver.cache.holds.give_way()
    driver.release("h2")
    squeeze(driver)
    assert held(driver, [*A, *B]) == 8
    driver.leave(job, keep_tail=True)


def test_a_hold_does_not_keep_what_cannot_be_trusted() -> None:
    driver = make()
    prefix = [*A, 5, 6]
    driver.serve(prefix)
    driver.serve([*B, 5])
    driver.hold(PUBLIC, prefix)
    driver.hold(PUBLIC, B)
    job = driver.arrive(PUBLIC, [*prefix, 7, 8, 9], outputs=3)
    driver.admit(job)
    driver.plan([(job, 9)])
    driver.collect()
    driver.disown(job)
    assert held(driver, [*prefix, 7, 8]) == 0
    assert held(driver, B) == 4 and len(driver.cache.holds) == 1


def test_under_pressure_the_oldest_go_first_and_no_more_than_needed() -> None:
    driver = make(blocks=12, share=1.0)
    for token in (1, 2, 3):
        driver.serve(own(token, 4))
        driver.hold(PUBLIC, own(token, 4))
    assert driver.cache.available_blocks == 0 and driver.cache.yieldable_blocks == 12
    driver.press(3)
    assert sorted(driver.holds) == ["h4", "h6"] and driver.cache.holds.stats.gave_way == 1
    driver.press(9)
    assert driver.cache.available_blocks == 12 and not driver.holds


def test_beside_a_match_its_own_holds_stay() -> None:
    driver = make(blocks=12, share=1.0)
    cache = driver.cache
    for token in (1, 2, 3):
        driver.serve(own(token, 4))
        driver.hold(PUBLIC, own(token, 4))
    match = cache.match(PUBLIC, encode_tokens(own(1, 4)), 16)
    # What is on the way itself is no room for more; where it would not be enough nobody gives way.
    assert not cache.secure_beside(match, 9) and len(cache.holds) == 3
    assert cache.secure_beside(match, 5) and cache.available_blocks == 8
    driver._forget_holds()
    assert sorted(driver.holds) == ["h2"]
    driver.check()


# ---------------------------------------------------------------- books


def _lost_hold(cache: PrefixCache) -> None:
    next(iter(cache.tree.nodes())).holds -= 1


def _forgotten_hold(cache: PrefixCache) -> None:
    cache.holds._holds.clear()


def _held_blocks(cache: PrefixCache) -> None:
    cache.tree.held_blocks[b""] += 1


def _only_held(cache: PrefixCache) -> None:
    cache.tree.only_held_blocks -= 1


@pytest.mark.parametrize(
    ("plant", "fact"),
    [
        (_lost_hold, "tokens 0-8 has 0 holds, 1 are counted"),
        (_forgotten_hold, "tokens 0-8 has lock 1, 0 holders are counted"),
        (_held_blocks, "held_blocks is {b'': 3}, {b'': 2} by count"),
        (_only_held, "only_held_blocks is 1, 2 by count"),
    ],
)
def test_a_planted_corruption_is_found_and_repaired(plant: Callable[[PrefixCache], None], fact: str) -> None:
    driver = make()
    driver.serve([*A, *B])
    driver.hold(PUBLIC, [*A, *B])
    plant(driver.cache)
    with pytest.raises(CacheInconsistent) as found:
        driver.cache.check()
    assert any(fact in told for told in found.value.facts), found.value.facts
    assert driver.cache.check_and_repair() is False
    assert len(driver.cache.holds) == 0 and driver.cache.holds.num_blocks == 0
    assert driver.cache.holds.stats.taken == 1
    driver.holds.clear()
    driver.must.clear()
    assert driver.serve([*A, *B, 5]) == 0 and driver.hold(PUBLIC, [*A, *B, 5]) == 9


def test_an_explanation_tells_what_is_held() -> None:
    driver = make()
    driver.serve([*A, *B, 5, 6])
    prompt = [*A, *B, 5, 6, 7]
    assert driver.cache.explain(PUBLIC, encode_tokens(prompt)).held_tokens == 0
    driver.hold(PUBLIC, [*A, 2, 2])
    explained = driver.cache.explain(PUBLIC, encode_tokens(prompt))
    assert (explained.cached_tokens, explained.held_tokens) == (10, 8)
    driver.hold(PUBLIC, [*A, *B, 5, 6])
    assert driver.cache.explain(PUBLIC, encode_tokens(prompt)).held_tokens == 10
