from __future__ import annotations

import gc
import sys
import threading

import pytest

from radixserve.grammar.stacks import DeepStackThreads


def test_results_and_errors_are_the_futures() -> None:
    threads = DeepStackThreads(2, "t")
    futures = [threads.submit(lambda number=number: number * number) for number in range(20)]  # type: ignore[misc]
    assert [future.result() for future in futures] == [number * number for number in range(20)]

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        threads.submit(fail).result()
    assert threads.submit(lambda: 1).result() == 1


def test_no_more_threads_than_asked_for_and_none_without_work() -> None:
    threads = DeepStackThreads(2, "counted")

    def alive() -> int:
        return sum(thread.name.startswith("counted") for thread in threading.enumerate())

    assert alive() == 0
    gate = threading.Event()
    futures = [threads.submit(gate.wait) for _ in range(5)]
    assert alive() == 2
    gate.set()
    assert all(future.result() for future in futures)
    assert alive() == 2


def test_threads_end_with_their_owner() -> None:
    threads = DeepStackThreads(1, "mortal")
    threads.submit(lambda: None).result()
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("mortal")]
    del threads
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_the_stack_is_deep_and_others_keep_theirs() -> None:
    before = threading.stack_size()
    limit = sys.getrecursionlimit()

    def down(levels: int) -> int:
        # ``max`` calls back through C, which takes up the thread's own stack.
        return max((levels,), key=lambda value: down(value - 1)) if levels else 0

    def deep() -> int:
        sys.setrecursionlimit(200_000)
        try:
            return down(20_000)
        finally:
            sys.setrecursionlimit(limit)

    assert DeepStackThreads(1, "deep").submit(deep).result() == 20_000
    assert threading.stack_size() == before
