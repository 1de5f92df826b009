"""A log of prompts: one JSON value a line, in any of the shapes that requests have.

A text or a list of token ids is a prompt. An object is a request's body: OpenAI's chat (``messages``) or completions
(``prompt``), SGLang's ``/generate`` (``text``, ``input_ids``), or a line of a batch file with such a ``body``. ``output`` (a text)
and ``output_ids`` may stand beside a body's fields: what came of it. Log lines of our own server are read where they hold
``prompts`` (its option ``log_prompts``), and skipped where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from radixserve.chat.conversation import Conversation, parse_conversation
from radixserve.chat.tools import Toolbox, parse_tools
from radixserve.engine.intake import Limits, check_priority, check_salt
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.messages import SamplingParams
from radixserve.model.text import TextModel
from radixserve.server import bodies
from radixserve.server.native.generate_fields import GenerateRequest
from radixserve.server.native.sampling import GenerateSampling
from radixserve.server.native.sampling import sampling_of as generate_sampling_of
from radixserve.server.openai.chat_fields import ChatRequest, check_known, output_limit, template_options
from radixserve.server.openai.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from radixserve.server.openai.sampling import sampling_of

T = TypeVar("T")

_BATCH_FIELDS = {"custom_id", "method", "url", "body", "output", "output_ids"}


@dataclass(frozen=True, slots=True)
class ChatBody:
    """What of a chat request makes its prompt."""

    conversation: Conversation
    toolbox: Toolbox
    add_generation_prompt: bool
    continue_final_message: bool
    template_options: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCall:
    """One prompt of a log. ``place``: where it stands.

    ``prompt``: its tokens, or of a chat what they are made of when its turn comes. ``output``: of each sample what it became, as a text
    or as tokens, where the log tells. ``needs``: the call whose answer it quotes, by its index.
    """

    place: str
    prompt: list[int] | ChatBody
    sampling: SamplingParams
    salt: bytes
    priority: int = 0
    output: tuple[str | tuple[int, ...], ...] | None = None
    needs: int | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """``skipped``: lines of a server's log that hold no prompts."""

    calls: tuple[LogCall, ...]
    skipped: int = 0


