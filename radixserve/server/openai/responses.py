"""``POST /v1/responses``: answer a conversation, in OpenAI's newer shape, and keep the answer to go on from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixserve.chat.tools import Toolbox, parse_tools
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.messages import GenerationOutput, SamplingParams
from radixserve.server import bodies
from radixserve.server.callers import Caller
from radixserve.server.errors import JSONResponse, describe
from radixserve.server.openai import answers
from radixserve.server.openai.chat_turn import ChatTurn, TurnOptions, TurnPiece
from radixserve.server.openai.responses_answers import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseReasoning,
    ResponseText,
    ResponseUsage,
)
from radixserve.server.openai.responses_fields import (
    ResponsesRequest,
    check_known,
    response_constraint,
    template_options,
    text_constraint,
)
from radixserve.server.openai.responses_items import Item, conversation_of, parse_items
from radixserve.server.openai.responses_output import OutputWriter
from radixserve.server.openai.responses_store import StoredResponse
from radixserve.server.openai.sampling import sampling_of
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service, new_id
from radixserve.server.streaming import named_event, start, while_connected

# What is called otherwise here than in chat completions and in the engine.
_NAMES = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
}
_STATUS = {"length": "incomplete", "abort": "cancelled"}


async def create_response(request: Request) -> Response:
    """Handle one request."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, ResponsesRequest, service.body_limit)
    answer = await off_loop(request, _Answer, service, caller, fields)
    if fields.stream:
        return await start(answer.events(), request.receive, service.options.keepalive_s)
    return JSONResponse(await while_connected(request.receive, answer.whole()))


