"""Select-based completion: a request for each ending, whose logprobs are read from the echo of the prompt."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from examples.programs.completion import INTRODUCTION, begin, inputs
from examples.programs.openai_sdk.command import MODEL, run


async def score(client: AsyncOpenAI, prompt: str, ending: str) -> float:
    """The mean logprob of the ending's tokens."""
    completion = await client.completions.create(
        model=MODEL, prompt=f"{prompt} {ending}", max_tokens=0, temperature=0, echo=True, logprobs=1
    )
    told = completion.choices[0].logprobs
    logprobs = [
        logprob for logprob, offset in zip(told.token_logprobs, told.text_offset, strict=True) if offset >= len(prompt)
    ]
    return sum(logprobs) / len(logprobs)


async def program(
    client: AsyncOpenAI, examples: list[dict[str, Any]], activity_label: str, ctx: str, endings: list[str]
) -> str:
    """Choose an ending."""
    prompt = INTRODUCTION
    for example in examples:
        prompt += begin(example["activity_label"], example["ctx"]) + example["endings"][example["label"]] + "\n\n"
    prompt += begin(activity_label, ctx).rstrip()
    scores = await asyncio.gather(*(score(client, prompt, ending) for ending in endings))
    return endings[scores.index(max(scores))]


if __name__ == "__main__":
    run(program, inputs())
