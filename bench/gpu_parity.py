"""Parity: what the device computes beside what the CPU's oracle does. Each check raises `AssertionError` with the numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from bench.gpu_bed import Bed, Job, Run, prompts, run_jobs
from bench.gpu_model import LLAMA_TINY, RandomWeights
from bench.gpu_scene import CPU, Scene, backend_of, layer, plan_row
from radixserve.attention.base import AttentionBackend
from radixserve.attention.flashinfer.backend import FP8, FlashInferAttention
from radixserve.attention.flashinfer.cascade import CascadeCost
from radixserve.attention.registry import create_attention
from radixserve.messages import SamplingParams
from radixserve.model.config import ModelConfig
from radixserve.model.decoder import Decoder
from radixserve.model.flashinfer_ops import FlashInferOps
from radixserve.model.ops import Ops
from radixserve.model.torch_ops import TorchOps
from radixserve.runtime.decode_graphs import DecodeGraphs
from radixserve.runtime.device_draw import draw_rows
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.graph_recorder import CudaGraphRecorder
from radixserve.runtime.kv_store import KVStore
from radixserve.runtime.sampler import Sampler
from radixserve.scheduler.plan import StepPlan

PAGE_SIZES = (16, 1, 32)
# Query heads, KV heads.
GROUPS = ((32, 8), (9, 3), (8, 8), (8, 1))
# Steps as (tokens in the store, tokens computed) of each row: mixed, decodes, decodes around ends of pages, one long prompt.
STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((40, 5), (0, 33), (129, 1), (16, 16), (500, 70)),
    ((40, 1), (0, 1), (700, 1), (33, 1)),
    ((14, 1), (15, 1), (16, 1), (31, 1), (32, 1), (63, 1), (64, 1)),
    ((0, 300),),
)


def attention(bed: Bed) -> dict[str, Any]:
    """Every group of heads at every page size, over mixed steps, decodes and ends of pages."""
    worst, groups = 0.0, GROUPS[1:2] if bed.small else GROUPS
    for (page, heads), rows in itertools.product(itertools.product(PAGE_SIZES, groups), STEPS):
        scene = Scene(bed, layer(heads), page, rows)
        worst = max(worst, scene.check(backend_of(bed, scene.config, page)))
    return {"cases": len(PAGE_SIZES) * len(groups) * len(STEPS), "largest_error": worst}


def heads_of_128(bed: Bed) -> dict[str, Any]:
    """Heads of 128, as of models of 7 billion weights."""
    return {"largest_error": max(_checked(bed, layer((32, 8), 128), rows) for rows in STEPS)}


def windows(bed: Bed) -> dict[str, Any]:
    """Sliding windows."""
    return {
        "largest_error": max(
            _checked(bed, layer((32, 8), sliding_window=window), rows)
            for window in ((20,) if bed.small else (1, 20, 400))
            for rows in STEPS
        )
    }


def soft_cap(bed: Bed) -> dict[str, Any]:
    """Capped scores."""
    bed.need_gpu("torch_paged has no soft cap")
    return {"largest_error": max(_checked(bed, layer((32, 8), attention_soft_cap=5.0), rows) for rows in STEPS)}


def half_precision(bed: Bed) -> dict[str, Any]:
    """float16."""
    bed.need_gpu("a CPU computes in bfloat16 or float32")
    return {"largest_error": max(_checked(bed, layer((32, 8)), rows, dtype=torch.float16) for rows in STEPS)}


def float8_store(bed: Bed) -> dict[str, Any]:
    """K and V in float8, whose own rounding is in the error: a sixteenth of each number at most."""
    bed.need_gpu("a CPU stores int8")
    worst = 0.0
    for rows in STEPS:
        scene = Scene(bed, layer((32, 8)), 16, rows)
        backend = backend_of(bed, scene.config, 16, kv_dtype=FP8)
        worst = max(worst, scene.check(backend, tolerance=0.3, kv_dtype=FP8))
    return {"largest_error": worst}


def plans_back_to_back(bed: Bed) -> dict[str, Any]:
    """Two plans in a row, the second one attended, twice over; a backend that plans again and again."""
    scenes = [Scene(bed, layer((32, 8)), 16, rows) for rows in STEPS]
    backend = backend_of(bed, scenes[0].config, 16)
    worst = 0.0
    for first, second in itertools.product(scenes, scenes):
        backend.plan(ForwardBatch.from_plan(first.plan, 16, bed.device))
        worst = max(worst, second.check(backend))
    return {"largest_error": worst}


def cascades(bed: Bed) -> dict[str, Any]:
    """Rows that share pages, read in levels: the results of one pass each."""
    bed.need_gpu("the CPU's backends share reads within their kernels")
    worst, taken = 0.0, 0
    for rows in (((200, 1),) * 6, ((200, 3), (260, 1), (230, 40)), ((333, 1), (160, 5), (170, 1), (165, 9))):
        for page in (16, 32):
            scene = Scene(bed, layer((32, 8)), page, rows, shared=128 // page)
            backend = backend_of(bed, scene.config, page)
            assert isinstance(backend, FlashInferAttention)
            backend.cost = CascadeCost(backend.cost.page, 0, 0)
            worst, taken = max(worst, scene.check(backend)), taken + backend.cascades
    assert taken == 6, f"{taken} of 6 steps were read as a cascade"
    return {"largest_error": worst, "cascades": taken}


def deterministic_attention(bed: Bed) -> dict[str, Any]:
    """Right, and the bits of every token the same whole, in pieces and beside others."""
    worst = 0.0
    for rows in STEPS:
        worst = max(worst, _checked(bed, layer((32, 8)), rows, deterministic=True))
    config, page = layer((32, 8)), 16
    whole = Scene(bed, config, page, ((0, 300),))
    expected = whole.run(backend_of(bed, config, page, deterministic=True))
    for start, extent in ((0, 7), (100, 1), (131, 60), (299, 1)):
        piece = Scene(bed, config, page, ((start, extent), (40, 3)))
        # The context is what the whole prompt wrote, and the piece's own numbers are the whole's.
        piece.held = _written(whole, piece)
        for name in ("q", "k", "v"):
            getattr(piece, name)[:extent] = getattr(whole, name)[start : start + extent]
        found = piece.run(backend_of(bed, config, page, deterministic=True))[:extent]
        assert torch.equal(found, expected[start : start + extent]), f"{extent} tokens at {start} have other bits"
    return {"largest_error": worst, "pieces": 4}


def decoder(bed: Bed) -> dict[str, Any]:
    """The logits of a whole decoder beside the CPU's in float32, of a prompt and of decodes after it."""
    found, expected = (_logits(bed, device) for device in (bed.device, CPU))
    error, scale = float((found - expected).abs().max()), float(expected.abs().max())
    allowed = 1e-4 * scale if bed.dtype == torch.float32 else 0.05 * scale
    assert error < allowed, f"logits up to {scale:.1f} differ by {error:.3f}, {allowed:.3f} allowed"
    return {"largest_error": error, "largest_logit": scale}


