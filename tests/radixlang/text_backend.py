"""A backend that takes texts and messages, as servers of OpenAI's kind do; for the tests of the interpreter's text side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from radixlang.backends.base import Call, Continuations, Message, Output, Piece, Sample, Usage


class EchoTexts:
    """Answers with the last word of what it was sent; likes the longest continuation best."""

    token_exact: ClassVar[bool] = False
    name = "texts"

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.conversations: list[tuple[Message, ...]] = []

    async def aclose(self) -> None: ...

    async def flush(self) -> None: ...

    async def info(self) -> dict[str, Any]:
        return {"model": "texts", "context_length": None}

    async def complete(self, prompt: str, call: Call) -> AsyncGenerator[Piece, None]:
        self.prompts.append(prompt)
        async for piece in self._answer(prompt, call):
            yield piece

    async def answer(self, messages: Sequence[Message], call: Call) -> AsyncGenerator[Piece, None]:
        self.conversations.append(tuple(messages))
        async for piece in self._answer(messages[-1].content, call):
            yield piece

    async def _answer(self, text: str, call: Call) -> AsyncGenerator[Piece, None]:
        await asyncio.sleep(0)
        answer = f" {text.split()[-1]}!"
        if call.stream:
            for letter in answer:
                yield Piece(0, letter)
        count = call.sampling.n or 1
        yield Piece(
            0,
            "",
            Output((Sample(answer, "stop", rest=answer),) * count, Usage(prompt=len(text), generated=len(answer))),
        )

    async def score_texts(self, prompt: str, continuations: Sequence[str]) -> Continuations:
        self.prompts.append(prompt)
        await asyncio.sleep(0)
        logprobs = tuple((-1.0 / len(text) if prompt else -1.0,) for text in continuations)
        return Continuations(((0,),) * len(continuations), logprobs, Usage(prompt=len(prompt)))
