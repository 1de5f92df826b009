"""A RAG pipeline of two hops: the prompts of both modules are put together for each request."""

from __future__ import annotations

from openai import AsyncOpenAI

from examples.programs.encyclopedia import Article, search
from examples.programs.openai_sdk.command import MODEL, run
from examples.programs.rag import ANSWER_MODULE, HOPS, PASSAGES, QUERY_MODULE, inputs, show


async def complete(client: AsyncOpenAI, prompt: str, max_tokens: int) -> str:
    """Continue a prompt to the end of the line."""
    completion = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, stop="\n"
    )
    return str(completion.choices[0].text)


async def program(client: AsyncOpenAI, question: str) -> str:
    """Find passages in two hops, then answer."""
    found: list[Article] = []
    for _ in range(HOPS):
        query = await complete(client, QUERY_MODULE + show(found, question) + "Query:", 16)
        found += search(query, PASSAGES, besides=found)
    prompt = ANSWER_MODULE + show(found, question) + "Reasoning:"
    prompt += await complete(client, prompt, 64) + "\nAnswer:"
    return await complete(client, prompt, 16)


if __name__ == "__main__":
    run(program, inputs())
