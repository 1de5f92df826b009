"""Why did that prompt not hit? Two prompts that look the same differ in a date; `explain` points at it."""

from __future__ import annotations

from radixserve import Engine, SamplingParams

INSTRUCTIONS = "You are a careful assistant. Answer briefly, say when you are not sure, and never invent a source.\n"

with Engine("smollm2") as engine:
    first = f"Today is Monday.\n{INSTRUCTIONS}"
    second = f"Today is Tuesday.\n{INSTRUCTIONS}"
    engine.generate(first, SamplingParams(max_tokens=1))
    for prompt in (first, second):
        why = engine.explain(prompt)
        print(f"{why.cached_tokens} of {why.prompt_tokens} tokens cached: {why.reason} at {why.position}, {why.text!r}")
        print(f"  {why.detail}")
