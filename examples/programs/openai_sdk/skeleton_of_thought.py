"""A skeleton of thought: the points are written out by requests that are sent together."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from examples.programs.openai_sdk.command import MODEL, run
from examples.programs.skeleton_of_thought import (
    CLOSE,
    EXAMPLE,
    EXAMPLE_POINTS,
    EXPAND,
    POINTS,
    RULES,
    SKELETON,
    inputs,
)


async def chat(client: AsyncOpenAI, messages: list[dict[str, str]], max_tokens: int, **options: Any) -> str:
    """Answer a conversation."""
    completion = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=max_tokens, temperature=0.7, seed=0, **options
    )
    return str(completion.choices[0].message.content)


async def program(client: AsyncOpenAI, question: str) -> str:
    """Write a skeleton, its points, and a sentence to close with."""
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": SKELETON + EXAMPLE},
        {"role": "assistant", "content": EXAMPLE_POINTS},
        {"role": "user", "content": SKELETON + question},
    ]
    skeleton = await chat(client, messages, 80, extra_body={"regex": POINTS})
    messages.append({"role": "assistant", "content": skeleton})
    texts = await asyncio.gather(
        *(chat(client, [*messages, {"role": "user", "content": EXPAND + point}], 56) for point in skeleton.splitlines())
    )
    messages.append({"role": "user", "content": "\n".join(texts) + "\n\n" + CLOSE})
    return skeleton + await chat(client, messages, 40)


if __name__ == "__main__":
    run(program, inputs())
