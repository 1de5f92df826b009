"""Generative agents: three questions on each event are asked at once, and their answers put into the text by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from examples.programs.generative_agents import REACTIONS, TOWN, inputs, introduce
from examples.programs.openai_sdk.command import MODEL, run


async def complete(client: AsyncOpenAI, prompt: str, max_tokens: int, **options: Any) -> str:
    """Continue a prompt."""
    completion = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, **options
    )
    return str(completion.choices[0].text)


async def score(client: AsyncOpenAI, prompt: str, reaction: str) -> float:
    """The mean logprob of the reaction's tokens."""
    completion = await client.completions.create(
        model=MODEL, prompt=f"{prompt} {reaction}", max_tokens=0, temperature=0, echo=True, logprobs=1
    )
    told = completion.choices[0].logprobs
    logprobs = [
        logprob for logprob, offset in zip(told.token_logprobs, told.text_offset, strict=True) if offset >= len(prompt)
    ]
    return sum(logprobs) / len(logprobs)


async def react(client: AsyncOpenAI, prompt: str, name: str) -> str:
    """The likeliest reaction."""
    scores = await asyncio.gather(*(score(client, prompt + name, reaction) for reaction in REACTIONS))
    return REACTIONS[scores.index(max(scores))]


async def program(client: AsyncOpenAI, agent: dict[str, Any]) -> str:
    """Live through the agent's events, and plan the rest of the day."""
    name = agent["name"]
    prompt = TOWN + introduce(agent)
    for number, event in enumerate(agent["events"], 1):
        prompt += f"\nEvent {number}: {event}\n"
        importance, thought, reaction = await asyncio.gather(
            complete(client, f"{prompt}Importance, from 1 to 9:", 2, extra_body={"regex": " [1-9]"}),
            complete(client, f"{prompt}{name} thinks that", 32, stop="\n"),
            react(client, prompt, name),
        )
        prompt += f"Importance{importance}. {name} thinks that{thought}\n{name} {reaction}.\n"
    return await complete(client, f"{prompt}\nIn the evening {name} will", 48, stop="\n")


if __name__ == "__main__":
    run(program, inputs())
