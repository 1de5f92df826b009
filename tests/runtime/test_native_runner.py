"""The native path against the torch path, and the promises it makes by itself, on every instruction set of this CPU."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.errors import ConfigError
from radixserve.model.config import Architecture
from radixserve.model.rope import TABLE_BLOCK
from radixserve.native.library import NativeLibrary
from radixserve.runtime import native_promise, plan_runner
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_decoder import NativeDecoder
from radixserve.runtime.native_runner import NativeModelRunner, unsupported
from radixserve.scheduler.plan import RowResult, StepPlan
from tests.native.steps import ALL_ISAS
from tests.tiny_decoder import ARCHITECTURES, TinyDecoder, all_logits, plan_row, tiny_config, tiny_decoder

DTYPES = (torch.float32, torch.bfloat16)
KV_DTYPES = pytest.mark.parametrize("kv_dtype", [None, torch.int8])
BLOCKS = 120
LENGTH = 301
CPU = torch.device("cpu")
# What no architecture has by itself.
VARIANTS: dict[str, dict[str, Any]] = {
    "all biases": {"bias_o": True, "bias_mlp": True},
    "window in one layer": {"sliding_window": 21, "sliding_layers": (1,)},
    "wide heads": {"head_dim": 80, "num_heads": 4, "num_kv_heads": 4},
}


@functools.cache
def model(
    architecture: Architecture = "llama", dtype: torch.dtype = torch.float32, variant: str | None = None
) -> TinyDecoder:
    changes = VARIANTS[variant] if variant else {}
    return tiny_decoder(architecture, dtype, **{"intermediate_size": 80, **changes})


@pytest.fixture(params=ALL_ISAS)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The process's library, switched to one instruction set for the test."""
    loaded = NativeLibrary.load()
    loaded.set_isa(request.param)
    return loaded


def fresh_runner(
    subject: TinyDecoder,
    library: NativeLibrary | None = None,
    *,
    block_size: int = 16,
    threads: int = 1,
    room: int = 512,
    kv_dtype: torch.dtype | None = None,
) -> NativeModelRunner:
    """A runner whose whole pool is NaN: what leaks from a slot that was not written shows."""
    runner = NativeModelRunner(
        subject,
        library or NativeLibrary.load(),
        num_blocks=BLOCKS,
        block_size=block_size,
        max_batch_tokens=room,
        threads=threads,
        kv_dtype=kv_dtype,
    )
    runner.kv.poison(np.arange(BLOCKS))
    return runner


@functools.cache
def prompt(seed: int = 0, length: int = LENGTH) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 131, length).tolist())


