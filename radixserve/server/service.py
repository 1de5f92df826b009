"""What all handlers share: the engine's client, the text side of the model, callers, limits and measurements."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field

from radixserve.chat.format import ChatFormat
from radixserve.chat.history import GeneratedHistory
from radixserve.engine.client import EngineClient, EngineInfo, Job
from radixserve.engine.intake import Limits, check_priority
from radixserve.errors import EngineClosed, InvalidRequest, QueueFull, RequestFailed
from radixserve.messages import FinishReason, GenerationChunk, GenerationOutput, Pooling, SamplingParams
from radixserve.model.text import TextModel
from radixserve.server.callers import Caller, Callers
from radixserve.server.logs import request_facts
from radixserve.server.metrics import Metrics
from radixserve.server.openai.responses_store import ResponseStore
from radixserve.server.options import ServerOptions
from radixserve.server.probe import Probe
from radixserve.server.schema_checker import SchemaChecker

_LATELY_S = 30.0


@dataclass(slots=True, eq=False)
class Ticket:
    """One API request while it runs.

    ``rids``: the engine's names of its prompts; ``names``: what the client may call it or one of its prompts by, each with
    the rids that are meant.
    """

    caller: Caller
    rids: list[str]
    names: dict[str, list[str]]
    began: float = field(default_factory=time.perf_counter)
    waiting: set[int] = field(default_factory=set)
    timed_out: bool = False


class Service:
    """One served model. ``client`` has been started."""

    def __init__(
        self, client: EngineClient, text: TextModel, options: ServerOptions, *, secret: bytes | None = None
    ) -> None:
        self.client = client
        self.text = text
        self.options = options
        self.callers = Callers(options.api_key, options.admin_key, secret)
        self.metrics = Metrics()
        self.created = int(time.time())
        self.names = options.served_model_name or (client.info.model,)
        self.limits: Limits = client.info.limits
        history = None if options.retokenize_history else GeneratedHistory(text.tokenizer)
        self.chat = ChatFormat(text.chat_template, text.tokenizer, history=history)
        self.responses = ResponseStore(options.stored_responses)
        self.ready = False
        self.last_token = 0.0
        self.probe = Probe(client)
        self.schema_checker = SchemaChecker()
        self._tickets: set[Ticket] = set()
        # By key id and name: two tenants may use the same name and never learn of it.
        self._named: dict[tuple[str, str], list[str]] = {}
        self._waiting = 0
        self._pace = _Pace()

    @property
    def info(self) -> EngineInfo:
        """Facts about the engine."""
        return self.client.info

    @property
    def name(self) -> str:
        """The model's name as answers show it."""
        return self.names[0]

    @property
    def fingerprint(self) -> str:
        """OpenAI's ``system_fingerprint``: the same as long as model and arithmetic are."""
        return f"fp_{self.info.fingerprint[:10]}"

    @property
    def body_limit(self) -> int:
        """Largest request body in bytes."""
        return self.options.max_body_mb << 20

    @property
    def num_active(self) -> int:
        """Requests that run or wait."""
        return len(self._tickets)

    def check_model(self, name: str | None) -> None:
        """Raise `InvalidRequest` unless ``name`` is a served one; None means the one there is."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            raise InvalidRequest("model", f"{name[:200]!r} is not served here; {served} is", "model_not_found")

    # ---------------------------------------------------------------- generate

    def jobs(
        self,
        caller: Caller,
        prompts: Sequence[list[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        priority: int | None = None,
        cache_salt: str | None = None,
        explain: bool | None = None,
        pooling: Pooling | None = None,
        heal: bool | None = None,
    ) -> list[Job]:
        """One job for each of the prompts, in the caller's namespace; ``sampling`` is for all or one for each.

        Raises `InvalidRequest`.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        salt = self.callers.salt(caller, cache_salt)
        checked = check_priority(0 if priority is None else priority)
        return [
            Job(
                rid=uuid.uuid4().hex,
                token_ids=prompt,
                sampling=params,
                priority=checked,
                salt=salt,
                explain=bool(explain),
                pooling=pooling,
                heal=bool(heal),
            )
            for prompt, params in zip(prompts, each, strict=True)
        ]

    async def generate(
        self, caller: Caller, name: str, jobs: Sequence[Job], *, names: Sequence[str] = ()
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Run the jobs and yield their chunks; closing the iterator aborts what still runs.

        ``name`` is what the client calls them together, ``names`` what it calls each.

        Raises `InvalidRequest` (too many wait, a job is refused, time is up), `RequestFailed` for a job that failed
        while it ran, `EngineClosed`.
        """
        ticket = self._admit(caller, name, jobs, names)
        chunks = self.client.generate(jobs)
        timer = self._start_timer(ticket)
        deliveries: dict[tuple[int, int], float] = {}
        try:
            async for chunk in chunks:
                self._observe(ticket, chunk, deliveries)
                if chunk.finish_reason is FinishReason.ABORT and ticket.timed_out:
                    limit = self.options.request_timeout_s
                    raise InvalidRequest(None, f"the request took longer than {limit:g} s", "request_timeout")
                if chunk.output is not None and chunk.output.error is not None:
                    raise _failure(name, chunk.output.error, chunk.output.error_param)
                yield chunk
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting -= len(ticket.waiting)
            self._tickets.discard(ticket)
            for known in ticket.names:
                self._named.pop((caller.key_id, known), None)
            await chunks.aclose()

    async def collect(
        self, caller: Caller, name: str, jobs: Sequence[Job], *, names: Sequence[str] = ()
    ) -> list[GenerationOutput]:
        """The outputs of the jobs, in their order. Raises as `generate` does."""
        outputs: dict[int, GenerationOutput] = {}
        async with contextlib.aclosing(self.generate(caller, name, jobs, names=names)) as chunks:
            async for chunk in chunks:
                if chunk.output is not None:
                    outputs[chunk.prompt_index] = chunk.output
        return [outputs[index] for index in range(len(jobs))]

    async def abort(self, caller: Caller, names: Iterable[str] | None) -> int:
        """End requests by the names their clients know (None: all of the caller's own; of an admin, of everybody).

        Names of others' requests are unknown to a caller. Returns how many were found.
        """
        if names is None:
            found = [ticket.rids for ticket in self._tickets if caller.admin or ticket.caller.key_id == caller.key_id]
        elif caller.admin:
            wanted = set(names)
            found = [rids for (_, name), rids in self._named.items() if name in wanted]
        else:
            found = [rids for name in set(names) if (rids := self._named.get((caller.key_id, name))) is not None]
        await self.client.abort([rid for rids in found for rid in rids])
        return len(found)

    async def abort_all(self) -> None:
        """End every request: the server stops."""
        await self.client.abort([rid for ticket in self._tickets for rid in ticket.rids])

    def _admit(self, caller: Caller, name: str, jobs: Sequence[Job], names: Sequence[str]) -> Ticket:
        room = self.options.max_queued_requests
        if len(jobs) > room:
            # It would never fit, so nobody should be told to come back with it.
            raise InvalidRequest(
                None, f"{len(jobs)} prompts in one request, but at most {room} may wait", "batch_too_large"
            )
        if self._waiting + len(jobs) > room:
            raise QueueFull(self._waiting, self._pace.seconds_until(self._waiting))
        called = {each: [job.rid] for each, job in zip(names, jobs, strict=False)} | {name: [job.rid for job in jobs]}
        for known in called:
            if (caller.key_id, known) in self._named:
                raise InvalidRequest("rid", f"{known!r} is in use")
        ticket = Ticket(caller, [job.rid for job in jobs], called, waiting=set(range(len(jobs))))
        self._tickets.add(ticket)
        self._named |= {(caller.key_id, known): rids for known, rids in called.items()}
        self._waiting += len(jobs)
        return ticket

    def _start_timer(self, ticket: Ticket) -> asyncio.TimerHandle | None:
        if not self.options.request_timeout_s:
            return None

        async def abort() -> None:
            # Where the engine is gone, the request hears of that.
            with contextlib.suppress(EngineClosed):
                await self.client.abort(ticket.rids)

        def expire() -> None:
            ticket.timed_out = True
            aborting.add(task := asyncio.ensure_future(abort()))
            task.add_done_callback(aborting.discard)

        aborting: set[asyncio.Future[None]] = set()
        return asyncio.get_running_loop().call_later(self.options.request_timeout_s, expire)

    def _observe(self, ticket: Ticket, chunk: GenerationChunk, deliveries: dict[tuple[int, int], float]) -> None:
        now = time.perf_counter()
        metrics = self.metrics
        if chunk.prompt_index in ticket.waiting:
            ticket.waiting.discard(chunk.prompt_index)
            self._waiting -= 1
            self._pace.started(now)
        if chunk.token_ids:
            key = (chunk.prompt_index, chunk.index)
            before = deliveries.get(key)
            if before is not None:
                metrics.inter_token.observe(now - before)
            else:
                metrics.time_to_first_token.observe(now - ticket.began)
            deliveries[key] = now
            self.last_token = now
        if chunk.output is not None:
            output = chunk.output
            metrics.end_to_end.observe(now - ticket.began)
            metrics.prompt_tokens.inc(output.prompt_tokens)
            metrics.cached_tokens.inc(output.cached_tokens)
            metrics.output_tokens.inc(output.completion_tokens)
            for sample in output.all_samples:
                metrics.requests.labels(str(sample.finish_reason)).inc()
            self._note(ticket, output)

    def _note(self, ticket: Ticket, output: GenerationOutput) -> None:
        """Add a finished prompt to the request's log line; its text only where the operator asked for that."""
        facts = request_facts.get()
        if facts is None:
            return
        facts["request"] = next(iter(ticket.names))
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            facts[name] = facts.get(name, 0) + getattr(output, name)
        if self.options.log_prompts:
            facts.setdefault("prompts", []).append(self.text.tokenizer.decode(output.prompt_token_ids))
            facts.setdefault("outputs", []).append([sample.text for sample in output.all_samples])

    # ---------------------------------------------------------------- health

    @property
    def token_lately(self) -> bool:
        """Whether a token came within the last half minute."""
        last = max(self.last_token, self.probe.last_token)
        return last > 0 and time.perf_counter() - last < _LATELY_S


class _Pace:
    """How fast requests get their turn, to tell a refused one when to come back."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._interval = 0.1

    def started(self, now: float) -> None:
        """A request got its first token."""
        if self._last is not None:
            self._interval += 0.1 * (min(now - self._last, 10.0) - self._interval)
        self._last = now

    def seconds_until(self, waiting: int) -> int:
        """Whole seconds until about half of those that wait had their turn; between 1 and 60."""
        return max(1, min(60, round(0.5 * waiting * self._interval)))


def _failure(name: str, error: str, param: str | None) -> Exception:
    """What a request that ended with ``error`` raises: what its own ``param`` led to is its own fault."""
    return RequestFailed(name, error) if param is None else InvalidRequest(param, error, "limit_exceeded")


def new_id(prefix: str) -> str:
    """A name that nobody guesses."""
    return f"{prefix}{uuid.uuid4().hex}"
