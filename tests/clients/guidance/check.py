"""guidance: its OpenAI, vLLM and SGLang models; gen, select, regular expressions, JSON and tools, as far as each has them.

guidance keeps finish reasons to itself, so a proxy reads them off the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
from checking import (
    PROMPT,
    SYSTEM,
    Server,
    check,
    expect,
    expect_cached,
    expect_equal,
    expect_match,
    expect_raises,
    expect_text,
    expect_usage,
    run_checks,
    too_long,
)
from guidance import assistant, gen, models, select, system, user
from guidance import json as json_of
from guidance.models.experimental import SglangModel, VLLMModel
from proxy import Proxy
from pydantic import BaseModel, ConfigDict, Field

SERVER = Server.from_environment()


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def connect(backend: str, root: str = SERVER.root, name: str = SERVER.model, key: str = SERVER.key) -> Any:
    """A model state without any text."""
    build: Callable[..., Any] = {"openai": models.OpenAI, "vllm": VLLMModel, "sglang": SglangModel}[backend]
    return build(model=name, base_url=f"{root}/v1", api_key=key, echo=False)


def run(grammar: Any, backend: str, prompt: str = PROMPT, **access: str) -> Any:
    """The state after the model has answered ``prompt`` within ``grammar``."""
    state = connect(backend, **access)
    with system():
        state += SYSTEM
    with user():
        state += prompt
    with assistant():
        state += grammar
    return state


BACKENDS = ("openai", "vllm", "sglang")
CONSTRAINED = ("vllm", "sglang")


def reply(state: Any) -> str:
    """What the model said last."""
    return str(state).rsplit("<|im_start|>assistant\n", 1)[-1]


def free(limit: int = 24) -> Any:
    """Free text. guidance leaves a temperature of 0 out, and its vLLM backend any other as well: texts may differ between runs."""
    return gen("text", max_tokens=limit, temperature=0.01)


@check
def gen_has_content_usage_and_finish_reason() -> None:
    for backend in BACKENDS:
        with Proxy(SERVER.root) as proxy:
            state = run(free(), backend, root=proxy.root)
            again = run(free(), backend, root=proxy.root)
        expect_text(state["text"], backend)
        usage = again._get_usage()
        expect_usage(usage.input_tokens, usage.forward_passes, usage.input_tokens + usage.forward_passes, most=24)
        expect_cached(usage.cached_input_tokens, usage.input_tokens)
        events = [event for event in proxy.exchanges[0].documents if isinstance(event, dict)]
        reasons = [c["finish_reason"] for event in events for c in event["choices"] if c.get("finish_reason")]
        expect(len(reasons) == 1 and reasons[0] in ("stop", "length"), f"{backend}: finish reasons {reasons}")
        said = "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
        # The capture is spelled from logprobs, where a character of several tokens is in pieces: the state has the text.
        expect_equal(reply(state), said, f"{backend}: text of the state and on the wire")


@check
def logprobs_cover_the_stream() -> None:
    """Guidance asks for logprobs in every stream and spells the text from their tokens."""
    for backend in BACKENDS:
        with Proxy(SERVER.root) as proxy:
            run(free(), backend, root=proxy.root)
        for event in proxy.exchanges[0].documents:
            for choice in event["choices"] if isinstance(event, dict) else []:
                content = choice["delta"].get("content")
                if content:
                    tokens = (choice.get("logprobs") or {}).get("content")
                    expect(tokens, f"{backend}: no logprobs beside {content!r}")
                    expect(
                        all(len(token["top_logprobs"]) == 5 for token in tokens), f"{backend}: number of alternatives"
                    )


@check
def regex_and_select() -> None:
    for backend in CONSTRAINED:
        state = run(gen("code", regex="[A-Z]{2}-[0-9]{4}", max_tokens=24), backend)
        expect_match("[A-Z]{2}-[0-9]{4}", state["code"], f"{backend}: gen(regex=)")
        state = run(select(["red", "green", "blue"], name="colour"), backend)
        expect(state["colour"] in ("red", "green", "blue"), f"{backend}: select gave {state['colour']!r}")


@check
def grammars_join_text_and_captures() -> None:
    for backend in CONSTRAINED:
        grammar = (
            "I give it "
            + gen("mark", regex="[1-9]", max_tokens=4)
            + " of 9 because it is "
            + select(["good", "bad"], name="why")
        )
        state = run(grammar, backend)
        expect_match("I give it [1-9] of 9 because it is (good|bad)", reply(state), backend)
        expect(
            state["mark"] in "123456789" and state["why"] in ("good", "bad"),
            f"{backend}: {state['mark']!r}, {state['why']!r}",
        )
    # guidance's own matcher captures nothing where a grammar has a stop, so the text is looked at instead.
    line = reply(
        run(gen("line", stop="\n", max_tokens=24), "vllm", prompt="Name three colours, each on a line of its own.")
    )
    expect("\n" not in expect_text(line).rstrip("\n"), f"gen(stop=): {line!r}")


@check
def json_fits_the_schema() -> None:
    for backend in BACKENDS:
        state = run(json_of("person", schema=Person, max_tokens=160), backend)
        person = Person.model_validate(json.loads(expect_text(state["person"], backend)))
        expect(0 <= person.age <= 150, f"{backend}: {person!r}")


@check
def turns_go_on() -> None:
    for backend in BACKENDS:
        state = run(free(12), backend)
        with user():
            state += "And why?"
        with assistant():
            state += gen("second", max_tokens=12, temperature=0.01)
        expect_text(state["second"], backend)
        usage = state._get_usage()
        expect(usage.round_trips == 2 and usage.cached_input_tokens > 0, f"{backend}: usage {usage!r}")


@check
def errors_have_their_classes() -> None:
    for backend in BACKENDS:
        error = expect_raises(
            openai.BadRequestError, lambda backend=backend: run(free(), backend, prompt=too_long(SERVER))
        )
        expect_equal(error.code, "context_length_exceeded", f"{backend}: code")
        expect_raises(openai.NotFoundError, lambda backend=backend: run(free(), backend, name="nobody-knows-this"))
        expect_raises(openai.AuthenticationError, lambda backend=backend: run(free(), backend, key="not-the-key"))


if __name__ == "__main__":
    run_checks()