def graphs(bed: Bed) -> dict[str, Any]:
    """Captured decodes beside the same ones launched one by one: hidden states of a whole decoder."""
    bed.need_gpu("a CPU has no graphs")
    config = LLAMA_TINY
    weights = RandomWeights(config, bed.dtype, bed.device)
    worst = 0.0
    for deterministic in (True, False):
        whole = Decoder(config, weights, FlashInferOps(bed.dtype, deterministic=deterministic))
        kv = KVStore(config, num_blocks=65, block_size=16, dtype=bed.dtype, device=bed.device)
        backend = backend_of(bed, config, 16, deterministic=deterministic)
        assert isinstance(backend, FlashInferAttention)
        captured = DecodeGraphs(
            whole,
            backend,
            kv,
            spare=64,
            most_rows=6,
            context_length=512,
            budget_bytes=1 << 30,
            recorder=CudaGraphRecorder(bed.device),
        )
        for index in range(config.num_layers):
            for half in kv.layer(index):
                half.normal_()
        for rows in (((40, 1), (7, 1), (100, 1)), ((33, 1),), tuple((15 + row, 1) for row in range(6))):
            tables = np.split(np.arange(60), len(rows))
            plan = StepPlan(
                0,
                tuple(
                    plan_row([7 + start], table[: start // 16 + 1], start=start)
                    for (start, _), table in zip(rows, tables, strict=True)
                ),
            )
            staged = captured.stage(ForwardBatch.from_plan(plan, 16))
            assert staged is not None
            replayed = captured.replay(staged)
            assert replayed is not None
            replayed = replayed.clone()
            eager = whole.forward(ForwardBatch.from_plan(plan, 16, bed.device), backend, kv)
            error = float((replayed - eager).abs().max() / eager.abs().max())
            assert error < 0.02, f"a graph's hidden states differ by {error:.3f} of the largest"
            assert not deterministic or torch.equal(replayed, eager), "a deterministic graph has other bits"
            worst = max(worst, error)
    return {"largest_error": worst}


def draws(bed: Bed) -> dict[str, Any]:
    """Tokens drawn on the device beside the host's sampler, from the same logits: greedy, filtered in every way, and not."""
    vocab, rows = 128256, []
    wants: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"min_p": 0.05},
        {"top_k": 40},
        {"top_k": 40, "top_p": 0.9},
        {"top_p": 0.9},
        {"top_k": 1000, "temperature": 0.6},
    ]
    for index in range(8 if bed.small else 64):
        own = SamplingParams(**{"temperature": 1.0, **wants[index % len(wants)]})
        rows.append(msgspec.structs.replace(plan_row([1], np.zeros(1), start=index), sampling=own, seed=index))
    # Rounded, so that many are equal.
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(0)).mul_(6).round_().div_(2)
    there, sampler = logits.to(bed.device), Sampler(vocab, ())
    expected = sampler.sample(rows, logits)
    found = []
    for size in (1, 16):
        drawn = draw_rows(
            lambda places: there[torch.from_numpy(places).to(bed.device)], rows, np.arange(len(rows)), size
        )
        found.append(sampler.drawn(rows, drawn.tokens.cpu().numpy(), drawn.peaks.cpu().numpy()))
    assert found[0] == found[1], "a row draws another token among others"
    other = [index for index, (one, two) in enumerate(zip(found[0], expected, strict=True)) if one != two]
    assert not other, f"rows {other} of {len(rows)} draw other tokens than on the host"
    return {"rows": len(rows)}


