"""Embeddings: what they are, and that their bits depend on the tokens alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from radixserve import Engine, SamplingParams
from radixserve.engine.local_client import LocalClient
from radixserve.errors import InvalidRequest
from radixserve.messages import GenerationOutput, Pooling
from radixserve.model.loader import LoadedModel
from tests.engine.clients import gather, job
from tests.model.transformers_model import transformers_model
from tests.native_kernels import needs_native
from tests.tiny_model import tiny_model

PROMPTS = [
    [(start + 7 * index) % 250 for index in range(length)] for start, length in enumerate((1, 2, 16, 17, 33, 150, 150))
]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_they_are_the_final_hidden_states(architecture: str) -> None:
    model = tiny_model("llama" if architecture == "llama" else "qwen3")
    reference = transformers_model(model.config, dict(model.weights))
    with Engine.from_model(model, num_blocks=64, threads=1, kernels="torch") as engine:
        for prompt in PROMPTS[2:6]:
            with torch.inference_mode():
                states = (
                    reference(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].double().numpy()
                )
            for pooling, vector in (("mean", states.mean(0)), ("last", states[-1])):
                [found] = engine.embed([prompt], pooling="mean" if pooling == "mean" else "last")
                np.testing.assert_allclose(found, vector / np.linalg.norm(vector), atol=2e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_bits_do_not_depend_on_chunks_cache_or_batch(pooling: Pooling) -> None:
    model = tiny_model(dtype=torch.bfloat16)
    seen: list[list[list[float]]] = []
    for options in (
        {"max_batch_tokens": 2048},
        {"max_batch_tokens": 16, "max_running": 4},
        {"max_batch_tokens": 37, "max_running": 2, "block_size": 4, "num_blocks": 128},
        {"prefix_cache": "off"},
        {"chunked_prefill": False, "max_batch_tokens": 64},
    ):
        with Engine.from_model(
            model, **{"num_blocks": 64, "threads": 1, "kernels": "torch", "check_every_step": True, **options}
        ) as engine:
            seen.append([engine.embed([prompt], pooling=pooling)[0] for prompt in PROMPTS])
            seen.append(engine.embed(PROMPTS, pooling=pooling))
            engine.check()
    assert all(vectors == seen[0] for vectors in seen)
    assert seen[0][-1] != seen[0][-2]


@needs_native
@pytest.mark.parametrize("pooling", POOLINGS)
def test_bits_of_the_native_path(smollm2: LoadedModel, pooling: Pooling) -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a rug.", "word " * 150]
    seen = []
    for budget in (2048, 64):
        with Engine.from_model(smollm2, num_blocks=64, max_batch_tokens=budget) as engine:
            assert engine.runner_info["kernels"] == "native"
            seen += [[engine.embed([text], pooling=pooling)[0] for text in texts], engine.embed(texts, pooling=pooling)]
    assert all(vectors == seen[0] for vectors in seen)
    near, far = np.dot(seen[0][0], seen[0][1]), np.dot(seen[0][0], seen[0][2])
    assert far < near < 1


def test_what_each_pooling_takes_from_the_cache() -> None:
    with Engine.from_model(tiny_model(), num_blocks=64, threads=1, kernels="torch") as engine:
        prompt = PROMPTS[5]
        engine.embed([prompt])
        computed = engine.cache_stats()["scheduler"]["computed_tokens"]
        engine.embed([prompt], pooling="last")
        after_last = engine.cache_stats()["scheduler"]["computed_tokens"]
        assert after_last == computed + 1
        engine.embed([prompt], pooling="mean")
        assert engine.cache_stats()["scheduler"]["computed_tokens"] == after_last + len(prompt)


def test_a_miss_is_explained_by_the_cap() -> None:
    async def ask(client: LocalClient) -> GenerationOutput:
        asked = job("e", bytes(PROMPTS[5]), SamplingParams(max_tokens=0), pooling="mean", explain=True)
        [*_, last] = await gather(client, asked)
        assert last.output is not None
        return last.output

    async def run(client: LocalClient) -> list[GenerationOutput]:
        await client.start()
        return [await ask(client), await ask(client)]

    with Engine.from_model(tiny_model(), num_blocks=64, threads=1, kernels="torch") as engine:
        outputs = asyncio.run(run(engine.client()))
    assert [output.cached_tokens for output in outputs] == [0, 0]
    reasons = [(output.explanation.reason, output.explanation.detail) for output in outputs if output.explanation]
    assert reasons[0][0] == "never_seen"
    assert reasons[1] == ("capped", "logprobs or hidden states of prompt tokens are wanted from here on")


def test_what_is_refused() -> None:
    with Engine.from_model(tiny_model(), num_blocks=64, threads=1, kernels="torch") as engine:
        for texts in ("a text", [], [1, 2], None):
            with pytest.raises(InvalidRequest):
                engine.embed(texts)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="pooling: must be one of mean, last, not 'max'"):
            engine.embed(["a"], pooling="max")  # type: ignore[arg-type]
