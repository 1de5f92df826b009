"""``POST /v1/chat/completions``: answer a conversation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixserve.chat.conversation import parse_conversation
from radixserve.chat.tools import parse_tools
from radixserve.messages import GenerationOutput, TokenLogprob
from radixserve.server import bodies
from radixserve.server.callers import Caller
from radixserve.server.errors import JSONResponse
from radixserve.server.openai import answers
from radixserve.server.openai.chat_answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    call_entries,
    delta_of,
)
from radixserve.server.openai.chat_fields import ChatRequest, check_known, output_limit, template_options
from radixserve.server.openai.chat_turn import ChatTurn, TurnOptions, TurnPiece, TurnSample
from radixserve.server.openai.constraints import constraint_field
from radixserve.server.openai.sampling import sampling_of
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service, new_id
from radixserve.server.streaming import DONE, event, start, while_connected


async def chat_completions(request: Request) -> Response:
    """Handle one request."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, ChatRequest, service.body_limit)
    answer = await off_loop(request, _Answer, service, caller, fields)
    if fields.stream:
        return await start(answer.events(), request.receive, service.options.keepalive_s)
    return JSONResponse(await while_connected(request.receive, answer.whole()))


class _Answer:
    """One request, checked, and how its answer is written down."""

    def __init__(self, service: Service, caller: Caller, fields: ChatRequest) -> None:
        service.check_model(fields.model)
        check_known(fields)
        defaults = service.info.default_sampling
        limit = output_limit(fields)
        sampling = sampling_of(
            fields,
            defaults,
            max_tokens=defaults.max_tokens if limit is None else limit,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        )
        toolbox = parse_tools(
            fields.tools,
            fields.tool_choice,
            fields.parallel_tool_calls,
            functions=fields.functions,
            function_call=fields.function_call,
        )
        template = service.text.chat_template
        options = TurnOptions(
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=bool(fields.continue_final_message),
            template_options=template_options(fields, template.source if template is not None else ""),
            content_stops=fields.stop_content_only,
            constraint_field=constraint_field(fields),
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            explain=fields.explain_cache,
        )
        self._service = service
        self._fields = fields
        self._created = int(time.time())
        self._toolbox = toolbox
        self._turn = ChatTurn.prepare(
            service,
            caller,
            fields.request_id or new_id("chatcmpl-"),
            parse_conversation(fields.messages),
            toolbox,
            sampling,
            options,
        )

    # ---------------------------------------------------------------- whole

    async def whole(self) -> ChatCompletion:
        samples, output = await self._turn.collect()
        return ChatCompletion(
            id=self._turn.name,
            created=self._created,
            model=self._service.name,
            choices=[self._choice(index, sample) for index, sample in enumerate(samples)],
            system_fingerprint=self._service.fingerprint,
            **self._summary(output),
        )

    def _choice(self, index: int, sample: TurnSample) -> ChatChoice:
        message = ChatMessage(content=sample.message.content, tool_calls=call_entries(sample.message.tool_calls))
        if sample.message.reasoning is not None:
            message.reasoning_content = sample.message.reasoning
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(sample.logprobs),
            finish_reason=sample.finish_reason,
            matched_stop=sample.stop_reason,
        )

    # ---------------------------------------------------------------- stream

    async def events(self) -> AsyncIterator[bytes]:
        options = self._fields.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        usage: dict[str, Any] = {"usage": None} if wants_usage else {}
        begun: set[int] = set()
        output: GenerationOutput | None = None
        async with contextlib.aclosing(self._turn.pieces()) as pieces:
            async for piece in pieces:
                if piece.index not in begun:
                    begun.add(piece.index)
                    # A forced call has no content, so none is begun.
                    content = None if self._toolbox.forced else ""
                    yield self._event(
                        ChunkChoice(index=piece.index, delta=Delta(role="assistant", content=content)), usage
                    )
                for choice in self._choices(piece):
                    yield self._event(choice, usage)
                output = piece.output or output
        if wants_usage and output is not None:
            yield event(self._chunk([], self._summary(output)))
        yield DONE

    def _choices(self, piece: TurnPiece) -> list[ChunkChoice]:
        """One for each event, then the end; the logprobs stand with the first of them."""
        choices = [ChunkChoice(index=piece.index, delta=delta_of(part)) for part in piece.events]
        if piece.finish_reason is not None:
            end = ChunkChoice(index=piece.index, delta=Delta(), finish_reason=piece.finish_reason)
            if piece.stop_reason is not None:
                end.matched_stop = piece.stop_reason
            choices.append(end)
        if choices and piece.logprobs:
            choices[0].logprobs = self._logprobs(piece.logprobs)
        return choices

    def _event(self, choice: ChunkChoice, more: dict[str, Any]) -> bytes:
        return event(self._chunk([choice], more))

    def _chunk(self, choices: list[ChunkChoice], more: dict[str, Any]) -> ChatChunk:
        service = self._service
        return ChatChunk(
            id=self._turn.name,
            created=self._created,
            model=service.name,
            choices=choices,
            system_fingerprint=service.fingerprint,
            **more,
        )

    # ---------------------------------------------------------------- parts

    def _summary(self, output: GenerationOutput) -> dict[str, Any]:
        """What is known of a request at its end."""
        turn = self._turn
        summary: dict[str, Any] = {
            "usage": answers.usage([output], reused=turn.prompt.reused_output_tokens, reasoning=turn.reasoning_tokens),
            **answers.extras([output]),
        }
        if self._fields.prompt_logprobs is not None:
            tokenizer = self._service.text.tokenizer
            summary["prompt_logprobs"] = answers.prompt_logprobs(tokenizer, output.prompt_logprobs) or []
        return summary

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self._fields.logprobs:
            return None
        return ChatLogprobs(content=answers.logprob_entries(self._service.text.tokenizer, entries))
