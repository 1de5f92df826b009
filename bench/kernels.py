"""Micro measurements of the CPU kernels, against what the machine can do and against oneDNN's prepacked linears.

    python bench/kernels.py [linear|quant|attention|step] [--threads N]

Competitors run interleaved in one process; every figure is a median (and the best) of several runs. ``step`` runs all operations of a
SmolLM2-135M-shaped model with random weights as one recorded list.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from radixserve.native.abi import Format, Rows
from radixserve.native.kv_layout import cache_shape
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation, attention, embedding, linear, norm, rope_append, silu_mul, top_k
from radixserve.native.packing import BLOCK_BYTES, BLOCK_ELEMENTS, PackedWeight, pack_dense, pack_quantized
from radixserve.native.program import Program, StepBatch

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 30, 576, 9, 3, 64, 1536, 49152
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LINEARS = ((QKV, WIDTH), (WIDTH, HEADS * HEAD_DIM), (2 * FFN, WIDTH), (WIDTH, FFN))
BLOCKS = 4500


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median and best seconds of each call, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(runs[1:]), min(runs[1:])) for name, runs in seconds.items()}


def step_batch(rows: list[tuple[int, int, int]], seed: int = 0) -> StepBatch:
    """``rows``: (length, tokens computed, tokens of a prefix that all share); blocks scattered over the cache."""
    free = np.random.default_rng(seed).permutation(BLOCKS).tolist()
    shared = [free.pop() for _ in range(128)]
    tables = np.zeros((len(rows), max(-(-length // 16) for length, _, _ in rows)), np.int32)
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    for row, (length, count, prefix) in enumerate(rows):
        own = -(-length // 16) - prefix // 16
        table = shared[: prefix // 16] + [free.pop() for _ in range(own)]
        tables[row, : len(table)] = table
        positions += range(length - count, length)
        slots += [table[p // 16] * 16 + p % 16 for p in range(length - count, length)]
        starts.append(len(positions))
    return StepBatch(
        token_ids=np.zeros(len(positions), np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(starts, np.int32),
        seq_lens=np.array([length for length, _, _ in rows], np.int32),
        tables=tables,
        wanted_rows=np.array(starts[1:], np.int32) - 1,
    )


def rows_batch(count: int) -> StepBatch:
    return step_batch([(count, count, 0)])


def bench_linear(library: NativeLibrary) -> None:
    """All linears of a model at several batch sizes, ours beside oneDNN."""
    weights = [[torch.randn(n, k).bfloat16() for n, k in LINEARS] for _ in range(LAYERS)]
    packed = [[pack_dense(w) for w in layer] for layer in weights]
    prepacked = [[torch.ops.mkldnn._reorder_linear_weight(w, 16) for w in layer] for layer in weights]
    size = sum(w.nbytes for layer in packed for w in layer)
    for count in (1, 4, 16, 64, 256, 512):
        inputs = {k: torch.randn(count, k).bfloat16() for k in (WIDTH, FFN)}
        outputs = {n: torch.empty(count, n).bfloat16() for n, _ in LINEARS}
        program = Program(
            library,
            [linear(w, inputs[w.in_features], outputs[w.out_features]) for layer in packed for w in layer],
        )
        batch = rows_batch(count)

        def onednn(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for layer in prepacked:
                for (_, k), w in zip(LINEARS, layer, strict=True):
                    torch.ops.mkldnn._linear_pointwise(inputs[k], w, None, "none", [], "")

        result = interleaved({"own": partial(program.run, batch), "onednn": onednn}, 15 if count < 64 else 5)
        flops = 2 * count * size / 2
        (own, best), (other, _) = result["own"], result["onednn"]
        print(
            f"linear bf16  M={count:4d}  {own * 1e3:8.2f} ms (best {best * 1e3:7.2f})  {size / own / 1e9:5.1f} GB/s "
            f"{flops / own / 1e9:6.0f} GFLOP/s   oneDNN {other * 1e3:8.2f} ms, {other / own:.2f} of ours"
        )


def random_quantized(form: Format, out_features: int, in_features: int) -> PackedWeight:
    size = in_features // BLOCK_ELEMENTS[form] * BLOCK_BYTES[form]
    return pack_quantized(
        form, np.random.default_rng(0).integers(0, 60, (out_features, size), dtype=np.uint8), in_features
    )


def bench_quant(library: NativeLibrary) -> None:
    """The file's own formats beside bf16, same shapes (768 for 576, a multiple of every block)."""
    shapes = ((3072, 768), (768, 1536))
    formats = [Format.DENSE_BF16, *BLOCK_BYTES]
    for count in (1, 16, 256):
        inputs = {k: torch.randn(count, k).bfloat16() for k in (768, 1536)}
        outputs = {n: torch.empty(count, n).bfloat16() for n, _ in shapes}
        batch = rows_batch(count)
        calls: dict[str, Callable[[], object]] = {}
        sizes: dict[str, int] = {}
        for form in formats:
            weights = [
                pack_dense(torch.randn(n, k).bfloat16()) if form is Format.DENSE_BF16 else random_quantized(form, n, k)
                for _ in range(10)
                for n, k in shapes
            ]
            program = Program(library, [linear(w, inputs[w.in_features], outputs[w.out_features]) for w in weights])
            calls[form.name] = partial(program.run, batch)
            sizes[form.name] = sum(w.nbytes for w in weights)
        operations = 2 * count * 10 * sum(n * k for n, k in shapes)
        for name, (median, best) in interleaved(calls, 9).items():
            print(
                f"linear {name:10s} M={count:4d}  {median * 1e3:8.2f} ms (best {best * 1e3:7.2f})  "
                f"{sizes[name] / median / 1e9:5.1f} GB/s {operations / median / 1e9:6.0f} GOP/s"
            )


