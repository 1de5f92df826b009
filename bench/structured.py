"""What structured output costs: compiling, masks, throughput with and without constraints, hostile schemas beside a stream.

    python -m bench.structured [--rounds 5] [--parts corpus,throughput,hostile] [--out FILE.json]

The schemas are those of `tests/grammar/corpus`, the model is the embedded one at temperature 1. What is compared runs in turns in one
process; ratios are medians of ratios within a round. The load of the machine is written down, because times depend on it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.hostile import beside_streams
from radixserve import Engine, SamplingParams
from radixserve.constraints import JsonSchema
from radixserve.engine.constrained import ConstrainedOutput, StepChoices
from radixserve.grammar.base import MaskArray, Matcher
from radixserve.grammar.compiler import ConstraintCompiler
from tests.grammar.corpus.corpus import REFUSED, Entry, Generated, generate, load

# Schemas whose documents the small model finishes, of 15 to some 250 tokens, at least 15 % of them forced.
BATCH = (
    "answer_grading",
    "answer_steps",
    "answer_ticket",
    "dependabot",
    "invoice",
    "kubernetes_autoscaler",
    "kubernetes_service",
    "kubernetes_volume_claim",
    "pydantic_order",
    "recipe",
    "tool_agent_plan",
    "tool_edit_file",
    "tool_find_restaurant",
    "tool_get_weather",
    "tool_query_table",
    "tool_search_flights",
)
SEEDS = (1, 2, 3)


class Stopwatch:
    """Seconds of each call of the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def on(self, owner: type, name: str) -> Iterator[None]:
        """Time ``owner.name`` for the length of a block."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds.append(time.perf_counter() - began)

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, function)


def spread(seconds: list[float]) -> dict[str, float]:
    """Mean, median, 99th percentile and maximum, in milliseconds."""
    values = np.array(seconds) * 1e3
    return {
        "mean_ms": round(float(values.mean()), 4),
        "p50_ms": round(float(np.percentile(values, 50)), 4),
        "p99_ms": round(float(np.percentile(values, 99)), 4),
        "max_ms": round(float(values.max()), 4),
    }


# ---------------------------------------------------------------- compiling and masks


def compile_corpus(engine: Engine, entries: list[Entry]) -> tuple[dict[str, Any], ConstraintCompiler]:
    """Times of compiling each schema the first time and again, and the compiler that has them all."""
    compiler = ConstraintCompiler(engine.tokenizer, engine.info.eos_ids)
    # The tokenizer's tables and the helper process are made once for a server, before the first of these.
    compiler.compile(JsonSchema("{}"))
    first: list[float] = []
    again: list[float] = []
    for entry in entries:
        for times in (first, again):
            began = time.perf_counter()
            compiler.compile(JsonSchema(entry.text))
            times.append(time.perf_counter() - began)
    return {"first": spread(first), "cached": spread(again)}, compiler


def follow(matcher: Matcher, tokens: list[int], mask: MaskArray, ends: frozenset[int]) -> tuple[list[float], int]:
    """Seconds of each mask that a document's drawn tokens needed, and how many of its tokens were forced."""
    seconds: list[float] = []
    at = forced = 0
    while at < len(tokens) and not matcher.stopped:
        ahead = matcher.forced_tokens()
        taken = matcher.try_consume(ahead) if ahead else 0
        if taken:
            at, forced = at + taken, forced + taken
            continue
        began = time.perf_counter()
        matcher.fill_mask(mask)
        seconds.append(time.perf_counter() - began)
        if tokens[at] in ends:
            break
        matcher.consume(tokens[at])
        at += 1
    return seconds, min(forced, len(tokens))


