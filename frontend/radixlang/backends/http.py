"""radixserve over HTTP, token by token: prompts travel as token ids, and outputs come back as the tokens they are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, ClassVar

import httpx

from radixlang.backends import wire
from radixlang.backends.base import (
    Call,
    Continuations,
    Hold,
    Message,
    Output,
    Piece,
    RoleMarks,
    Text,
)
from radixlang.backends.connection import CONCURRENCY, RETRIES, TIMEOUT_S, Connection, Limits
from radixlang.backends.generate_answers import answer_of, hold_of, output_of
from radixlang.backends.generate_fields import named_as_written, sampling_params
from radixlang.backends.memo import Memo
from radixlang.backends.role_marks import RoleMarker
from radixlang.backends.score_trie import Answer, Question, score
from radixlang.backends.text_parts import Beginning, Part, beginning_of, encoded_weight, joined
from radixlang.errors import BackendError, Unsupported

# Bytes of texts and their tokens.
_KEPT_TEXT = 16 << 20
# Of the questions of one scoring that go in one request.
_MOST_QUESTIONS = 256
_MOST_TOKENS = 1 << 20


class RuntimeEndpoint:
    """A radixserve server at ``url``.

    ``api_key``: where the server wants one. ``cache_salt``: prefixes are shared only with requests of the same salt. ``timeout_s``,
    ``concurrency``, ``retries``: as in `Limits`. ``transport``: another way to the server than TCP (a Unix socket), for
    use from one event loop.
    """

    token_exact: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        cache_salt: str | None = None,
        timeout_s: float = TIMEOUT_S,
        concurrency: int = CONCURRENCY,
        retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection(
            url,
            headers=None if api_key is None else {"Authorization": f"Bearer {api_key}"},
            limits=Limits(timeout_s, concurrency, retries),
            transport=transport,
        )
        self._salt: dict[str, Any] = {} if cache_salt is None else {"cache_salt": cache_salt}
        self._encoded: Memo[tuple[tuple[Part, ...], Beginning], tuple[int, ...]] = Memo(_KEPT_TEXT, encoded_weight)
        self._roles = RoleMarker(self._render, self.name)
        self._model: wire.ModelInfo | None = None

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"radixserve at {self._connection.url}"

    async def aclose(self) -> None:
        """Close the connections; safe to call twice."""
        await self._connection.aclose()

    async def info(self) -> dict[str, Any]:
        """Facts about the model; they are asked for once."""
        model = await self._model_info()
        return {
            "model": model.served_model_name,
            "context_length": model.context_length,
            "architecture": model.architecture,
            "vocab_size": model.vocab_size,
            "has_chat_template": model.has_chat_template,
        }

    async def flush(self) -> None:
        """Drop what is cached under this key and salt and not in use."""
        await self._connection.ask("/flush_cache", self._salt)

    # ---------------------------------------------------------------- texts

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """The tokens of ``parts`` read as one text, with the model's begin token where they begin a sequence."""
        key = (joined(parts), beginning_of(parts, first=first))
        if not key[0] and key[1] != "model":
            return []
        return list(await self._encoded.get(key, lambda: self._tokenize(*key)))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        data = await self._connection.ask("/detokenize", {"tokens": list(token_ids)})
        return self._connection.decoded(data, wire.Detokenized).text

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The marks of the next message. Raises `Unsupported` without a template."""
        if not (await self._model_info()).has_chat_template:
            raise Unsupported("roles", self.name, "the model has no chat template")
        return await self._roles.marks(role, earlier)

    async def _tokenize(self, parts: tuple[Part, ...], beginning: Beginning) -> tuple[int, ...]:
        body: dict[str, Any] = {
            "parts": [{"text": text, "data": data} for text, data in parts],
            "add_special_tokens": beginning == "model",
        }
        if beginning != "model":
            body["continues"] = beginning == "none"
        data = await self._connection.ask("/tokenize", body)
        return tuple(self._connection.decoded(data, wire.Tokens).tokens)

    async def _render(self, messages: Sequence[Message], asking: bool) -> str:
        body = {
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "add_generation_prompt": asking,
        }
        data = await self._connection.ask("/apply_template", body)
        return self._connection.decoded(data, wire.Rendered).prompt

    async def _model_info(self) -> wire.ModelInfo:
        if self._model is None:
            self._model = self._connection.decoded(await self._connection.get("/model_info"), wire.ModelInfo)
        return self._model

    # ---------------------------------------------------------------- generate

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """Continue ``token_ids``. Closing this closes the connection, on which the server ends the generation."""
        body = self._body(token_ids, call)
        with named_as_written(call.constraint):
            pieces = self._streamed(body, call) if call.stream else self._whole(body, call)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def _whole(self, body: dict[str, Any], call: Call) -> AsyncGenerator[Piece, None]:
        began = time.perf_counter()
        data = await self._connection.call("/generate", body)
        if (call.sampling.n or 1) > 1:
            samples = self._connection.decoded(data, list[wire.Generated])
        else:
            samples = [self._connection.decoded(data, wire.Generated)]
        output = self._output(samples, call, began)
        yield Piece(0, output.samples[0].text, output)

    async def _streamed(self, body: dict[str, Any], call: Call) -> AsyncGenerator[Piece, None]:
        began = time.perf_counter()
        count = call.sampling.n or 1
        shown = [""] * count
        last: dict[int, wire.Generated] = {}
        async with contextlib.aclosing(self._connection.events("/generate", {**body, "stream": True})) as events:
            async for data in events:
                event = self._connection.decoded(data, wire.Generated)
                index, text = event.index, event.text[len(shown[event.index]) :]
                shown[index] = event.text
                if event.meta_info.finish_reason is not None:
                    last[index] = event
                if len(last) == count:
                    yield Piece(index, text, self._output([last[at] for at in range(count)], call, began))
                    return
                if text:
                    yield Piece(index, text)
        raise BackendError(f"{self.name}: the stream ended before the output did")

    def _body(self, token_ids: Sequence[int], call: Call) -> dict[str, Any]:
        body = {
            "input_ids": list(token_ids),
            "sampling_params": sampling_params(call.sampling, call.constraint),
            **self._shared(call.priority),
        }
        if call.heal:
            body["heal"] = True
        if call.sampling.logprobs is not None:
            body["return_logprob"] = body["return_text_in_logprobs"] = True
            body["top_logprobs_num"] = call.sampling.logprobs
        return body

    def _output(self, samples: Sequence[wire.Generated], call: Call, began: float) -> Output:
        try:
            return output_of(samples, logprobs=call.sampling.logprobs is not None, wall_s=time.perf_counter() - began)
        except ValueError as error:
            raise BackendError(f"{self.name}: {error}") from error

    # ---------------------------------------------------------------- score

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """How likely each continuation is; see `score_trie` for the requests that it takes."""
        given = list(token_ids) or await self._beginning()

        async def ask(questions: Sequence[Question]) -> list[Answer]:
            return [answer for group in _groups(questions) for answer in await self._told(group, priority)]

        return await score(ask, given, continuations)

    async def _beginning(self) -> list[int]:
        """What a text begins with: the begin token, or the one that ends what was before."""
        return await self.encode((), first=True) or (await self._model_info()).eos_token_ids[:1]

    async def _told(self, questions: Sequence[Question], priority: int) -> list[Answer]:
        body = {
            "input_ids": [question.token_ids for question in questions],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": [
                question.start if question.start < len(question.token_ids) else -1 for question in questions
            ],
            "token_ids_logprob": [question.asked for question in questions],
            **self._shared(priority),
        }
        data = await self._connection.call("/generate", body)
        return [answer_of(item.meta_info) for item in self._connection.decoded(data, list[wire.Generated])]

    # ---------------------------------------------------------------- hold

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """Compute the prefix if it is not cached, and keep it for at most ``seconds``."""
        began = time.perf_counter()
        body = {"input_ids": list(token_ids), "ttl_s": seconds, **self._shared(priority)}
        held = self._connection.decoded(await self._connection.call("/hold", body), wire.Held)
        return hold_of(held, wall_s=time.perf_counter() - began)

    async def release(self, holds: Sequence[str]) -> None:
        """End holds before their time."""
        if holds:
            await self._connection.ask("/release", {"ids": list(holds)})

    def _shared(self, priority: int) -> dict[str, Any]:
        return {"priority": priority, **self._salt} if priority else dict(self._salt)


def _groups(questions: Sequence[Question]) -> Iterator[list[Question]]:
    """``questions`` in requests of bounded size."""
    group: list[Question] = []
    tokens = 0
    for question in questions:
        length = len(question.token_ids)
        if group and (len(group) == _MOST_QUESTIONS or tokens + length > _MOST_TOKENS):
            yield group
            group, tokens = [], 0
        group.append(question)
        tokens += length
    if group:
        yield group