CASES = {
    "decode 1 @ 1500": [(1500, 1, 0)],
    "decode 4 @ 1000": [(1000, 1, 0)] * 4,
    "decode 16 @ 1000, nothing shared": [(1000, 1, 0)] * 16,
    "decode 16 @ 1000, 992 shared": [(1000, 1, 992)] * 16,
    "decode 64 @ 1000, nothing shared": [(1000, 1, 0)] * 64,
    "decode 64 @ 1000, 992 shared": [(1000, 1, 992)] * 64,
    "prefill 512 on 1000": [(1512, 512, 0)],
    "prefill 256 on 1000 + 16 decodes": [(1256, 256, 0)] + [(1000, 1, 0)] * 16,
}


def caches() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    shape = cache_shape(BLOCKS, 16, KV_HEADS, HEAD_DIM)
    k, v = ([torch.randn(shape).bfloat16() for _ in range(LAYERS)] for _ in range(2))
    return k, v


def attention_operation(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Operation:
    return attention(
        q, k, v, out, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=16, scale=HEAD_DIM**-0.5
    )


def bench_attention(library: NativeLibrary) -> None:
    """All layers' attention alone: time, KV bytes read and asked for, operations."""
    k, v = caches()
    for name, rows in CASES.items():
        tokens = sum(count for _, count, _ in rows)
        q = torch.randn(tokens, HEADS * HEAD_DIM).bfloat16()
        out = torch.empty_like(q)
        program, batch = (
            Program(library, [attention_operation(q, *kv, out) for kv in zip(k, v, strict=True)]),
            step_batch(rows),
        )
        library.reset_counters()
        program.run(batch)
        traffic = library.kv_traffic()
        median, best = interleaved({"": partial(program.run, batch)}, 7)[""]
        pairs = sum(sum(range(length - count + 1, length + 1)) for length, count, _ in rows)
        flops = 4 * HEAD_DIM * HEADS * LAYERS * pairs
        print(
            f"attention {name:34s} {median * 1e3:8.2f} ms (best {best * 1e3:7.2f})  read {traffic.read / 1e6:7.1f} MB of "
            f"{traffic.asked / 1e6:7.1f}  {traffic.read / median / 1e9:5.1f} GB/s {flops / median / 1e9:6.0f} GFLOP/s"
        )


def step_program(library: NativeLibrary, capacity: int, quantized: bool) -> Program:
    """A SmolLM2-135M-shaped model with random weights, bf16 or Q4_1 with a Q8_0 head."""

    def weight(n: int, k: int, form: Format = Format.Q4_1) -> PackedWeight:
        return random_quantized(form, n, k) if quantized else pack_dense((torch.randn(n, k) * 0.02).bfloat16())

    def buffer(width: int) -> torch.Tensor:
        return torch.zeros(capacity, width).bfloat16()

    head = weight(VOCAB, WIDTH, Format.Q8_0)
    residual, hidden, delta, qkv, q = buffer(WIDTH), buffer(WIDTH), buffer(WIDTH), buffer(QKV), buffer(HEADS * HEAD_DIM)
    mixed, gate_up, act = buffer(HEADS * HEAD_DIM), buffer(2 * FFN), buffer(FFN)
    logits, ids, values = torch.empty(64, VOCAB), torch.empty(64, 1, dtype=torch.int32), torch.empty(64, 1)
    scale, cos = torch.ones(WIDTH), torch.ones(2048, HEAD_DIM // 2)
    steps = [embedding(head, residual)]
    for layer, (k, v) in enumerate(zip(*caches(), strict=True)):
        steps += [
            norm(
                residual, scale, hidden, eps=1e-5, delta=delta if layer else None, residual=residual if layer else None
            ),
            linear(weight(*LINEARS[0]), hidden, qkv),
            rope_append(qkv, q, k, v, cos, cos, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM),
            attention_operation(q, k, v, mixed),
            linear(weight(*LINEARS[1]), mixed, delta),
            norm(residual, scale, hidden, eps=1e-5, delta=delta, residual=residual),
            linear(weight(*LINEARS[2]), hidden, gate_up),
            silu_mul(gate_up, act),
            linear(weight(*LINEARS[3]), act, delta),
        ]
    steps += [
        norm(residual, scale, hidden, eps=1e-5, delta=delta, rows=Rows.WANTED),
        linear(head, hidden, logits, rows=Rows.WANTED),
        top_k(logits, ids, values),
    ]
    return Program(library, steps)


def bench_step(library: NativeLibrary) -> None:
    """Whole steps, greedy choice included, as one call of the library."""
    # One program after the other: two models and caches in turn would only measure each other's evictions.
    for kind in ("bf16", "Q4_1"):
        program = step_program(library, 600, quantized=kind == "Q4_1")
        for name, rows in CASES.items():
            median, best = interleaved({"": partial(program.run, step_batch(rows))}, 9)[""]
            print(f"step {kind:5s} {name:34s} {median * 1e3:8.2f} ms (best {best * 1e3:7.2f})")


BENCHES = {"linear": bench_linear, "quant": bench_quant, "attention": bench_attention, "step": bench_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", choices=[*BENCHES, []], help="which (all)")
    parser.add_argument(
        "--threads", type=int, default=0, help="of both competitors (default: the cores this process may use)"
    )
    options = parser.parse_args()
    library = NativeLibrary.load()
    if options.threads:
        library.set_threads(options.threads)
    torch.set_num_threads(library.threads)
    print(f"instruction set {library.isa}, {library.threads} threads")
    for name in options.benches or BENCHES:
        BENCHES[name](library)


if __name__ == "__main__":
    main()
