"""outlines: its OpenAI, vLLM and SGLang models with text, JSON, regular expressions, choices and grammars.

outlines returns texts only, so a proxy reads usage and finish reasons off the wire.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from typing import Any, Literal

import openai
import outlines
from checking import (
    PROMPT,
    Server,
    check,
    expect,
    expect_cached,
    expect_ended,
    expect_equal,
    expect_match,
    expect_raises,
    expect_text,
    expect_usage,
    middle_word,
    run_checks,
    too_long,
)
from outlines.exceptions import AuthenticationError, BadRequestError, NotFoundError
from outlines.types import CFG, JsonSchema, regex
from proxy import Proxy
from pydantic import BaseModel, ConfigDict, Field

SERVER = Server.from_environment()
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
BACKENDS: dict[str, Callable[..., Any]] = {
    "openai": outlines.from_openai,
    "vllm": outlines.from_vllm,
    "sglang": outlines.from_sglang,
}
CONSTRAINED = ("vllm", "sglang")
warnings.filterwarnings("ignore", message="SGLang grammar-based structured outputs")


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def client(root: str = SERVER.root, key: str = SERVER.key) -> openai.OpenAI:
    """The SDK's client that outlines works through."""
    return openai.OpenAI(base_url=f"{root}/v1", api_key=key, max_retries=0, timeout=110)


MODELS = {name: build(client(), SERVER.model) for name, build in BACKENDS.items()}


@check
def texts_have_usage_and_finish_reason() -> None:
    for name, build in BACKENDS.items():
        with Proxy(SERVER.root) as proxy:
            model = build(client(proxy.root), SERVER.model)
            text, again = (expect_text(model(PROMPT, **GREEDY), name) for _ in range(2))
        expect_equal(again, text, f"{name}: text of the same request")
        answer = proxy.exchanges[-1].documents[0]
        usage = answer.get("usage") or {}
        counts = [usage.get(each) for each in ("prompt_tokens", "completion_tokens", "total_tokens")]
        expect_usage(*counts, most=24)
        expect_ended(answer["choices"][0].get("finish_reason"), usage["completion_tokens"], 24)
        expect_cached((usage.get("prompt_tokens_details") or {}).get("cached_tokens"), usage["prompt_tokens"])


@check
def streams_equal_texts() -> None:
    for name, model in MODELS.items():
        text = model(PROMPT, **GREEDY)
        parts = list(model.stream(PROMPT, **GREEDY))
        expect(len(parts) > 3, f"{name}: the stream has only {len(parts)} parts")
        expect_equal("".join(parts), text, f"{name}: text of the stream")
        constrained = model(PROMPT, Person, temperature=0, max_tokens=160)
        streamed = "".join(model.stream(PROMPT, Person, temperature=0, max_tokens=160))
        expect_equal(streamed, constrained, f"{name}: JSON of the stream")


@check
def models_and_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {"level": {"type": "integer", "minimum": 1, "maximum": 5}, "tag": {"enum": ["a", "b"]}},
        "required": ["level", "tag"],
        "additionalProperties": False,
    }
    for name, model in MODELS.items():
        Person.model_validate_json(expect_text(model(PROMPT, Person, temperature=0, max_tokens=160), name))
        found = json.loads(model(PROMPT, JsonSchema(schema), temperature=1, max_tokens=160))
        expect(
            sorted(found) == ["level", "tag"] and 1 <= found["level"] <= 5 and found["tag"] in ("a", "b"),
            f"{name}: {found}",
        )


@check
def patterns_choices_types_and_grammars() -> None:
    grammar = CFG('start: "set " NAME " to " DIGIT+\nNAME: /[a-z]{2,6}/\nDIGIT: /[0-9]/\n')
    for name in CONSTRAINED:
        model = MODELS[name]
        for output, pattern in (
            (regex("[A-Z]{2}-[0-9]{4}"), "[A-Z]{2}-[0-9]{4}"),
            (Literal["red", "green", "blue"], "red|green|blue"),
            (int, "[+-]?[0-9]+"),
            (bool, "True|False"),
            (grammar, "set [a-z]{2,6} to [0-9]+"),
        ):
            text = model(PROMPT, output, temperature=1, max_tokens=40)
            # Digits without end may run into the limit; the others end by themselves.
            expect_match(pattern, text, f"{name}: {output}")


@check
def several_texts_and_stop() -> None:
    for name, model in MODELS.items():
        texts = model(PROMPT, temperature=1.2, max_tokens=16, n=3, seed=4)
        expect(len(texts) == 3 and len(set(texts)) > 1, f"{name}: {texts!r}")
        expect_equal(
            model(PROMPT, temperature=1.2, max_tokens=16, n=3, seed=4), texts, f"{name}: texts of the same seed"
        )
        whole = model(PROMPT, **GREEDY)
        word = middle_word(whole)
        expect_equal(model(PROMPT, **GREEDY, stop=[word]), whole[: whole.index(word)], f"{name}: text before {word!r}")


@check
def async_models_work() -> None:
    async def ask(build: Callable[..., Any]) -> Any:
        async with openai.AsyncOpenAI(
            base_url=SERVER.url, api_key=SERVER.key, max_retries=0, timeout=110
        ) as connection:
            model = build(connection, SERVER.model)
            return await asyncio.gather(*(model(PROMPT, **GREEDY) for _ in range(3)))

    for name, build in BACKENDS.items():
        texts = asyncio.run(ask(build))
        expect_equal(set(texts), {MODELS[name](PROMPT, **GREEDY)}, f"{name}: texts of equal requests")


@check
def errors_have_their_classes() -> None:
    for name, build in BACKENDS.items():
        model = MODELS[name]
        error = expect_raises(BadRequestError, lambda model=model: model(too_long(SERVER), **GREEDY))
        expect("maximum context length" in str(error), f"{name}: message {error}")
        expect_raises(NotFoundError, lambda model=model: model(PROMPT, model="nobody-knows-this"))
        stranger = build(client(key="not-the-key"), SERVER.model)
        expect_raises(AuthenticationError, lambda stranger=stranger: stranger(PROMPT, **GREEDY))
    broken = MODELS["vllm"]
    expect_raises(
        BadRequestError, lambda: broken(PROMPT, extra_body={"structured_outputs": {"regex": "(["}}, max_tokens=8)
    )


if __name__ == "__main__":
    run_checks()
