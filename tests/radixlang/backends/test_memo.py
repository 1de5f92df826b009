"""Values are found out once, kept within bounds, and shared by all who ask."""

from __future__ import annotations

import asyncio

import pytest

from radixlang.backends.memo import Memo

pytestmark = pytest.mark.anyio


class Finder:
    """Finds the length of a text, when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.fails = False

    async def find(self, key: str) -> int:
        self.asked.append(key)
        await self.go.wait()
        if self.fails:
            raise ValueError(key)
        return len(key)


def memo(capacity: int = 100) -> Memo[str, int]:
    return Memo(capacity, lambda key, value: value)


async def test_many_who_ask_at_once_are_one() -> None:
    kept, finder = memo(), Finder()
    assert await asyncio.gather(*(kept.get("abc", lambda: finder.find("abc")) for _ in range(10))) == [3] * 10
    assert await kept.get("abc", lambda: finder.find("abc")) == 3
    assert finder.asked == ["abc"]


async def test_the_longest_unused_goes_first() -> None:
    kept, finder = memo(6), Finder()
    for key in ("aa", "bb", "cc", "aa", "dd", "aa", "bb"):
        await kept.get(key, lambda key=key: finder.find(key))  # type: ignore[misc]
    assert finder.asked == ["aa", "bb", "cc", "dd", "bb"]


async def test_what_is_larger_than_all_room_is_not_kept() -> None:
    kept, finder = memo(2), Finder()
    for _ in range(2):
        assert await kept.get("abc", lambda: finder.find("abc")) == 3
    assert finder.asked == ["abc", "abc"]


async def test_errors_are_told_to_all_and_not_kept() -> None:
    kept, finder = memo(), Finder()
    finder.fails = True
    results = await asyncio.gather(*(kept.get("a", lambda: finder.find("a")) for _ in range(2)), return_exceptions=True)
    assert [str(result) for result in results] == ["a", "a"]
    finder.fails = False
    assert await kept.get("a", lambda: finder.find("a")) == 1


async def test_one_who_is_cancelled_takes_it_from_no_other() -> None:
    kept, finder = memo(), Finder()
    finder.go.clear()
    first, second = (asyncio.ensure_future(kept.get("abc", lambda: finder.find("abc"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    finder.go.set()
    assert await second == 3
    with pytest.raises(asyncio.CancelledError):
        await first
    assert finder.asked == ["abc"]


def test_values_outlive_the_event_loop() -> None:
    kept, asked = memo(), list[str]()

    async def find() -> int:
        asked.append("a")
        return 1

    for _ in range(2):
        assert asyncio.run(kept.get("a", find)) == 1
    assert asked == ["a"]
