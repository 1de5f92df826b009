"""Many questions over one long context: the context is computed once, whichever question comes first."""

from __future__ import annotations

from radixserve import Engine, SamplingParams

CONTEXT = (
    "The lighthouse on Fair Isle South was built in 1892. Its lamp was turned by clockwork, which the keeper wound "
    "every hour. It was the last manned lighthouse in Scotland and became automatic in 1998.\n\n"
) * 6
QUESTIONS = ("When was the lighthouse built?", "What turned the lamp?", "When did it become automatic?")

with Engine("smollm2") as engine:
    prompts = [f"{CONTEXT}Question: {question}\nAnswer:" for question in QUESTIONS]
    sampling = SamplingParams(temperature=0, max_tokens=24, stop=("\n",))
    for output in engine.generate(prompts, sampling):
        print(f"{output.cached_tokens:4} of {output.prompt_tokens} prompt tokens from the cache |{output.text}")
