"""A judge by branch, solve, merge: one request for each side of the essay, and one for the grade."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from examples.programs.judge import GRADES, MERGE, RULES, SIDES, inputs
from examples.programs.openai_sdk.command import MODEL, run


async def chat(client: AsyncOpenAI, messages: list[dict[str, str]], max_tokens: int, **options: Any) -> str:
    """Answer a conversation."""
    completion = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=max_tokens, temperature=0, **options
    )
    return str(completion.choices[0].message.content)


async def program(client: AsyncOpenAI, topic: str, essay: str) -> str:
    """Judge from all sides, and grade."""
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": f"Topic: {topic}\n\nEssay: {essay}"},
        {"role": "assistant", "content": "I have read it."},
    ]
    questions = [f"Judge its {side}. {question} Answer in two sentences." for side, question in SIDES.items()]
    opinions = await asyncio.gather(
        *(chat(client, [*messages, {"role": "user", "content": question}], 64) for question in questions)
    )
    listed = "\n".join(f"{side}: {opinion}" for side, opinion in zip(SIDES, opinions, strict=True))
    messages.append({"role": "user", "content": MERGE + listed})
    return await chat(client, messages, 2, extra_body={"guided_choice": GRADES})


if __name__ == "__main__":
    run(program, inputs())
