"""Multi-turn chat with long answers: the list of messages grows by two with each turn."""

from __future__ import annotations

from openai import AsyncOpenAI

from examples.programs.chat_long import FREQUENCY_PENALTY, LIMIT, RULES, inputs
from examples.programs.openai_sdk.command import MODEL, run


async def program(client: AsyncOpenAI, turns: list[str]) -> list[str]:
    """Answer the turns of a conversation."""
    messages = [{"role": "system", "content": RULES}]
    answers = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        completion = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=LIMIT, temperature=0, frequency_penalty=FREQUENCY_PENALTY
        )
        answers.append(completion.choices[0].message.content)
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


if __name__ == "__main__":
    run(program, inputs())
