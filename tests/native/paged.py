"""Requests over a paged cache that share blocks, and what attention over them should give."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from radixserve.native.kv_layout import SUB_BLOCK, cache_shape, head_elements
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import attention
from radixserve.native.program import StepBatch
from radixserve.runtime.kv_quantization import dequantize, quantize
from tests.native.steps import int32, run


@dataclass(frozen=True)
class Shape:
    """What a model's attention looks like; ``int8``: the type of the cache, of all else it is ``dtype``."""

    head_dim: int = 64
    kv_heads: int = 2
    group: int = 3
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    int8: bool = False
    window: int | None = None
    softcap: float = 0.0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def cached(self) -> torch.dtype:
        return torch.int8 if self.int8 else self.dtype

    @property
    def block_bytes(self) -> int:
        """Of K and V of one layer."""
        return 2 * self.block_size * self.kv_heads * head_elements(self.head_dim, self.cached) * self.cached.itemsize


@dataclass
class Request:
    """``table``: its blocks; ``length``: tokens with KV; ``queries``: how many of the last of them are computed in this step."""

    table: list[int]
    length: int
    queries: int


@dataclass
class Scene:
    """A cache of ``num_blocks`` blocks that starts as NaN; requests write random K and V into what they own.

    ``k`` and ``v`` [slots, kv_heads, head_dim] are what is written; a cache of int8 holds them rounded.
    """

    shape: Shape
    num_blocks: int
    seed: int = 0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        # Scattered on purpose: neighbours in a request are not neighbours in memory.
        self.free = torch.randperm(self.num_blocks, generator=self.generator).tolist()
        slots = self.num_blocks * self.shape.block_size
        self.k = torch.full((slots, self.shape.kv_heads, self.shape.head_dim), float("nan")).to(self.shape.dtype)
        self.v = self.k.clone()

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.shape.dtype)

    def add(self, length: int, queries: int, parent: int | None = None, shared_blocks: int = 0) -> Request:
        """A request whose first blocks are its parent's (full ones only), the rest its own."""
        size = self.shape.block_size
        shared: list[int] = []
        if parent is not None:
            whole = min(self.requests[parent].length, length - queries) // size
            shared = self.requests[parent].table[: min(shared_blocks, whole)]
        own = [self.free.pop() for _ in range(-(-length // size) - len(shared))]
        request = Request([*shared, *own], length, queries)
        for position in range(len(shared) * size, length):
            slot = self.slot(request, position)
            self.k[slot] = self.random(self.shape.kv_heads, self.shape.head_dim)
            self.v[slot] = self.random(self.shape.kv_heads, self.shape.head_dim)
        self.requests.append(request)
        return request

    def slot(self, request: Request, position: int) -> int:
        return (
            request.table[position // self.shape.block_size] * self.shape.block_size + position % self.shape.block_size
        )

    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V in the kernels' layout."""
        shape = self.shape
        flat = cache_shape(self.num_blocks, shape.block_size, shape.kv_heads, shape.head_dim, shape.cached)
        step = 1 if shape.cached == torch.float32 else 2
        heads = (shape.kv_heads, shape.head_dim)
        k, v = (quantize(part)[0] if shape.int8 else part for part in (self.k, self.v))
        k = k.view(-1, SUB_BLOCK, shape.kv_heads, shape.head_dim // step, step).permute(0, 2, 3, 1, 4)
        v = v.view(-1, SUB_BLOCK // step, step, *heads).permute(0, 3, 1, 4, 2)
        parts = [part.reshape(len(part), shape.kv_heads, -1) for part in (k, v)]
        if shape.int8:
            scales = [
                quantize(part)[1].view(-1, SUB_BLOCK, shape.kv_heads).transpose(1, 2) for part in (self.k, self.v)
            ]
            behind = [scale.contiguous().view(torch.int8) for scale in scales]
            parts = [torch.cat(both, dim=2) for both in zip(parts, behind, strict=True)]
        return parts[0].reshape(flat).contiguous(), parts[1].reshape(flat).contiguous()

    def held(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache says that K and V are, in fp64."""
        if not self.shape.int8:
            return self.k.double(), self.v.double()
        k, v = (dequantize(*quantize(part), dtype=torch.float64) for part in (self.k, self.v))
        return k, v

    def attend(self, library: NativeLibrary, q: torch.Tensor, requests: list[Request] | None = None) -> torch.Tensor:
        """Attention of the kernels for ``q`` [T, heads * head_dim] in the order of the requests."""
        chosen = self.requests if requests is None else requests
        shape, (k, v) = self.shape, self.caches()
        counts = [request.queries for request in chosen]
        tables = np.full((len(chosen), max(len(request.table) for request in chosen)), -(2**20), np.int32)
        for row, request in enumerate(chosen):
            tables[row, : len(request.table)] = request.table
        total = sum(counts)
        batch = StepBatch(
            token_ids=int32([0] * total),
            positions=int32([0] * total),
            slots=int32([0] * total),
            query_start=int32(np.cumsum([0, *counts]).astype(np.int32)),
            seq_lens=int32([request.length for request in chosen]),
            tables=tables,
            wanted_rows=int32([]),
        )
        out = torch.full_like(q, float("nan"))
        operation = attention(
            q,
            k,
            v,
            out,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            scale=shape.scale,
            window=shape.window,
            softcap=shape.softcap,
        )
        run(library, operation, batch)
        return out

    def expected(self, q: torch.Tensor) -> torch.Tensor:
        """The same by its definition, in fp64."""
        shape, row, out = self.shape, 0, torch.empty(q.shape, dtype=torch.float64)
        held_k, held_v = self.held()
        for request in self.requests:
            slots = [self.slot(request, position) for position in range(request.length)]
            for position in range(request.length - request.queries, request.length):
                first = 0 if shape.window is None else max(0, position + 1 - shape.window)
                seen = slots[first : position + 1]
                k, v = (part[seen].repeat_interleave(shape.group, dim=1) for part in (held_k, held_v))
                scores = torch.einsum("hd,thd->ht", q[row].double().view(shape.heads, -1), k) * shape.scale
                if shape.softcap:
                    scores = shape.softcap * torch.tanh(scores / shape.softcap)
                out[row] = torch.einsum("ht,thd->hd", scores.softmax(-1), v).reshape(-1)
                row += 1
        return out

    def queries(self, spread: float = 2.0) -> torch.Tensor:
        """Random q for all requests' tokens of this step."""
        total = sum(request.queries for request in self.requests)
        return self.random(total, self.shape.heads * self.shape.head_dim) * spread
