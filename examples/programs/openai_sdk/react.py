"""A ReAct agent: the whole text so far is sent again for each thought and each action."""

from __future__ import annotations

from openai import AsyncOpenAI

from examples.programs.encyclopedia import Article, search
from examples.programs.openai_sdk.command import MODEL, run
from examples.programs.react import ACTION, EXAMPLES, LAST_ACTION, TURNS, inputs


async def program(client: AsyncOpenAI, question: str) -> str:
    """Answer a question with at most `TURNS` actions, of which the last is to finish."""
    prompt = f"{EXAMPLES}\nQuestion: {question}\n"
    argument = ""
    shown: list[Article] = []
    for turn in range(1, TURNS + 1):
        prompt += f"Thought {turn}:"
        completion = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=48, temperature=0, stop="\n"
        )
        prompt += completion.choices[0].text + f"\nAction {turn}:"
        completion = await client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=24,
            temperature=0,
            extra_body={"regex": " " + (ACTION if turn < TURNS else LAST_ACTION)},
        )
        prompt += completion.choices[0].text
        action, _, argument = completion.choices[0].text.strip().removesuffix("]").partition("[")
        if action == "Finish":
            break
        shown += search(argument, besides=shown)
        prompt += f"\nObservation {turn}: {shown[-1].text}\n"
    return argument


if __name__ == "__main__":
    run(program, inputs())
