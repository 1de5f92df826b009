from __future__ import annotations

import pytest

from radixserve.bench import processes
from radixserve.bench.machine import Limits
from radixserve.bench.prose import Prose
from tests.bench.word_tokenizer import WordTokenizer

# Round numbers, so that floors can be computed by hand.
LIMITS = Limits(threads=2, dram=1e9, cache=4e9, bf16=1e10, int8=2e10, fp32=5e9)


@pytest.fixture(scope="session")
def limits() -> Limits:
    return LIMITS


@pytest.fixture(scope="session")
def prose() -> Prose:
    return Prose(WordTokenizer())


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody needs a quiet machine here."""
    monkeypatch.setattr(processes, "_REST_S", 0.01)