def read_log(path: Path, text: TextModel, limits: Limits) -> Log:
    """The calls in a file, in their order. Raises `InvalidRequest` naming the line and the field that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("log", f"{path} cannot be read: {error}") from None
    reader = _Reader(text, limits)
    calls: list[LogCall] = []
    skipped = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = list(reader.calls(line, f"line {number}"))
        except InvalidRequest as error:
            raise InvalidRequest(f"line {number}", str(error), error.code) from None
        calls += found
        skipped += not found
    if not calls:
        why = "; a server writes them with --log-prompts" if skipped else ""
        raise InvalidRequest("log", f"{path} holds no prompts{why}", "empty_prompt")
    return Log(tuple(_linked(calls)), skipped)


class _Reader:
    def __init__(self, text: TextModel, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._defaults = text.generation.sampling()

    def calls(self, line: str, place: str) -> Iterator[LogCall]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(None, f"is not JSON: {error}", "invalid_json") from None
        if isinstance(value, str | list):
            yield self._call(place, self._tokens(value, "prompt"), self._completion_sampling(None))
        elif not isinstance(value, dict):
            raise InvalidRequest(None, "must be a text, a list of token ids or an object", "invalid_type")
        elif "logger" in value and "message" in value:
            yield from self._served(value, place)
        elif "body" in value:
            for name in value:
                if name not in _BATCH_FIELDS:
                    raise InvalidRequest(name, "is not a field of a line with a body", "unknown_parameter")
            body = value["body"]
            if not isinstance(body, dict):
                raise InvalidRequest("body", "must be an object", "invalid_type")
            yield from self._body(
                {**body, **{key: value[key] for key in ("output", "output_ids") if key in value}}, place
            )
        else:
            yield from self._body(value, place)

    def _served(self, entry: Mapping[str, Any], place: str) -> Iterator[LogCall]:
        """A line of our server's log: texts that were decoded, so they are encoded again."""
        prompts, outputs = entry.get("prompts", []), entry.get("outputs", [])
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise InvalidRequest(f"prompts[{index}]", "must be a text", "invalid_type")
            samples = outputs[index] if index < len(outputs) else [""]
            sampling = msgspec.structs.replace(self._completion_sampling(None), max_tokens=None, n=max(1, len(samples)))
            tokens = self._text.tokenizer.encode(prompt)
            yield replace(self._call(f"{place}[{index}]", tokens, sampling), output=tuple(map(str, samples)))

    def _body(self, body: dict[str, Any], place: str) -> Iterator[LogCall]:
        body = dict(body)
        output = _output(body)
        if "messages" in body:
            call = self._chat(_decoded(body, ChatRequest), place)
            yield replace(call, output=output)
            return
        if "prompt" in body:
            calls = list(self._completion(_decoded(body, CompletionRequest), place))
        elif "text" in body or "input_ids" in body:
            calls = list(self._generate(_decoded(body, GenerateRequest), place))
        elif "input" in body:
            raise UnsupportedFeature("input", "requests of /v1/responses and /v1/embeddings are not planned")
        else:
            raise InvalidRequest(
                None, "holds none of messages, prompt, text, input_ids and body", "missing_required_parameter"
            )
        if output is not None and len(calls) > 1:
            raise InvalidRequest("output", "may stand beside a single prompt only")
        for call in calls:
            yield replace(call, output=output)

    def _chat(self, fields: ChatRequest, place: str) -> LogCall:
        check_known(fields)
        limit = output_limit(fields)
        sampling = sampling_of(
            fields,
            self._defaults,
            max_tokens=self._defaults.max_tokens if limit is None else limit,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        )
        toolbox = parse_tools(
            fields.tools,
            fields.tool_choice,
            fields.parallel_tool_calls,
            functions=fields.functions,
            function_call=fields.function_call,
        )
        template = self._text.chat_template
        chat = ChatBody(
            parse_conversation(fields.messages),
            toolbox,
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=bool(fields.continue_final_message),
            template_options=template_options(fields, template.source if template is not None else ""),
        )
        return self._call(place, chat, sampling, fields.cache_salt, fields.priority)

    def _completion(self, fields: CompletionRequest, place: str) -> Iterator[LogCall]:
        if fields.suffix:
            raise UnsupportedFeature("suffix", "inserting text before a suffix is not done")
        if fields.best_of is not None and fields.best_of != (fields.n or 1):
            raise UnsupportedFeature("best_of", "only as many samples as n are drawn")
        more: dict[str, Any] = {"logprobs": fields.logprobs}
        if fields.echo and fields.logprobs is not None and fields.prompt_logprobs is None:
            more["prompt_logprobs"] = fields.logprobs
        sampling = self._completion_sampling(fields.max_tokens)
        sampling = sampling_of(fields, sampling, max_tokens=sampling.max_tokens, **more)
        many = isinstance(fields.prompt, list) and not all(type(item) is int for item in fields.prompt)
        for index, prompt in enumerate(fields.prompt if many else [fields.prompt]):
            name = f"prompt[{index}]" if many else "prompt"
            yield self._call(place, self._tokens(prompt, name), sampling, fields.cache_salt, fields.priority)

    def _generate(self, fields: GenerateRequest, place: str) -> Iterator[LogCall]:
        if (fields.text is None) == (fields.input_ids is None):
            raise InvalidRequest(
                "text", "exactly one of text and input_ids must be given", "missing_required_parameter"
            )
        if isinstance(fields.sampling_params, list):
            raise UnsupportedFeature("sampling_params", "a plan takes one for all prompts of a line")
        params = fields.sampling_params or GenerateSampling()
        sampling = generate_sampling_of(params, "sampling_params", self._defaults, self._limits)
        name, value = ("text", fields.text) if fields.text is not None else ("input_ids", fields.input_ids)
        assert value is not None, "one of them is given"
        many = isinstance(value, list) and not all(type(item) is int for item in value)
        prompts: list[Any] = list(value) if many else [value]
        for index, prompt in enumerate(prompts):
            tokens = self._tokens(prompt, f"{name}[{index}]" if many else name)
            yield self._call(place, tokens, sampling, fields.cache_salt, fields.priority)

    def _completion_sampling(self, max_tokens: int | None) -> SamplingParams:
        limit = max_tokens if max_tokens is not None else (self._defaults.max_tokens or DEFAULT_MAX_TOKENS)
        return msgspec.structs.replace(self._defaults, max_tokens=limit)

    def _tokens(self, prompt: object, param: str) -> list[int]:
        if isinstance(prompt, str):
            return self._text.tokenizer.encode(prompt, add_special=True)
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise InvalidRequest(param, "must be a text or a list of token ids", "invalid_type")
        return prompt

    @staticmethod
    def _call(
        place: str,
        prompt: list[int] | ChatBody,
        sampling: SamplingParams,
        salt: str | None = None,
        priority: int | None = None,
    ) -> LogCall:
        return LogCall(
            place=place, prompt=prompt, sampling=sampling, salt=check_salt(salt), priority=check_priority(priority or 0)
        )


def _decoded(body: dict[str, Any], kind: type[T]) -> T:
    return bodies.decode(json.dumps(body).encode(), kind)


def _output(body: dict[str, Any]) -> tuple[str | tuple[int, ...], ...] | None:
    """Take what came of a request off its body."""
    text, ids = body.pop("output", None), body.pop("output_ids", None)
    if text is not None and ids is not None:
        raise InvalidRequest("output", "stands beside output_ids; one of them is enough")
    if ids is not None:
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise InvalidRequest("output_ids", "must be a list of token ids", "invalid_type")
        return (tuple(ids),)
    if text is not None and not isinstance(text, str):
        raise InvalidRequest("output", "must be a text", "invalid_type")
    return None if text is None else (text,)


def _linked(calls: list[LogCall]) -> Iterator[LogCall]:
    """The calls, each with the earlier one whose answer it quotes; and that one with the answer, where the log tells none."""
    latest: dict[tuple[bytes, Conversation], int] = {}
    needs: dict[int, int] = {}
    answers: dict[int, str] = {}
    for index, call in enumerate(calls):
        if not isinstance(call.prompt, ChatBody):
            continue
        conversation = call.prompt.conversation
        for length in range(len(conversation) - 1, 0, -1):
            message = conversation[length]
            before = latest.get((call.salt, conversation[:length])) if message.role == "assistant" else None
            if before is not None:
                needs.setdefault(index, before)
                if message.content is not None and not message.tool_calls:
                    answers.setdefault(before, message.content)
        latest[(call.salt, conversation)] = index
    for index, call in enumerate(calls):
        output = call.output
        if output is None and index in answers:
            output = (answers[index],)
        yield replace(call, needs=needs.get(index), output=output)
