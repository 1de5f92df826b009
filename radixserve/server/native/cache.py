"""The radix tree to look at, and why a prompt would hit or miss."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.client import CacheNode
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams
from radixserve.model.tokenizer import Tokenizer
from radixserve.server import bodies
from radixserve.server.callers import PUBLIC_SALT
from radixserve.server.errors import JSONResponse
from radixserve.server.native.conversations import ConversationFields
from radixserve.server.native.parameters import parameters
from radixserve.server.openai.answers import CacheReport, cache_report
from radixserve.server.openai.prompts import parse_prompts
from radixserve.server.requests import admin_of, caller_of, off_loop, service_of
from radixserve.server.service import Service

MAX_NODES = 10_000
MAX_TOKENS = 4096


class CacheQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of the tree, and how much of it. ``max_tokens``: of each node."""

    all: bool = False
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1000
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 64
    cache_salt: str | None = None


class Node(msgspec.Struct, kw_only=True):
    """A node: ``num_tokens`` on its edge, the first of them as ``token_ids`` and ``text``, in ``num_blocks`` blocks.

    ``locks``: running requests and holds that need it; ``holds``: the
    holds among them. ``idle_s``: since its last use. ``hits``: requests that were served from it.
    ``pending``: it is being computed. ``tail``: its last block is not full. ``namespace``: whose it is, without telling the
    key.
    """

    token_ids: list[int]
    text: str
    num_tokens: int
    num_blocks: int
    locks: int
    holds: int
    idle_s: float
    hits: int
    pending: bool
    tail: bool
    namespace: str | UnsetType
    children: list[Node]


class Tree(msgspec.Struct, kw_only=True):
    """The tree, level by level. ``left_out``: subtrees that the bounds leave no room for."""

    nodes: list[Node]
    num_nodes: int
    num_tokens: int
    num_blocks: int
    left_out: int
    block_size: int


class ExplainRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """A prompt as text, token ids or messages. With the admin key the answer tells of other namespaces too."""

    prompt: str | list[Any] | None = None
    cache_salt: str | None = None


class ExplainResult(CacheReport, kw_only=True):
    """``token_ids``: of the prompt, cut after the one at ``position``."""

    token_ids: list[int]


async def cache_tree(request: Request) -> Response:
    """The caller's own namespace and the public prefixes above it; everything with ``all`` (admin)."""
    service, caller = service_of(request), caller_of(request)
    query = parameters(request, CacheQuery)
    if query.all:
        if query.cache_salt is not None:
            raise InvalidRequest("cache_salt", "all namespaces are shown with all")
        admin_of(request)
    salt = None if query.all else service.callers.salt(caller, query.cache_salt)
    view = await service.client.cache_view(salt=salt, max_nodes=query.max_nodes, max_tokens=query.max_tokens)
    tokenizer = service.text.tokenizer
    return JSONResponse(
        Tree(
            nodes=[_node(node, tokenizer) for node in view.nodes],
            num_nodes=view.num_nodes,
            num_tokens=view.num_tokens,
            num_blocks=view.num_blocks,
            left_out=view.left_out,
            block_size=service.info.block_size,
        )
    )


async def explain(request: Request) -> Response:
    """Why the prompt would be served from the cache so far and no farther."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, ExplainRequest, service.body_limit)
    salt = service.callers.salt(caller, fields.cache_salt)
    token_ids = await off_loop(request, _prompt, fields, service, salt)
    explanation = await service.client.explain(token_ids, salt=salt, see_all=caller.admin)
    report = cache_report(explanation)
    return JSONResponse(
        ExplainResult(**msgspec.structs.asdict(report), token_ids=token_ids[: explanation.position + 1])
    )


def _prompt(fields: ExplainRequest, service: Service, salt: bytes) -> list[int]:
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("prompt", "exactly one of prompt and messages must be given", "missing_required_parameter")
    value, name = fields.prompt, "prompt"
    if value is None:
        value, name = fields.render(service, salt).token_ids, "messages"
    else:
        fields.check_unused(name)
    prompts = parse_prompts(value, name, service, SamplingParams(max_tokens=0))
    if len(prompts) != 1:
        raise InvalidRequest("prompt", "must be one prompt")
    return prompts[0].token_ids


def _node(node: CacheNode, tokenizer: Tokenizer) -> Node:
    data = b"".join(map(tokenizer.token_bytes, node.token_ids))
    return Node(
        token_ids=node.token_ids,
        text=data.decode("utf-8", "replace"),
        num_tokens=node.num_tokens,
        num_blocks=node.num_blocks,
        locks=node.locks,
        holds=node.holds,
        idle_s=node.idle_s,
        hits=node.hits,
        pending=node.pending,
        tail=node.tail,
        namespace=_namespace(node.salt),
        children=[_node(child, tokenizer) for child in node.children],
    )


def _namespace(salt: bytes | None) -> str | UnsetType:
    if salt is None:
        return UNSET
    return "public" if salt == PUBLIC_SALT else salt.hex()[:16]
