"""A tree of thought: one coroutine for each branch, each with a list of messages of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from examples.programs.openai_sdk.command import MODEL, run
from examples.programs.tree_of_thought import (
    CONCLUDE,
    NUMBER,
    PLAN,
    PLANS,
    RATE,
    RATINGS,
    RULES,
    SOLUTIONS,
    SOLVE,
    inputs,
)

Messages = list[dict[str, str]]


async def chat(client: AsyncOpenAI, messages: Messages, max_tokens: int, **options: Any) -> str:
    """Answer a conversation."""
    completion = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=max_tokens, **{"temperature": 0} | options
    )
    return str(completion.choices[0].message.content)


async def solve(client: AsyncOpenAI, messages: Messages, number: int) -> tuple[int, str]:
    """One solution of a plan, and its rating."""
    solution = await chat(client, messages, 72, temperature=0.8, seed=number)
    messages = [*messages, {"role": "assistant", "content": solution}, {"role": "user", "content": RATE}]
    rating = await chat(client, messages, 2, extra_body={"guided_choice": RATINGS})
    return int(rating), solution


async def branch(client: AsyncOpenAI, messages: Messages, number: int) -> list[tuple[int, str]]:
    """One plan, and its solutions."""
    plan = await chat(client, messages, 40, temperature=0.8, seed=number)
    messages = [*messages, {"role": "assistant", "content": plan}, {"role": "user", "content": SOLVE}]
    return await asyncio.gather(*(solve(client, messages, choice) for choice in range(SOLUTIONS)))


async def program(client: AsyncOpenAI, problem: str) -> str:
    """Answer with the best of the solutions."""
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": PLAN + problem}]
    branches = await asyncio.gather(*(branch(client, messages, number) for number in range(PLANS)))
    _, best = max((rated for solutions in branches for rated in solutions), key=lambda rated: rated[0])
    messages += [{"role": "assistant", "content": best}, {"role": "user", "content": CONCLUDE}]
    return await chat(client, messages, 8, extra_body={"regex": NUMBER})


if __name__ == "__main__":
    run(program, inputs())
