"""The tool of the agent and of the RAG pipeline: articles on the Velden Isles, found by words (BM25)."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from examples.programs.dataset import rows

# Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, section 3.3.
SATURATION, LENGTH = 1.2, 0.75
TITLE_WEIGHT = 3


@dataclass(frozen=True, slots=True)
class Article:
    """One entry."""

    title: str
    text: str


@functools.cache
def articles() -> tuple[Article, ...]:
    """All entries, in the order of the file."""
    return tuple(Article(row["title"], row["text"]) for row in rows("passages"))


def search(query: str, count: int = 1, besides: Collection[Article] = ()) -> list[Article]:
    """The ``count`` articles, ``besides`` some, that fit best, best first; ties keep the order of the file."""
    index, frequency, mean = _index()
    wanted = set(_words(query))

    def score(number: int) -> float:
        words = index[number]
        norm = SATURATION * (1 - LENGTH + LENGTH * words.total() / mean)
        return sum(
            math.log(1 + (len(index) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            * words[word]
            * (SATURATION + 1)
            / (words[word] + norm)
            for word in wanted
        )

    others = [number for number, article in enumerate(articles()) if article not in besides]
    return [articles()[number] for number in sorted(others, key=lambda number: (-score(number), number))[:count]]


@functools.cache
def _index() -> tuple[list[Counter[str]], Counter[str], float]:
    """Words of each article, in how many articles each word is, and the mean length."""
    index = [Counter(_words(f"{article.title} " * TITLE_WEIGHT + article.text)) for article in articles()]
    frequency = Counter(word for words in index for word in words)
    return index, frequency, sum(words.total() for words in index) / len(index)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