def overlap(bed: Bed) -> dict[str, Any]:
    """An engine that plans a step while one runs brings the tokens of one that does not; on a GPU they are fed on the device."""
    samplings: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}]
    jobs = [
        Job(prompt, 12, samplings[index % len(samplings)])
        for index, prompt in enumerate(prompts(3 if bed.small else 9, 150, 37, LLAMA_TINY.vocab_size))
    ]
    outputs, fed = [], 0
    for option in ("off", "on"):
        # Where sums may be split by the batch, two runs need not agree.
        assembly = bed.assembly(tiny=True, deterministic=True, overlap=option)
        outputs.append(run_jobs(assembly, jobs).outputs)
        fed += assembly.feed.fed if assembly.feed is not None else 0
        assembly.core.close()
    assert outputs[0] == outputs[1], f"other tokens: {outputs[1]} in place of {outputs[0]}"
    assert fed > 0 or not bed.on_gpu, "no step began with tokens that were on the device"
    return {"jobs": len(jobs), "fed_steps": fed}


def cold_equals_warm(bed: Bed) -> dict[str, Any]:
    """In deterministic mode: bits of tokens and logprobs, cold, warm, in chunks, alone, with graphs and without."""
    graph_options = [{"cuda_graph": "off"}, {"cuda_graph": "on"}] if bed.on_gpu else [{}]
    variants: list[dict[str, Any]] = [
        {**options, **more}
        for options in graph_options
        for more in ({"prefix_cache": "off"}, {}, {"max_batch_tokens": 64, "max_running": 8})
        if more or not bed.small
    ]
    return _same_outputs(bed, variants)


