"""The bits of a token's logits depend on the tokens before it and on nothing else."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.model.config import Architecture
from radixserve.runtime.model_runner import ModelRunner
from tests.tiny_decoder import ARCHITECTURES, TinyDecoder, all_logits, plan_row, tiny_decoder

DTYPES = (torch.float32, torch.bfloat16)
LENGTH = 301
BLOCKS = 700


@functools.cache
def model(architecture: Architecture, dtype: torch.dtype) -> TinyDecoder:
    return tiny_decoder(architecture, dtype)


def fresh_runner(architecture: Architecture, dtype: torch.dtype, block_size: int, threads: int = 1) -> ModelRunner:
    """A runner whose whole pool is NaN: what leaks from a slot that was not written shows."""
    runner = ModelRunner(model(architecture, dtype), num_blocks=BLOCKS, block_size=block_size, threads=threads)
    runner.kv.poison(np.arange(BLOCKS))
    return runner


@functools.cache
def prompt(seed: int = 0, length: int = LENGTH) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 131, length).tolist())


@functools.cache
def reference(architecture: Architecture, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Logits of the whole prompt in one step, alone, block size 16, on one thread."""
    runner = fresh_runner(architecture, dtype, 16)
    return all_logits(runner, [plan_row(prompt(seed), range(-(-LENGTH // 16)))])[0]


def in_pieces(runner: ModelRunner, tokens: Sequence[int], table: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
    """Logits of ``tokens`` computed in steps that end at ``ends``; the table handed over never reaches further than needed."""
    size, start, pieces = runner.kv.block_size, 0, []
    for end in [*ends, len(tokens)]:
        if end > start:
            row = plan_row(tokens[start:end], table[: -(-end // size)], start=start)
            pieces.append(all_logits(runner, [row])[0])
            start = end
    return torch.cat(pieces)


def scattered(blocks: int, seed: int) -> list[int]:
    return [int(block) for block in np.random.default_rng(seed).permutation(BLOCKS)[:blocks]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_token_at_a_time_has_the_bits_of_the_whole_prompt(architecture: Architecture, dtype: torch.dtype) -> None:
    runner = fresh_runner(architecture, dtype, 16)
    logits = in_pieces(runner, prompt(), range(-(-LENGTH // 16)), range(1, LENGTH))
    assert torch.equal(logits, reference(architecture, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_block_size_and_place_of_blocks_do_not_matter(block_size: int, dtype: torch.dtype) -> None:
    runner = fresh_runner("llama", dtype, block_size)
    table = scattered(-(-LENGTH // block_size), seed=block_size)
    logits = in_pieces(runner, prompt(), table, [7, 120, 255, 257])
    assert torch.equal(logits, reference("llama", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [3, 100, 1024])
def test_any_block_size_keeps_its_own_bits(block_size: int, dtype: torch.dtype) -> None:
    whole_runner, runner = (fresh_runner("mistral", dtype, block_size) for _ in range(2))
    table = scattered(-(-LENGTH // block_size), seed=5)
    whole = in_pieces(whole_runner, prompt(), table, [])
    assert torch.equal(in_pieces(runner, prompt(), table[::-1], [1, 2, 99, 130, 260, 300]), whole)
    assert (whole - reference("mistral", dtype)).abs().max() < (1e-4 if dtype == torch.float32 else 0.3)


@pytest.mark.parametrize("threads", [1, 2])
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([4, 16]),
    seeds=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=5),
    schedule=st.integers(0, 2**32 - 1),
)
@settings(max_examples=12, deadline=None)
def test_batch_mates_and_chunking_do_not_matter(
    threads: int, architecture: Architecture, dtype: torch.dtype, size: int, seeds: list[int], schedule: int
) -> None:
    """Several prompts, each cut at random, advance in steps in which any of them may take part."""
    rng = np.random.default_rng(schedule)
    runner = fresh_runner(architecture, dtype, size, threads)
    per_row = -(-LENGTH // size)
    blocks = scattered(per_row * len(seeds), seed=1)
    tables = [blocks[index * per_row : (index + 1) * per_row] for index in range(len(seeds))]
    done = [0] * len(seeds)
    computed: list[list[torch.Tensor]] = [[] for _ in seeds]
    while any(start < LENGTH for start in done):
        rows, members = [], []
        for index, start in enumerate(done):
            extent = min(int(rng.choice([0, 1, 2, 3, 17, 64, 100, LENGTH])), LENGTH - start)
            if extent:
                end = start + extent
                rows.append(plan_row(prompt(seeds[index])[start:end], tables[index][: -(-end // size)], start=start))
                members.append(index)
                done[index] = end
        if rows:
            for index, logits in zip(members, all_logits(runner, rows), strict=True):
                computed[index].append(logits)
    for index, seed in enumerate(seeds):
        assert torch.equal(torch.cat(computed[index]), reference(architecture, dtype, seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prefix_computed_by_a_row_of_the_same_step_is_as_good(dtype: torch.dtype) -> None:
    runner = fresh_runner("llama", dtype, 16)
    leader = plan_row(prompt()[:288], range(18), rid="leader")
    follower = plan_row(prompt()[288:], [*range(18), 40], start=288, rid="follower")
    led, followed = all_logits(runner, [leader, follower])
    assert torch.equal(torch.cat((led, followed)), reference("llama", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copied_block_is_as_good(dtype: torch.dtype) -> None:
    runner = fresh_runner("llama", dtype, 16)
    in_pieces(runner, prompt()[:200], list(range(13)), [])
    runner.kv.copy_blocks(np.array([[12, 500]], np.int32))
    tail = plan_row(prompt()[197:], [*range(12), 500, *range(501, 507)], start=197)
    assert torch.equal(all_logits(runner, [tail])[0], reference("llama", dtype)[197:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_key_is_seen(dtype: torch.dtype) -> None:
    """The tests above could not fail if logits did not depend on the cache."""
    runner = fresh_runner("llama", dtype, 16)
    in_pieces(runner, prompt()[:200], list(range(13)), [])
    with torch.inference_mode():
        runner.kv.keys(0)[3, 5] += 0.5
    tail = plan_row(prompt()[200:], range(19), start=200)
    assert not torch.equal(all_logits(runner, [tail])[0], reference("llama", dtype)[200:])
