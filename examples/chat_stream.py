"""A conversation: each turn finds everything said before in the cache, the model's own words included."""

from __future__ import annotations

from radixserve import Engine, SamplingParams

with Engine("smollm2") as engine:
    messages = [{"role": "system", "content": "You are a gardener. Answer in one sentence."}]
    for question in ("When do I plant garlic?", "And how deep?", "Do I have to water it in winter?"):
        messages.append({"role": "user", "content": question})
        print(f"\n> {question}")
        answer = ""
        for chunk in engine.chat(messages, SamplingParams(temperature=0, max_tokens=60), stream=True):
            print(chunk.text, end="", flush=True)
            answer += chunk.text
            if chunk.output is not None:
                print(
                    f"\n  [{chunk.output.cached_tokens} of {chunk.output.prompt_tokens} prompt tokens from the cache]"
                )
        messages.append({"role": "assistant", "content": answer})