def _same_outputs(bed: Bed, variants: list[dict[str, Any]]) -> dict[str, Any]:
    """Greedy tokens and logprobs of all ``variants`` of options in deterministic mode, run twice each, are the first one's."""
    count = 3 if bed.small else 6
    jobs = [Job(prompt, 12) for prompt in prompts(count, 150, 37, LLAMA_TINY.vocab_size)]
    runs: list[Run] = []
    broken: list[str] = []
    for options in variants:
        assembly = bed.assembly(tiny=True, deterministic=True, **options)
        broken += assembly.info.broken_promises
        runs += [run_jobs(assembly, jobs, logprobs=True) for _ in range(2)]
        assembly.core.close()
    differing = [index for index, run in enumerate(runs) if run.outputs != runs[0].outputs]
    other_bits = [index for index, run in enumerate(runs) if run.logprobs != runs[0].logprobs]
    assert not broken, f"the self-test found: {'; '.join(broken)}"
    assert not differing, f"runs {differing} of {len(runs)} brought other tokens"
    assert not other_bits, f"runs {other_bits} of {len(runs)} brought other bits of logprobs"
    return {"runs": len(runs), "tokens": sum(len(each) for each in runs[0].outputs)}


def _checked(bed: Bed, config: ModelConfig, rows: tuple[tuple[int, int], ...], **options: Any) -> float:
    dtype = options.get("dtype", bed.dtype)
    return Scene(bed, config, 16, rows, dtype=dtype).check(backend_of(bed, config, 16, **options))


def _written(whole: Scene, piece: Scene) -> torch.Tensor:
    """The piece's contexts, of which the first row's is what the whole prompt writes there."""
    held = piece.held.clone()
    row, table = piece.plan.rows[0], piece.plan.rows[0].table.astype(np.int64)
    places = np.arange(row.start)
    slots = torch.from_numpy(table[places // piece.page] * piece.page + places % piece.page)
    for half, new in zip(held, (whole.k, whole.v), strict=True):
        half[slots] = new[: row.start]
    return held


def _logits(bed: Bed, device: torch.device) -> torch.Tensor:
    config = LLAMA_TINY
    here = device == bed.device
    dtype = bed.dtype if here else torch.float32
    # The same numbers: those of the CPU, as rounded for the device.
    source = RandomWeights(config, bed.dtype, CPU)
    weights = {
        name: each.to(device, dtype if each.dtype == bed.dtype and not name.endswith("norm") else each.dtype)
        for name, each in source.items()
    }
    on_gpu = device.type == "cuda"
    ops: Ops = FlashInferOps(dtype) if on_gpu else TorchOps(dtype)
    whole = Decoder(config, weights, ops)
    kv = KVStore(config, num_blocks=20, block_size=16, dtype=dtype, device=device)
    backend: AttentionBackend = create_attention("auto", config, block_size=16, dtype=dtype, device=device)
    rng = np.random.default_rng(3)
    found = []
    for rows in (((0, 40), (0, 7), (0, 100)), ((40, 1), (7, 1), (100, 1)), ((41, 20), (8, 1), (101, 3))):
        plan = StepPlan(
            0,
            tuple(
                plan_row(
                    rng.integers(1, config.vocab_size, extent).tolist(),
                    np.arange(8) + 8 * index if index < 2 else np.arange(12, 20),
                    start=start,
                )
                for index, (start, extent) in enumerate(rows)
            ),
        )
        hidden = whole.forward(ForwardBatch.from_plan(plan, 16, device), backend, kv)
        found.append(whole.logits(hidden).cpu())
    return torch.cat(found)


# Together with the modules' check these take four minutes at most.
PARITY: dict[str, tuple[float, Callable[[Bed], dict[str, Any]]]] = {
    "attention": (30, attention),
    "decoder": (20, decoder),
    "graphs": (30, graphs),
    "plans_back_to_back": (10, plans_back_to_back),
    "cascades": (15, cascades),
    "deterministic_attention": (15, deterministic_attention),
    "cold_equals_warm": (40, cold_equals_warm),
    "overlap": (15, overlap),
    "draws": (5, draws),
}
# What takes modules that the served model does without.
MORE_PARITY: dict[str, tuple[float, Callable[[Bed], dict[str, Any]]]] = {
    "windows": (30, windows),
    "soft_cap": (30, soft_cap),
    "heads_of_128": (30, heads_of_128),
    "half_precision": (30, half_precision),
    "float8_store": (30, float8_store),
}
