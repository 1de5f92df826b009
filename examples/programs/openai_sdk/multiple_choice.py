"""Few-shot multiple choice: the letters are compared by the logprobs of the first token."""

from __future__ import annotations

import math
from typing import Any

from openai import AsyncOpenAI

from examples.programs.multiple_choice import LETTERS, ask, inputs, introduce
from examples.programs.openai_sdk.command import MODEL, run


async def program(
    client: AsyncOpenAI, subject: str, examples: list[dict[str, Any]], question: str, choices: list[str]
) -> str:
    """Choose a letter."""
    prompt = introduce(subject)
    for example in examples:
        prompt += ask(example["question"], example["choices"]) + LETTERS[example["answer"]] + "\n\n"
    prompt += ask(question, choices).rstrip()
    completion = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, temperature=0, logprobs=20)
    likely = completion.choices[0].logprobs.top_logprobs[0]
    return max(LETTERS, key=lambda letter: likely.get(f" {letter}", -math.inf))


if __name__ == "__main__":
    run(program, inputs())
