"""What structured output costs: compiling, masks, throughput with and without constraints, hostile schemas beside a stream.

    python -m bench.structured [--rounds 5] [--corpus-only] [--out FILE.json]

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

import numpy as np

from bench.hostile import beside_streams
from radixserve import Engine, SamplingParams
from radixserve.constraints import JsonSchema
from radixserve.engine.constrained import ConstrainedOutput, StepChoices
from radixserve.grammar.base import Matcher
from radixserve.grammar.compiler import ConstraintCompiler
from tests.grammar.corpus.corpus import REFUSED, Entry, Generated, generate, load

# Closed schemas whose documents a small model finishes; from small ones to some hundred tokens.
BATCH = (
    "answer_grading",
    "geojson_closed",
    "github_push_event",
    "invoice",
    "jwt_claims",
    "kubernetes_volume_claim",
    "lsp_diagnostics",
    "oauth_token_response",
    "paged_list",
    "payment_charge",
    "pydantic_measurement",
    "pydantic_order",
    "tool_create_event",
    "tool_get_weather",
    "tool_search_flights",
    "webhook_subscription",
)
LEAST_FORCED = 0.15


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
    first, again = [], []
    for entry in entries:
        for times in (first, again):
            began = time.perf_counter()
            compiler.compile(JsonSchema(entry.text))
            times.append(time.perf_counter() - began)
    return {"first": spread(first), "cached": spread(again)}, compiler


def follow(matcher: Matcher, tokens: list[int], mask: np.ndarray[Any, np.dtype[np.uint32]]) -> tuple[list[float], int]:
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
        if tokens[at] in END_TOKENS:
            break
        matcher.consume(tokens[at])
        at += 1
    return seconds, min(forced, len(tokens))


def measure_corpus(engine: Engine, entries: list[Entry], documents: list[Generated]) -> dict[str, Any]:
    """Compile and mask times, and the share of forced tokens over all documents."""
    compiling, compiler = compile_corpus(engine, entries)
    mask = np.zeros(-(-engine.tokenizer.vocab_size // 32), np.uint32)
    masks: list[float] = []
    tokens = forced = 0
    for document in documents:
        compiled = compiler.compile(JsonSchema(document.entry.text))
        seconds, count = follow(compiled.matcher(), document.sample.token_ids, mask)
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
