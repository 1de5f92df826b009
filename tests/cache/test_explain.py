"""Why a prompt missed: every reason, with the position to the token."""

from __future__ import annotations

import pytest

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig
from radixserve.messages import Explanation
from tests.cache.driver import PUBLIC, Driver

A, B, C = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]
TENANT, OTHER = Namespace("m", "", b"x"), Namespace("m", "", b"y")


def make(blocks: int = 40) -> Driver:
    return Driver(CacheConfig(block_size=4, num_blocks=blocks), alphabet=10)


def why(
    driver: Driver,
    tokens: list[int],
    namespace: Namespace = PUBLIC,
    *,
    limit: int | None = None,
    see_all: bool = False,
) -> tuple[str, int]:
    """The reason and the position, which agrees with what a request would hit."""
    books = driver._books()
    told: Explanation = driver.cache.explain(namespace, encode_tokens(tokens), limit=limit, see_all=see_all)
    assert driver._books() == books, "explaining changes nothing"
    allowed = max(0, len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1))
    assert told.position == told.cached_tokens == driver.probe(namespace, tokens, allowed)
    assert told.prompt_tokens == len(tokens)
    assert told.detail
    return told.reason, told.position


def test_never_seen() -> None:
    driver = make()
    assert why(driver, [1, 2, 3]) == ("never_seen", 0)
    assert why(driver, []) == ("never_seen", 0)
    driver.serve([*A, 2, 2])
    assert why(driver, [5, 5, 5]) == ("never_seen", 0)
    assert why(driver, [*A, 2, 2, 2]) == ("never_seen", 6)
    assert why(driver, [*A, 2, 2, 7, 7, 7]) == ("never_seen", 6), "what is held ends there, nothing parts from it"


@pytest.mark.parametrize("position", range(1, 12))
def test_diverged_at_every_position(position: int) -> None:
    driver = make()
    held = [*A, *B, *C]
    driver.serve(held)
    assert why(driver, [*held[:position], 9, 9, 9]) == ("diverged", position)


def test_diverged_where_branches_part_between_blocks() -> None:
    driver = make()
    driver.serve(A + B)
    driver.serve(A + C)
    assert why(driver, [*A, 5, 5, 5]) == ("diverged", 4)
    assert why(driver, [*A, *B, 5, 5]) == ("never_seen", 8)


@pytest.mark.parametrize("length", range(1, 13))
def test_capped_at_the_last_token(length: int) -> None:
    driver = make()
    driver.serve(A + B + C)
    assert why(driver, (A + B + C)[:length]) == ("capped", length - 1)
    assert "last token" in driver.cache.explain(PUBLIC, encode_tokens((A + B + C)[:length])).detail


@pytest.mark.parametrize("limit", range(12))
def test_capped_for_prompt_logprobs(limit: int) -> None:
    driver = make()
    driver.serve(A + B + C)
    prompt = [*A, *B, *C, 9, 9]
    assert why(driver, prompt, limit=limit) == ("capped", limit)
    assert "logprobs" in driver.cache.explain(PUBLIC, encode_tokens(prompt), limit=limit).detail
    assert why(driver, prompt, limit=12) == ("never_seen", 12)


def test_evicted_tells_how_far_it_went_and_under_what_pressure() -> None:
    driver = make(blocks=4)
    driver.serve([*A, *B, *C, 5, 5])
    driver.serve([8] * 8)
    assert why(driver, [*A, *B, *C, 5, 5]) == ("evicted", 8)
    told = driver.cache.explain(PUBLIC, encode_tokens([*A, *B, *C, 5, 5]))
    assert told.detail == "evicted at step 1, when 2 more blocks were needed and 0 of 4 were in use"
    assert why(driver, [*A, *B, 3, 3, 9, 9]) == ("evicted", 8), "two tokens beyond the cached ones were held once"
    assert why(driver, [*A, *B, 9]) == ("never_seen", 8)


def test_the_pressure_counts_blocks_that_were_in_use_then() -> None:
    driver = make(blocks=8)
    driver.serve([*A, *B])
    job = driver.arrive(PUBLIC, [7] * 17)
    driver.admit(job)
    driver.plan([(job, 17)])
    driver.evict(2)
    told = driver.cache.explain(PUBLIC, encode_tokens([*A, *B, 9]))
    assert (told.reason, told.position) == ("evicted", 0)
    assert told.detail.endswith("when 2 more blocks were needed and 5 of 8 were in use")


def test_what_came_back_is_no_longer_called_evicted() -> None:
    driver = make()
    driver.serve(A + B)
    driver.evict(2)
    assert why(driver, [*A, *B, 9]) == ("evicted", 0)
    driver.serve(A + B)
    assert why(driver, [*A, *B, 9]) == ("never_seen", 8)


def test_pending_failed() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, *B, 5])
    driver.admit(job)
    driver.plan([(job, 9)])
    driver.fail()
    assert why(driver, [*A, *B, 5]) == ("pending_failed", 0)
    assert driver.cache.explain(PUBLIC, encode_tokens([*A, *B, 5])).detail.startswith("the forward pass of step 1")
    driver.flush()
    assert why(driver, [*A, *B, 5]) == ("never_seen", 0), "a flush forgets the ghosts"


def test_another_namespace_is_told_of_to_the_operator_only() -> None:
    driver = make()
    driver.serve([*A, *B, 5], TENANT)
    prompt = [*A, *B, 5, 6]
    assert why(driver, prompt, OTHER) == ("never_seen", 0)
    assert why(driver, prompt, OTHER, see_all=True) == ("namespace", 0)
    assert why(driver, prompt, PUBLIC, see_all=True) == ("namespace", 0)
    assert why(driver, prompt, TENANT, see_all=True) == ("never_seen", 9)
    assert why(driver, prompt, Namespace("m", "adapter", b"y"), see_all=True) == ("namespace", 0)
    assert why(driver, [9, 9], OTHER, see_all=True) == ("never_seen", 0)


def test_the_operator_is_told_of_what_hangs_below_a_public_prefix() -> None:
    driver = make()
    driver.serve([*A, *B])
    driver.serve([*A, *B, *C, 5], TENANT)
    assert why(driver, [*A, *B, *C, 5, 6], OTHER) == ("never_seen", 8)
    assert why(driver, [*A, *B, *C, 5, 6], OTHER, see_all=True) == ("namespace", 8)


def test_no_ghost_of_another_tenant_is_told() -> None:
    driver = make()
    driver.serve([*A, *B], TENANT)
    driver.evict(2)
    assert why(driver, [*A, *B, 9], OTHER) == ("never_seen", 0)
    assert why(driver, [*A, *B, 9], TENANT) == ("evicted", 0)


def test_a_tenant_is_not_told_that_another_diverges() -> None:
    driver = make()
    driver.serve(A)
    driver.serve([*A, *B], TENANT)
    assert why(driver, [*A, 5, 5], OTHER) == ("never_seen", 4)
    assert why(driver, [*A, 5, 5], TENANT) == ("diverged", 4)
