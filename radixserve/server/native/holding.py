"""``POST /hold`` and ``POST /release``: prefixes that stay in the cache for a while.

A hold is a hint: quotas and pressure may leave less of it or nothing, and no answer depends on it.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.client import Job
from radixserve.errors import InvalidRequest
from radixserve.messages import FinishReason, SamplingParams, Timings
from radixserve.server import bodies
from radixserve.server.callers import Caller
from radixserve.server.errors import JSONResponse
from radixserve.server.native.generate_fields import check_rid
from radixserve.server.openai.prompts import parse_prompts
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service, new_id
from radixserve.server.streaming import while_connected

MAX_IDS = 10_000
LONGEST_S = 1e9
_PROMPT_ONLY = SamplingParams(max_tokens=0, temperature=0)


class HoldRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The prefix, in ``text`` or ``input_ids``. ``ttl_s``: for how many seconds at most; the server's own limit may be lower.

    ``rid``: a name to abort the request by, while the prefix is being computed.
    """

    text: str | None = None
    input_ids: list[int] | None = None
    ttl_s: float | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None


class HoldResult(msgspec.Struct, kw_only=True):
    """``id``: to release it by. ``held_tokens``: how many of the ``prompt_tokens`` are held, 0 for none; the hold ends in ``expires_in_s``
    seconds by itself. ``cached_tokens`` were there, ``computed_tokens`` had to be computed.
    """

    id: str
    held_tokens: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    expires_in_s: float
    timings: Timings


class ReleaseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which holds to end. Those that have ended, and others', are left alone."""

    ids: list[str]


class ReleaseResult(msgspec.Struct, kw_only=True):
    """``released``: how many holds there were."""

    released: int


async def hold(request: Request) -> Response:
    """Compute a prefix where it is not cached, and keep it."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, HoldRequest, service.body_limit)
    name = fields.rid or new_id("hold-")
    job = await off_loop(request, _job, fields, service, caller)
    return JSONResponse(await while_connected(request.receive, _held(service, caller, name, job)))


async def release(request: Request) -> Response:
    """End holds."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, ReleaseRequest, service.body_limit)
    if len(fields.ids) > MAX_IDS:
        raise InvalidRequest("ids", f"holds {len(fields.ids)} ids, at most {MAX_IDS} are taken")
    own = [rid for rid in (service.callers.signed(caller, hold_id) for hold_id in fields.ids) if rid is not None]
    return JSONResponse(ReleaseResult(released=await service.client.release(own)))


def _job(fields: HoldRequest, service: Service, caller: Caller) -> Job:
    if (fields.text is None) == (fields.input_ids is None):
        raise InvalidRequest("text", "exactly one of text and input_ids must be given", "missing_required_parameter")
    if fields.ttl_s is not None and not 0 < fields.ttl_s <= LONGEST_S:
        raise InvalidRequest("ttl_s", f"must be above 0 and at most {LONGEST_S:g}, not {fields.ttl_s}")
    if fields.rid is not None:
        check_rid(fields.rid)
    value, place = (fields.text, "text") if fields.input_ids is None else (fields.input_ids, "input_ids")
    (prompt,) = parse_prompts(value or "", place, service, _PROMPT_ONLY)
    (job,) = service.jobs(
        caller,
        [prompt.token_ids],
        _PROMPT_ONLY,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
    )
    return msgspec.structs.replace(job, hold_s=fields.ttl_s or LONGEST_S)


async def _held(service: Service, caller: Caller, name: str, job: Job) -> HoldResult:
    (output,) = await service.collect(caller, name, [job])
    if output.hold is None or output.finish_reason is FinishReason.ABORT:
        raise InvalidRequest(None, "the request was aborted", "aborted")
    return HoldResult(
        id=service.callers.sign(caller, job.rid),
        held_tokens=output.hold.tokens,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=output.cached_tokens,
        computed_tokens=output.hold.computed_tokens,
        expires_in_s=output.hold.expires_in_s,
        timings=output.timings,
    )
