"""JSON decoding: the type of the records goes with each request as its response format."""

from __future__ import annotations

from typing import Literal

from openai import AsyncOpenAI
from pydantic import BaseModel

from examples.programs.json_decoding import LETTER, RECORD, RULES, inputs
from examples.programs.openai_sdk.command import MODEL, run


class Entry(BaseModel):
    """A line of the register."""

    customer: str
    city: str
    order: int
    kind: Literal["missing", "damaged", "wrong", "payment", "delivery", "question", "praise"]
    refund: bool
    summary: str


async def program(client: AsyncOpenAI, letter: str) -> Entry | None:
    """Read a letter."""
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": LETTER},
        {"role": "assistant", "content": RECORD},
        {"role": "user", "content": letter},
    ]
    completion = await client.chat.completions.parse(
        model=MODEL,
        messages=messages,
        max_tokens=96,
        temperature=0,
        response_format=Entry,
        extra_body={"finish_json": True},
    )
    return completion.choices[0].message.parsed


if __name__ == "__main__":
    run(program, inputs())
