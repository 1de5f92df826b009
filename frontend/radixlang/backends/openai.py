"""Any server with OpenAI's API: texts and messages in, texts out.

What that API cannot do is `Unsupported`, by name: nothing weaker is done in its place. Servers that can do more than OpenAI's
own service have names of their own for it; ``dialect`` says whose are to be used.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, NoReturn
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from radixlang.backends import openai_answers as answers
from radixlang.backends.base import Call, Continuations, Message, Piece
from radixlang.backends.connection import CONCURRENCY, RETRIES, TIMEOUT_S, Connection, Limits
from radixlang.backends.openai_fields import Dialect, Endpoint, check_dialect, request_fields
from radixlang.backends.openai_scores import NotTold, continuations_of
from radixlang.errors import BackendError, Refused, Unsupported

_PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
_SERVICE = "https://api.openai.com/v1"
_NO_SUCH_PATH = "not_found"
_OF_ECHO = {"echo", "logprobs", "max_tokens"}


class OpenAI:
    """The model ``model`` of the server at ``base_url``.

    ``base_url`` and ``api_key``: None takes ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` from the environment. ``chat``: True for a
    server that only answers conversations, False for one that only continues texts, None for one that may do both. ``dialect``: whose
    names for more than OpenAI's API has. ``limit_field``: the name of the output limit in chat; None is
    ``max_completion_tokens`` for OpenAI's own service and ``max_tokens`` for others. The rest as in `Limits`, and ``transport``
    as in `Connection`.
    """

    token_exact: ClassVar[bool] = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        chat: bool | None = None,
        dialect: Dialect = "openai",
        limit_field: str | None = None,
        timeout_s: float = TIMEOUT_S,
        concurrency: int = CONCURRENCY,
        retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        check_dialect(dialect)
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or _SERVICE
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self.model = model
        self._chat = chat
        self._dialect: Dialect = dialect
        own_service = urlsplit(base_url).hostname == urlsplit(_SERVICE).hostname
        self._limit_field = limit_field or ("max_completion_tokens" if own_service else "max_tokens")
        self._connection = Connection(
            base_url,
            headers=None if api_key is None else {"Authorization": f"Bearer {api_key}"},
            limits=Limits(timeout_s, concurrency, retries),
            transport=transport,
        )

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"{self.model} at {self._connection.url}"

    async def aclose(self) -> None:
        """Close the connections; safe to call twice."""
        await self._connection.aclose()

    async def info(self) -> dict[str, Any]:
        """What the server tells of the model; ``context_length`` is None where it does not say."""
        facts: dict[str, Any] = {}
        with contextlib.suppress(Refused):
            data = await self._connection.get(f"/models/{quote(self.model, safe='')}")
            facts = self._connection.decoded(data, dict[str, Any])
        return {"model": self.model, "context_length": facts.get("max_model_len")}

    async def flush(self) -> None:
        """Raises `Unsupported`."""
        raise Unsupported("flush", self.name, "OpenAI's API does not know its server's cache")

    # ---------------------------------------------------------------- generate

    async def complete(self, prompt: str, call: Call) -> AsyncGenerator[Piece, None]:
        """Continue a text."""
        if self._chat is True:
            raise Unsupported("text outside of messages", self.name, "it only answers conversations (chat=True)")
        async with contextlib.aclosing(self._pieces("completions", {"prompt": prompt}, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def answer(self, messages: Sequence[Message], call: Call) -> AsyncGenerator[Piece, None]:
        """Answer a conversation."""
        if self._chat is False:
            raise Unsupported("messages", self.name, "it only continues texts (chat=False)")
        shown = [{"role": message.role, "content": message.content} for message in messages]
        async with contextlib.aclosing(self._pieces("chat", {"messages": shown}, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def _pieces(self, endpoint: Endpoint, prompt: dict[str, Any], call: Call) -> AsyncGenerator[Piece, None]:
        limit = self._limit_field if endpoint == "chat" else "max_tokens"
        fields = request_fields(call, endpoint, self._dialect, limit_field=limit, backend=self.name)
        body = {"model": self.model, **prompt, **fields}
        logprobs, began = call.sampling.logprobs is not None, time.perf_counter()
        gathered = [answers.Gathering() for _ in range(call.sampling.n or 1)]
        counts: answers.TokenCounts | None = None
        try:
            if call.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
                async with contextlib.aclosing(self._connection.events(_PATHS[endpoint], body)) as events:
                    async for data in events:
                        event = self._connection.decoded(data, answers.Answer)
                        counts = event.usage or counts
                        for choice in event.choices:
                            written = self._gathering(gathered, choice).take(choice)
                            if written:
                                yield Piece(choice.index, written)
                text = ""
            else:
                data = await self._connection.call(_PATHS[endpoint], body)
                answer = self._connection.decoded(data, answers.Answer)
                counts = answer.usage
                for choice in answer.choices:
                    self._gathering(gathered, choice).take(choice)
                text = gathered[0].text
        except Refused as refused:
            self._explain(refused, endpoint)
        yield Piece(0, text, answers.output_of(gathered, counts, logprobs=logprobs, wall_s=time.perf_counter() - began))

    def _gathering(self, gathered: Sequence[answers.Gathering], choice: answers.Choice) -> answers.Gathering:
        if not 0 <= choice.index < len(gathered):
            raise BackendError(
                f"{self.name}: the answer has a choice {choice.index}, but {len(gathered)} were asked for"
            )
        return gathered[choice.index]

    def _explain(self, refused: Refused, endpoint: Endpoint) -> NoReturn:
        """Raise ``refused``, or what it says of the server if the whole endpoint is not there."""
        if refused.code == _NO_SUCH_PATH:
            primitive = "messages" if endpoint == "chat" else "text outside of messages"
            raise Unsupported(primitive, self.name, f"it has no {_PATHS[endpoint]}: {refused.message}") from refused
        raise refused

    # ---------------------------------------------------------------- score

    async def score_texts(self, prompt: str, continuations: Sequence[str]) -> Continuations:
        """How likely each continuation is after ``prompt``: by completions that echo the whole text with logprobs.

        Raises `Unsupported` where the server does not.
        """
        if self._chat is True:
            raise Unsupported("select", self.name, "it only answers conversations (chat=True)")
        began = time.perf_counter()
        texts = [*([prompt] if prompt else []), *(prompt + continuation for continuation in continuations)]
        # The one token that is drawn is not wanted, but not every server takes 0.
        body = {"model": self.model, "prompt": texts, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        try:
            answer = self._connection.decoded(await self._connection.call(_PATHS["completions"], body), answers.Answer)
            if sorted(choice.index for choice in answer.choices) != list(range(len(texts))):
                raise NotTold("there is no answer for each prompt of a list")
            echoes = sorted(answer.choices, key=lambda choice: choice.index)
            counts = answer.usage or answers.TokenCounts()
            usage = answers.usage_of(
                msgspec.structs.replace(counts, completion_tokens=0), wall_s=time.perf_counter() - began
            )
            return continuations_of(echoes, texts, with_prompt=bool(prompt), usage=usage)
        except NotTold as error:
            raise Unsupported("select", self.name, str(error)) from error
        except Refused as refused:
            if (refused.param or "") in _OF_ECHO:
                raise Unsupported("select", self.name, f"it does not echo with logprobs: {refused}") from refused
            self._explain(refused, "completions")
