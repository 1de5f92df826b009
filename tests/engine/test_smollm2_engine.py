"""The whole engine on the embedded model: what a user sees of the cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from radixserve import Engine, SamplingParams
from radixserve.model.loader import LoadedModel

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def engine(smollm2: LoadedModel) -> Iterator[Engine]:
    with Engine.from_model(smollm2, num_blocks=400, max_batch_tokens=4096) as engine:
        yield engine
        engine.check()


def test_it_knows_a_capital(engine: Engine) -> None:
    # Of all capitals asked for in this way the one whose answer is the least a near tie, under every instruction set.
    output = engine.chat([{"role": "user", "content": "What is the capital of Japan?"}], GREEDY)
    assert "Tokyo" in output.text
    assert output.finish_reason == "stop" and output.error is None


def test_four_chat_turns_hit_everything_before(engine: Engine) -> None:
    messages: list[dict[str, Any]] = []
    before = 0
    for question in ("Name a colour.", "And another.", "A number?", "Thanks, bye."):
        messages.append({"role": "user", "content": question})
        output = engine.chat(messages, GREEDY)
        assert output.cached_tokens >= before
        # All but the last drawn token have their KV in the tree; the template puts the end of the turn after it.
        before = output.prompt_tokens + output.completion_tokens - 1
        messages.append({"role": "assistant", "content": output.text})


def test_sixteen_cold_requests_compute_their_prefix_once(engine: Engine) -> None:
    rng = random.Random(7)
    vocab = engine.model_config.vocab_size
    prefix = [rng.randrange(vocab) for _ in range(1000)]
    prompts = [[*prefix, index, *(rng.randrange(vocab) for _ in range(63))] for index in range(16)]
    before = engine.cache_stats()["scheduler"]
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
    after = engine.cache_stats()["scheduler"]
    assert after["steps"] - before["steps"] == 1
    assert after["computed_tokens"] - before["computed_tokens"] == 992 + 16 * 72
    assert sorted(output.cached_tokens for output in outputs) == [0] + [992] * 15


def test_a_prefix_is_reused_to_the_token(engine: Engine) -> None:
    rng = random.Random(8)
    vocab = engine.model_config.vocab_size
    prefix = [rng.randrange(vocab) for _ in range(2010)]
    for index, cached in ((0, 0), (1, 2010)):
        prompt = [*prefix, index, *(rng.randrange(vocab) for _ in range(199))]
        assert engine.generate(prompt, SamplingParams(temperature=0, max_tokens=2)).cached_tokens == cached
