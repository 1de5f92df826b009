"""The embedded model in two and three ranks: how far its logits move, and that its bits depend on nothing."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from radixserve.model.loader import LoadedModel
from radixserve.runtime.model_runner import ModelRunner
from tests.engine.schedules import Bench, random_schedule
from tests.runtime.tensor_parallel.ranks import ranked_bench
from tests.tiny_decoder import all_logits, plan_row

pytestmark = pytest.mark.long
logger = logging.getLogger(__name__)
NUM_BLOCKS = 120
SCHEDULES = 8
TEXT = """A radix tree stores strings so that what they have in common at their beginning is stored once. Programs that call a language
model many times send the same beginnings again and again: a system prompt, examples, the turns of a conversation so far. What was
computed for one of them serves all the others, as long as it is kept, and a server that keeps it computes each beginning once."""


@pytest.fixture(scope="module", params=[2, 3])
def bench(smollm2: LoadedModel, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = ranked_bench(smollm2, request.param, block_size=16, num_blocks=NUM_BLOCKS, tokenizer=smollm2.tokenizer)
    yield bench
    bench.runner.close()


def logits_of(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    [logits] = all_logits(runner, [plan_row(tokens, np.arange(-(-len(tokens) // 16)))])
    return logits.double()


def test_logits_in_bfloat16(bench: Bench, smollm2: LoadedModel) -> None:
    """The parts are rounded by themselves before they are added, so logits move about as much as bfloat16 moves them anyway."""
    tokens = smollm2.tokenizer.encode(TEXT)
    exact = dataclasses.replace(smollm2, weights={name: weight.float() for name, weight in smollm2.weights.items()})
    reference = logits_of(ModelRunner(exact, num_blocks=20, block_size=16, threads=1), tokens)
    alone = logits_of(ModelRunner(smollm2, num_blocks=20, block_size=16, threads=1), tokens)
    assert isinstance(bench.runner, ModelRunner)
    ranked = logits_of(bench.runner, tokens)

    def divergence(found: torch.Tensor) -> float:
        log_p, log_q = reference.log_softmax(-1), found.log_softmax(-1)
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    difference = (ranked - alone).abs()
    logger.info(
        "%s KV heads, %d tokens: logits differ from one rank's by at most %.3f, %.4f on average; KL to float32 %.6f, one rank's %.6f; "
        "the same best token at %.3f of places",
        bench.runner.describe()["kv_heads_of_ranks"],
        len(tokens),
        difference.max(),
        difference.mean(),
        divergence(ranked),
        divergence(alone),
        (ranked.argmax(-1) == alone.argmax(-1)).double().mean(),
    )
    assert divergence(ranked) < 2 * divergence(alone)
    assert difference.max() < 1.0


def test_cold_equals_warm(bench: Bench) -> None:
    for seed in range(SCHEDULES):
        schedule = random_schedule(seed, bench, max_prompt=280, max_output=5, requests=4)
        assert bench.differences(schedule) == [], f"seed {seed}"
