"""What a server needs of an engine, wherever that runs: the seam between HTTP and the step loop.

Three forms: in this process (`radixserve.engine.local_client`), in a process of its own behind sockets
(`radixserve.engine.socket_client`), and a scripted fake in the tests. None of them loads torch here: `EngineInfo` says
everything about the model that a server has to know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec

from radixserve.engine.intake import Limits
from radixserve.messages import Explanation, GenerationChunk, Pooling, SamplingParams


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a running engine that do not change.

    ``model``: what was asked for; ``source``: the file or directory it came from. ``runner``: which kernels run, in what
    arithmetic, and sizes in bytes. ``options``: every engine option in effect, by its flat name. ``broken_promises``: why
    bits may depend on the batch on this machine. ``hidden_size``: length of an embedding.
    """

    model: str
    source: str
    architecture: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    context_length: int
    num_blocks: int
    block_size: int
    max_running: int
    eos_ids: tuple[int, ...]
    default_sampling: SamplingParams
    runner: dict[str, str | int]
    options: dict[str, Any]
    broken_promises: list[str] = []

    @property
    def limits(self) -> Limits:
        """The limits that a request is checked against before it is sent."""
        return Limits(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_running=self.max_running,
        )


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt on its way to the engine.

    ``salt`` is the namespace's, as the cache takes it. ``explain``: the output says why the prompt hit no more.
    ``pooling``: instead of text, the output carries the pooled final hidden states of the prompt (``sampling.max_tokens``
    is 0 then). ``heal``: the prompt's last tokens may be replaced by others that begin with their text.
    ``hold_s``: once the prompt is computed it is held in the cache under the job's rid for at most so many seconds
    (``sampling.max_tokens`` is 0 then); the output says what is.
    """

    rid: str
    token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    salt: bytes = b""
    explain: bool = False
    pooling: Pooling | None = None
    heal: bool = False
    hold_s: float | None = None


class CacheNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of the radix tree as inspection shows it.

    ``token_ids``: of its edge, cut to what was asked for; ``num_tokens``: of the whole edge. ``locks``: leases and holds on it or
    below; ``holds``: the holds among them.
    ``idle_s``: seconds since it was last used. ``salt``: the namespace it is filed under, shown to the operator only.
    """

    token_ids: list[int]
    num_tokens: int
    num_blocks: int
    locks: int
    idle_s: float
    hits: int
    pending: bool = False
    tail: bool = False
    salt: bytes | None = None
    children: list[CacheNode] = []
    holds: int = 0


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """The tree below one namespace (or all of them), level by level from the top.

    ``num_*``: of the nodes shown, their whole edges. ``left_out``: subtrees that the view's bounds leave no room for.
    """

    nodes: list[CacheNode]
    num_nodes: int
    num_tokens: int
    num_blocks: int
    left_out: int = 0


class EngineClient(Protocol):
    """An engine that runs somewhere. All methods belong to one event loop.

    After the engine is gone every call raises `EngineClosed`, and so do the streams that were open.
    """

    @property
    def info(self) -> EngineInfo:
        """Facts about the engine; known once `start` has returned."""

    @property
    def failure(self) -> str | None:
        """Why the engine is gone; None while it lives or after an orderly `close`."""

    async def start(self) -> None:
        """Wait until the engine can take requests. Raises `EngineClosed` with the reason where it never will."""

    async def close(self) -> None:
        """End what still runs and let the engine go. Safe to call twice."""

    async def wait_failed(self) -> str:
        """Return the reason once the engine is gone without having been closed; wait until then."""

    def generate(self, jobs: Sequence[Job]) -> AsyncGenerator[GenerationChunk, None]:
        """Queue the jobs together, all or none, and yield their chunks as they come.

        ``chunk.prompt_index`` tells which job a chunk belongs to. The jobs are queued when iteration begins: the first
        ``__anext__`` raises `InvalidRequest` if one is refused. Closing the iterator aborts what still runs.
        """

    async def abort(self, rids: Sequence[str]) -> None:
        """End generations; unknown and finished ones are left alone."""

    async def explain(self, token_ids: list[int], *, salt: bytes, see_all: bool = False) -> Explanation:
        """Why a prompt would not hit more of the cache than it would now."""

    async def flush(self, salt: bytes | None = None) -> int:
        """Drop the KV of one namespace (None: of all) that no request uses; returns the number of blocks."""

    async def release(self, ids: Sequence[str]) -> int:
        """End holds, by the rids of the jobs that took them; unknown ones are left alone. Returns how many there were."""

    async def stats(self) -> dict[str, Any]:
        """Gauges and counters of cache, scheduler and steps."""

    async def cache_view(self, *, salt: bytes | None, max_nodes: int = 1000, max_tokens: int = 64) -> CacheView:
        """The tree of one namespace and the public prefixes above it (None: everything)."""

    async def check(self) -> list[str]:
        """Recount the cache's books; every difference found, empty if they are right."""