def whole(runner: NativeModelRunner | ModelRunner, seed: int = 0) -> torch.Tensor:
    """Logits of a prompt in one step, alone."""
    return all_logits(runner, [plan_row(prompt(seed), range(-(-LENGTH // runner.kv.block_size)))])[0]


def in_pieces(
    runner: NativeModelRunner, tokens: Sequence[int], table: Sequence[int], ends: Sequence[int]
) -> torch.Tensor:
    """Logits of ``tokens`` computed in steps that end at ``ends``."""
    size, start, pieces = runner.kv.block_size, 0, []
    for end in [*ends, len(tokens)]:
        row = plan_row(tokens[start:end], table[: -(-end // size)], start=start)
        pieces.append(all_logits(runner, [row])[0])
        start = end
    return torch.cat(pieces)


# --- The same model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*((name, None) for name in ARCHITECTURES), *(("llama", name) for name in VARIANTS)],
)
def test_float32_logits_are_those_of_the_torch_path(
    library: NativeLibrary, architecture: Architecture, variant: str | None
) -> None:
    subject = model(architecture, torch.float32, variant)
    theirs = whole(ModelRunner(subject, num_blocks=BLOCKS, block_size=16, threads=1))
    assert (whole(fresh_runner(subject, library)) - theirs).abs().max() < 2e-4


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*((name, None) for name in ARCHITECTURES), *(("llama", name) for name in VARIANTS)],
)
def test_int8_kv_is_that_of_the_torch_path(
    library: NativeLibrary, architecture: Architecture, variant: str | None
) -> None:
    """Both round the same way, so the paths differ far less than either does from a pool of float32.

    The last bits of K may tip an integer, which is a step of 1/127 in one number of one token.
    """
    subject = model(architecture, torch.float32, variant)
    theirs = whole(ModelRunner(subject, num_blocks=BLOCKS, block_size=16, threads=1, kv_dtype=torch.int8))
    ours = whole(fresh_runner(subject, library, kv_dtype=torch.int8))
    rounding = (theirs - whole(fresh_runner(subject, library))).abs().amax(-1)
    apart = (ours - theirs).abs().amax(-1)
    assert apart.median() < 0.15 * rounding.median() and apart.max() < rounding.median()
    assert rounding.median() > 1e-3, "rounding is seen at all"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_is_as_close_to_float32_as_the_torch_path(library: NativeLibrary, architecture: Architecture) -> None:
    subject = model(architecture, torch.bfloat16)
    exact = dataclasses.replace(subject, weights={name: weight.float() for name, weight in subject.weights.items()})
    truth = whole(ModelRunner(exact, num_blocks=BLOCKS, block_size=16, threads=1))
    torch_error = (whole(ModelRunner(subject, num_blocks=BLOCKS, block_size=16, threads=1)) - truth).square().mean()
    assert (whole(fresh_runner(subject, library)) - truth).square().mean() < 1.5 * torch_error


# --- Bits -------------------------------------------------------------------------------------------------------------


@KV_DTYPES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunked_has_the_bits_of_the_whole_prompt(
    library: NativeLibrary, architecture: Architecture, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    runner = fresh_runner(model(architecture, dtype), library, threads=2, kv_dtype=kv_dtype)
    expected = whole(fresh_runner(model(architecture, dtype), library, kv_dtype=kv_dtype))
    table = [int(block) for block in np.random.default_rng(1).permutation(BLOCKS)[:19]]
    assert torch.equal(in_pieces(runner, prompt(), table, [1, 2, 50, 51, 120, 255, 256, 257, 300]), expected)


@KV_DTYPES
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_size_and_room_do_not_matter(
    library: NativeLibrary, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    expected = whole(fresh_runner(model("mistral", dtype), library, kv_dtype=kv_dtype))
    wide = fresh_runner(model("mistral", dtype), library, block_size=48, room=1, kv_dtype=kv_dtype)
    assert torch.equal(whole(wide), expected)
    assert torch.equal(in_pieces(wide, prompt(), [50, 3, 99, 4, 7, 8, 0], [5, 47, 48, 100, 290]), expected)


@given(
    architecture=st.sampled_from(ARCHITECTURES),
    dtype=st.sampled_from(DTYPES),
    kv_dtype=st.sampled_from([None, torch.int8]),
    threads=st.sampled_from([1, 2, 3]),
    seeds=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=5),
    schedule=st.integers(0, 2**32 - 1),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_mates_do_not_matter(
    library: NativeLibrary,
    architecture: Architecture,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    threads: int,
    seeds: list[int],
    schedule: int,
) -> None:
    """Several prompts, each cut at random, advance in steps in which any of them may take part."""
    rng = np.random.default_rng(schedule)
    subject = model(architecture, dtype)
    expected = {seed: whole(fresh_runner(subject, library, kv_dtype=kv_dtype), seed) for seed in set(seeds)}
    runner = fresh_runner(subject, library, threads=threads, kv_dtype=kv_dtype)
    blocks = rng.permutation(BLOCKS)
    tables = [blocks[index * 19 : (index + 1) * 19] for index in range(len(seeds))]
    done = [0] * len(seeds)
    computed: list[list[torch.Tensor]] = [[] for _ in seeds]
    while any(start < LENGTH for start in done):
        rows, members = [], []
        for index, start in enumerate(done):
            end = min(start + int(rng.choice([0, 1, 2, 3, 17, 64, 100, LENGTH])), LENGTH)
            if end > start:
                rows.append(plan_row(prompt(seeds[index])[start:end], tables[index][: -(-end // 16)], start=start))
                members.append(index)
                done[index] = end
        if rows:
            for index, logits in zip(members, all_logits(runner, rows), strict=True):
                computed[index].append(logits)
    for index, seed in enumerate(seeds):
        assert torch.equal(torch.cat(computed[index]), expected[seed])


@KV_DTYPES
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prefix_of_the_same_step_and_a_copied_block_are_as_good(
    library: NativeLibrary, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    expected = whole(fresh_runner(model("qwen3", dtype), library, kv_dtype=kv_dtype))
    runner = fresh_runner(model("qwen3", dtype), library, kv_dtype=kv_dtype)
    leader = plan_row(prompt()[:288], range(18), rid="leader")
    follower = plan_row(prompt()[288:], [*range(18), 40], start=288, rid="follower")
    led, followed = all_logits(runner, [leader, follower])
    assert torch.equal(torch.cat((led, followed)), expected)
    runner.kv.copy_blocks(np.array([[40, 41], [17, 42]], np.int32))
    tail = plan_row(prompt()[297:], [*range(17), 42, 41], start=297)
    assert torch.equal(all_logits(runner, [tail])[0], expected[297:])


def test_rotary_tables_grow(library: NativeLibrary) -> None:
    """Positions beyond the first table, in a step of few tokens and in one of many."""
    count = TABLE_BLOCK + 100
    tokens = prompt(3, count)
    subject = model("llama")
    table = range(-(-count // 16))
    expected = all_logits(ModelRunner(subject, num_blocks=BLOCKS, block_size=16, threads=1), [plan_row(tokens, table)])[
        0
    ]
    logits = in_pieces(fresh_runner(subject, library, room=600), tokens, table, [600, TABLE_BLOCK - 1, TABLE_BLOCK + 2])
    assert (logits - expected).abs().max() < 2e-4
    assert torch.equal(logits, all_logits(fresh_runner(subject, library), [plan_row(tokens, table)])[0])


# --- Plans in, results out --------------------------------------------------------------------------------------------


def test_results_equal_those_of_the_torch_path() -> None:
    """Samples, chunks that draw nothing, prompt logprobs: the base class is shared, so a few rows are enough."""
    rows = (
        plan_row(prompt()[:20], [0, 1], rid="a", num_samples=3),
        plan_row(prompt()[:30], [2, 3], rid="b", num_samples=0),
        plan_row(prompt()[5:25], [4, 5], rid="c", score=prompt()[6:26]),
    )
    plan = StepPlan(7, rows)
    ours = fresh_runner(model()).execute(plan)
    theirs = ModelRunner(model(), num_blocks=BLOCKS, block_size=16, threads=1).execute(plan)
    assert ours.step == 7
    assert ours.rows[1] == RowResult()
    for one, other in zip(ours.rows, theirs.rows, strict=True):
        assert one.token_ids == other.token_ids
        for mine, their in zip(one.logprobs + one.prompt_logprobs, other.logprobs + other.prompt_logprobs, strict=True):
            assert mine.token_id == their.token_id
            assert mine.logprob == pytest.approx(their.logprob, abs=1e-4)
    assert len(ours.rows[0].token_ids) == 3 and len(ours.rows[2].prompt_logprobs) == 20


@pytest.mark.parametrize("slice_bytes", [1, 3 * 4 * 131])
def test_slices_of_logits_change_nothing(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(
        plan_row(prompt(seed)[:20], [2 * seed, 2 * seed + 1], rid=str(seed), score=prompt(seed)[1:21])
        for seed in range(4)
    )
    expected = fresh_runner(model()).execute(StepPlan(0, rows)).rows
    monkeypatch.setattr(plan_runner, "LOGITS_BYTES", slice_bytes)
    assert fresh_runner(model()).execute(StepPlan(0, rows)).rows == expected


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_row_that_is_not_finite_fails_alone(library: NativeLibrary, half: int, value: str) -> None:
    """The bad value is in one head of one block of the bad row's past; mates of one token and of many are untouched."""
    mates = (
        plan_row(prompt()[16:20], [0], rid="good"),
        plan_row(prompt()[:40], [7, 8, 9], rid="long"),
        plan_row(prompt()[:1], [10], rid="single"),
    )
    alone = fresh_runner(model(), library).execute(StepPlan(0, mates)).rows
    runner = fresh_runner(model(), library)
    runner.execute(StepPlan(0, (plan_row(prompt()[:16], [4], num_samples=0),)))
    with torch.inference_mode():
        runner.kv.layer(1)[half][4, 5] = float(value)
    bad = plan_row(prompt()[16:20], [4, 5], start=16, rid="bad", score=prompt()[17:21])
    chunk = plan_row(prompt()[16:20], [4, 6], start=16, rid="bad chunk", num_samples=0)
    results = runner.execute(StepPlan(1, (bad, *mates[:2], chunk, mates[2]))).rows
    assert results[0].error is not None and "non-finite" in results[0].error
    assert results[3].error == results[0].error
    assert (*results[1:3], results[4]) == alone


def test_large_finite_states_are_not_taken_for_infinite() -> None:
    """The quick check sums a row, and the sum of finite numbers may overflow."""
    runner = fresh_runner(model())
    decoder = runner.decoder
    all_logits(runner, [plan_row(prompt()[:3], [0])])
    with torch.inference_mode():
        decoder._buffers.residual[1] = 3e38
        decoder._buffers.delta[1] = 0.0
        decoder._buffers.residual[2, 4] = float("-inf")
        decoder._buffers.delta[2, 5] = float("inf")
    assert decoder.non_finite_tokens(3).tolist() == [2]


def test_logits_that_are_not_finite_fail_their_row() -> None:
    subject = tiny_decoder("llama", intermediate_size=80)
    subject.weights["head"][5] = float("inf")
    rows = (plan_row(prompt()[:4], [0]), plan_row(prompt()[:4], [1], score=prompt()[1:5]))
    for result in fresh_runner(subject).execute(StepPlan(0, rows)).rows:
        assert result.error is not None and "non-finite" in result.error
        assert result.token_ids == () and result.prompt_logprobs == ()


@pytest.mark.parametrize(
    ("tokens", "table", "what"),
    [([1, 2], [BLOCKS], "block"), ([1, 2], [-1], "block"), ([1, 131], [0], "token"), ([-1, 2], [0], "token")],
)
def test_a_plan_that_points_outside_fails_and_harms_nothing(tokens: list[int], table: list[int], what: str) -> None:
    runner = fresh_runner(model())
    with pytest.raises(AssertionError, match=f"{what} id lies outside"):
        runner.execute(StepPlan(0, (plan_row(tokens, table),)))
    assert runner.execute(StepPlan(1, (plan_row([1, 2], [0]),))).rows[0].error is None


# --- What runs --------------------------------------------------------------------------------------------------------


def test_weights_are_copies() -> None:
    subject = tiny_decoder("qwen2", intermediate_size=80)
    runner = fresh_runner(subject)
    expected = whole(runner)
    for weight in subject.weights.values():
        weight.zero_()
    assert torch.equal(whole(runner), expected)


def test_describe_names_what_runs(library: NativeLibrary) -> None:
    facts = fresh_runner(model(dtype=torch.bfloat16), library, threads=2).describe()
    assert facts["kernels"] == "native" and facts["isa"] == library.isa
    assert facts["dtype"] == "bfloat16" and facts["threads"] == 2
    assert facts["kv_bytes"] == BLOCKS * 16 * 2 * 2 * 2 * 16 * 2 and facts["kv_dtype"] == "bfloat16"


def test_int8_kv_takes_little_more_than_half(library: NativeLibrary) -> None:
    facts = fresh_runner(model(dtype=torch.bfloat16), library, kv_dtype=torch.int8).describe()
    assert facts["kv_bytes"] == BLOCKS * 16 * 2 * 2 * 2 * (16 + 2) and facts["kv_dtype"] == "int8"


@pytest.mark.parametrize(
    ("changes", "pool", "reason"),
    [
        ({"hidden_size": 40}, {}, "hidden_size 40"),
        ({"intermediate_size": 72}, {}, "intermediate_size 72"),
        ({"head_dim": 24}, {}, "head_dim 24"),
        ({"head_dim": 272}, {}, "above 256"),
        ({}, {"block_size": 8}, "block_size 8"),
        ({}, {"num_blocks": 2**28}, "slots"),
        ({}, {"dtype": torch.float16}, "float16"),
        ({}, {"device": torch.device("meta")}, "meta"),
    ],
)
def test_what_the_kernels_cannot_do_is_named(changes: dict[str, Any], pool: dict[str, Any], reason: str) -> None:
    config = tiny_config("llama", **{"intermediate_size": 80, **changes})
    reasons = unsupported(config, **{"num_blocks": 8, "block_size": 16, "dtype": torch.float32, "device": CPU, **pool})
    assert len(reasons) == 1 and reason in reasons[0]
    if changes:
        with pytest.raises(ConfigError, match="kernels: "):
            fresh_runner(tiny_decoder("llama", **{"intermediate_size": 80, **changes}))


# --- The self-test ----------------------------------------------------------------------------------------------------


@KV_DTYPES
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_broken_here(library: NativeLibrary, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    assert fresh_runner(model("qwen3", dtype), library, kv_dtype=kv_dtype).broken_promises() == []


def test_layers_that_depend_on_the_batch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    states = NativeDecoder.states

    def faulty(self: NativeDecoder, first: int, last: int) -> torch.Tensor:
        return states(self, first, last) * (1.0001 if last - first == 7 else 1.0)

    monkeypatch.setattr(NativeDecoder, "states", faulty)
    (reason,) = fresh_runner(model()).broken_promises()
    assert reason == f"the native layers give a token other bits in a piece of 7 than of {native_promise.CONTEXT}"


def test_a_head_that_depends_on_the_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = NativeDecoder.logits

    def faulty(self: NativeDecoder, step: Any, tokens: Any) -> torch.Tensor:
        return logits(self, step, tokens) * (1.0001 if len(tokens) == 3 else 1.0)

    monkeypatch.setattr(NativeDecoder, "logits", faulty)
    (reason,) = fresh_runner(model()).broken_promises()
    assert reason == "the native LM head gives a row other bits among 3 rows than among 24"