class _Answer:
    """One request, checked, and how its answer is written down."""

    def __init__(self, service: Service, caller: Caller, fields: ResponsesRequest) -> None:
        service.check_model(fields.model)
        check_known(fields)
        self._service = service
        self._fields = fields
        self._id = new_id("resp_")
        self._created = int(time.time())
        self._salt = service.callers.salt(caller, fields.cache_salt)
        self._stores = self._wants_store()
        self._toolbox = parse_tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
        self._status = "in_progress"
        self._matched_stop: str | int | UnsetType = UNSET
        self._places: dict[str, str] = {}
        self._input = self._all_input()
        tokenizer = service.text.tokenizer
        self._writer = OutputWriter(
            (lambda logprobs: answers.logprob_entries(tokenizer, logprobs)) if fields.wants_logprobs else None
        )
        try:
            self._turn = self._prepared(caller)
        except InvalidRequest as error:
            raise self._renamed(error) from None

    def _wants_store(self) -> bool:
        enabled = self._service.responses.enabled
        if self._fields.store and not enabled:
            raise UnsupportedFeature("store", "this server keeps no responses (stored_responses is 0)")
        return enabled and self._fields.store is not False

    def _all_input(self) -> list[tuple[str, Item]]:
        """Every item that the model is shown, earlier responses first, with the name of its place in the request."""
        store, fields = self._service.responses, self._fields
        before: tuple[Item, ...] = ()
        if fields.previous_response_id is not None:
            previous = store.get(self._salt, fields.previous_response_id)
            if previous is None:
                raise InvalidRequest(
                    "previous_response_id",
                    f"no response {fields.previous_response_id[:100]!r} is stored here",
                    "not_found",
                )
            before = (*previous.input, *previous.output)
        elif fields.input is None:
            raise InvalidRequest("input", "is required", "missing_required_parameter")
        given = () if fields.input is None else fields.input
        items = parse_items(given, before=before, find=lambda name: store.item(self._salt, name))
        if not items and not before:
            raise InvalidRequest("input", "must not be empty")
        names = ["input"] if isinstance(given, str) else [f"input[{index}]" for index in range(len(items))]
        return [*(("previous_response_id", item) for item in before), *zip(names, items, strict=True)]

    def _prepared(self, caller: Caller) -> ChatTurn:
        service, fields = self._service, self._fields
        conversation, places = conversation_of(fields.instructions, self._input)
        self._places.update(places)
        template = service.text.chat_template
        options = TurnOptions(
            template_options=template_options(fields, template.source if template is not None else ""),
            content_stops=fields.stop_content_only,
            constraint_field=response_constraint(fields),
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            explain=fields.explain_cache,
        )
        name = fields.request_id or self._id
        return ChatTurn.prepare(service, caller, name, conversation, self._toolbox, self._sampling(), options)

    def _sampling(self) -> SamplingParams:
        fields, defaults = self._fields, self._service.info.default_sampling
        limit = fields.max_output_tokens
        sampling = sampling_of(
            fields,
            defaults,
            max_tokens=defaults.max_tokens if limit is None else limit,
            logprobs=(fields.top_logprobs or 0) if fields.wants_logprobs else None,
        )
        constraint = text_constraint(fields)
        if constraint is None:
            return sampling
        if sampling.constraint not in (None, constraint):
            raise InvalidRequest(
                "text.format", "asks for something else than another field: one constraint is enforced"
            )
        return msgspec.structs.replace(sampling, constraint=constraint)

    # ---------------------------------------------------------------- whole

    async def whole(self) -> ResponseObject:
        """The answer when it has ended."""
        output: GenerationOutput | None = None
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                self._write(piece)
                output = piece.output or output
        return self._ended(output)

    # ---------------------------------------------------------------- stream

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as it comes. What goes wrong before its first piece is raised, and told in the stream after that."""
        begun = False
        output: GenerationOutput | None = None
        try:
            async with contextlib.aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    if not begun:
                        begun = True
                        for kind in ("response.created", "response.in_progress"):
                            yield self._named(self._writer.event(kind, response=self._response()))
                    for event in self._write(piece):
                        yield self._named(event)
                    output = piece.output or output
            response = self._ended(output)
            kind = "completed" if response.status == "completed" else "incomplete"
            yield self._named(self._writer.event(f"response.{kind}", response=response))
        except Exception as error:
            if not begun:
                raise
            for event in self._failure(error):
                yield self._named(event)

    def _failure(self, error: Exception) -> list[ResponseEvent]:
        """Two events: one that clients raise, and the end of the response."""
        _, detail = describe(error)
        self._status = "failed"
        # OpenAI documents the flat fields and sends the nested ones; clients look for either.
        told = self._writer.event("error", code=detail.code, message=detail.message, param=detail.param, error=detail)
        response = self._response(error=ResponseError(code="server_error", message=detail.message))
        return [told, self._writer.event("response.failed", response=response)]

    @staticmethod
    def _named(event: ResponseEvent) -> bytes:
        return named_event(event.type, event)

    # ---------------------------------------------------------------- parts

    async def _pieces(self) -> AsyncGenerator[TurnPiece, None]:
        try:
            async with contextlib.aclosing(self._turn.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except InvalidRequest as error:
            raise self._renamed(error) from None

    def _write(self, piece: TurnPiece) -> list[ResponseEvent]:
        events = self._writer.write(piece.events, piece.logprobs)
        if piece.finish_reason is not None:
            self._status = _STATUS.get(piece.finish_reason, "completed")
            self._matched_stop = UNSET if piece.stop_reason is None else piece.stop_reason
            events += self._writer.finish(complete=self._status == "completed")
        return events

    def _ended(self, output: GenerationOutput | None) -> ResponseObject:
        """The whole response, which is kept from now on."""
        assert output is not None, "the last piece brings the output"
        response = self._response(
            usage=self._usage(output),
            completed_at=int(time.time()) if self._status == "completed" else None,
            matched_stop=self._matched_stop,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if self._status == "incomplete" else None,
            **answers.extras([output]),
        )
        if self._stores:
            before = tuple(item for _, item in self._input)
            written = parse_items(msgspec.to_builtins(self._writer.items), param="output", before=before)
            body = msgspec.json.encode(response)
            self._service.responses.put(self._salt, StoredResponse(self._id, body, before, tuple(written)))
        return response

    def _usage(self, output: GenerationOutput) -> ResponseUsage:
        writes = self._service.info.options.get("prefix_cache") != "off"
        return ResponseUsage(
            input_tokens=output.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=output.cached_tokens,
                cache_write_tokens=output.prompt_tokens - output.cached_tokens if writes else 0,
            ),
            output_tokens=output.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._turn.reasoning_tokens),
            total_tokens=output.prompt_tokens + output.completion_tokens,
            reused_output_tokens=self._turn.prompt.reused_output_tokens,
        )

    def _response(self, **ended: Any) -> ResponseObject:
        fields, sampling = self._fields, self._turn.sampling
        reasoning = fields.reasoning
        text = fields.text.format if fields.text is not None else None
        return ResponseObject(
            id=self._id,
            created_at=self._created,
            status=self._status,
            model=self._service.name,
            output=list(self._writer.items),
            instructions=fields.instructions,
            previous_response_id=fields.previous_response_id,
            max_output_tokens=fields.max_output_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_logprobs=fields.top_logprobs or 0,
            text=ResponseText(format=text or {"type": "text"}),
            reasoning=ResponseReasoning(effort=reasoning.effort if reasoning is not None else None, summary=None),
            tools=_shown_tools(self._toolbox),
            tool_choice="auto" if fields.tool_choice is None else fields.tool_choice,
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            store=self._stores,
            metadata=fields.metadata or {},
            user=fields.user,
            safety_identifier=fields.safety_identifier,
            prompt_cache_key=fields.prompt_cache_key,
            **ended,
        )

    def _renamed(self, error: InvalidRequest) -> InvalidRequest:
        """``error``, by the name of this request's field that chat completions, or the engine, call otherwise."""
        param = error.param or ""
        head = param.partition(".")[0].partition("[")[0]
        if head == "messages":
            error.param = self._places.get(param, "input")
        elif param:
            error.param = _NAMES.get(param, param)
        return error


def _shown_tools(toolbox: Toolbox) -> list[dict[str, Any]]:
    """The request's tools in the flat shape."""
    unset = {"description": None, "parameters": None}
    return [
        {"type": "function", **unset, **tool.definition["function"], "strict": tool.strict} for tool in toolbox.tools
    ]