def measure_corpus(engine: Engine, entries: list[Entry], documents: list[Generated]) -> dict[str, Any]:
    """Compile and mask times, and the share of forced tokens over all documents."""
    compiling, compiler = compile_corpus(engine, entries)
    mask = np.zeros(-(-engine.tokenizer.vocab_size // 32), np.uint32)
    ends = frozenset(engine.info.eos_ids)
    masks: list[float] = []
    tokens = forced = 0
    for document in documents:
        compiled = compiler.compile(JsonSchema(document.entry.text))
        seconds, count = follow(compiled.matcher(), document.sample.token_ids, mask, ends)
        masks += seconds
        tokens += len(document.sample.token_ids)
        forced += count
    return {
        "schemas": len(entries),
        "refused": sorted(REFUSED),
        "documents": len(documents),
        "finished": sum(document.finished for document in documents),
        "closed_by_finish_json": sum(document.closed for document in documents),
        "invalid": sum(bool(document.problems()) for document in documents),
        "compile": compiling,
        "masks": len(masks),
        "mask": spread(masks),
        "forced_share": round(forced / tokens, 3),
    }


# ---------------------------------------------------------------- throughput


def throughput(plain: Engine, one_by_one: Engine, rounds: int, max_tokens: int) -> dict[str, Any]:
    """Three documents under each of 16 schemas, 16 at once: forced tokens in one step, one a step, and free texts of the same lengths.

    Free texts end at no end token, so they have as many tokens as the documents, after the same prompts. With ``finish_json`` the
    documents that would be cut end earlier.
    """
    chosen = {entry.name: entry for entry in load()}
    entries = [chosen[name] for name in BATCH for _ in SEEDS]
    prompts = [plain.apply_chat_template([{"role": "user", "content": entry.prompt}]) for entry in entries]
    wanted = [
        SamplingParams(constraint=JsonSchema(entry.text), temperature=1.0, seed=seed, max_tokens=max_tokens)
        for entry, seed in zip(entries, SEEDS * len(BATCH), strict=True)
    ]
    # With logprobs each token tells whether it was forced; the tokens are the same without.
    told = plain.generate(prompts, [msgspec.structs.replace(one, logprobs=0) for one in wanted])
    lengths = [len(output.token_ids) for output in told]
    forced = [sum(entry.forced for entry in output.logprobs or ()) for output in told]
    free = [
        SamplingParams(temperature=1.0, seed=one.seed, max_tokens=count, ignore_eos=True)
        for one, count in zip(wanted, lengths, strict=True)
    ]
    ways = {
        "free": (plain, free),
        "constrained": (plain, wanted),
        "constrained, one forced token a step": (one_by_one, wanted),
        "constrained, finish_json": (plain, [msgspec.structs.replace(one, finish_json=True) for one in wanted]),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        order = list(ways)
        order = order[number % len(order) :] + order[: number % len(order)]
        for name in order:
            engine, sampling = ways[name]
            run = timed_run(engine, prompts, sampling, f"{name} {number}")
            if number:  # the first round warms up
                runs[name].append(run)
    ratios = {
        name: statistics.median(
            run["tokens_per_s"] / base["tokens_per_s"] for run, base in zip(runs[name], runs["free"], strict=True)
        )
        for name in ways
    }
    fast, slow = runs["constrained"], runs["constrained, one forced token a step"]
    return {
        "batch": {
            name: {"tokens": sum(lengths[at : at + len(SEEDS)]), "forced": sum(forced[at : at + len(SEEDS)])}
            for name, at in zip(BATCH, range(0, len(lengths), len(SEEDS)), strict=True)
        },
        "tokens": sum(lengths),
        "forced_share": round(sum(forced) / sum(lengths), 3),
        "rounds": rounds,
        "ways": {
            name: {
                **{key: round(statistics.median(run[key] for run in several), 4) for key in several[0]},
                "to_free": round(ratios[name], 3),
            }
            for name, several in runs.items()
        },
        "fast_forward_gain": round(
            statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(fast, slow, strict=True)), 3
        ),
    }


def timed_run(engine: Engine, prompts: list[list[int]], sampling: list[SamplingParams], salt: str) -> dict[str, float]:
    """One run with a cold cache: throughput, steps, and what of the steps' time went into grammars."""
    waits, follows, closings = Stopwatch(), Stopwatch(), Stopwatch()
    before = engine.cache_stats()["steps"]
    with (
        waits.on(StepChoices, "wait"),
        follows.on(ConstrainedOutput, "after"),
        closings.on(ConstrainedOutput, "_settle"),
    ):
        began = time.perf_counter()
        outputs = engine.generate(prompts, sampling, cache_salt=salt)
        seconds = time.perf_counter() - began
    after = engine.cache_stats()["steps"]
    in_steps = after["seconds"] - before["seconds"]
    tokens = sum(len(output.token_ids) for output in outputs)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "steps": after["count"] - before["count"],
        "waiting_for_masks": sum(waits.seconds) / in_steps,
        "following_grammars": sum(follows.seconds) / in_steps,
        "keeping_ways_to_the_end": sum(closings.seconds) / in_steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=5, help="under each schema of the corpus (default: 5)")
    parser.add_argument("--tokens", type=int, default=400, help="most of each document (default: 400)")
    parser.add_argument("--parts", default="corpus,throughput,hostile", help="which of them (default: all)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    result: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    options: dict[str, Any] = {"kv_memory_mb": 512, "max_running": 16}
    if "corpus" in parts or "throughput" in parts:
        with Engine("smollm2", **options) as engine, Engine("smollm2", fast_forward=False, **options) as one_by_one:
            if "throughput" in parts:
                result["throughput"] = throughput(engine, one_by_one, arguments.rounds, arguments.tokens)
            if "corpus" in parts:
                entries = [entry for entry in load() if entry.name not in REFUSED]
                documents = generate(
                    engine,
                    entries,
                    samples=arguments.documents,
                    max_tokens=arguments.tokens,
                    seed=7,
                    finish_json=True,
                )
                result["corpus"] = measure_corpus(engine, entries, documents)
    if "hostile" in parts:
        result["hostile"] = asyncio.run(beside_streams(options, arguments.rounds))
    result["load_after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
