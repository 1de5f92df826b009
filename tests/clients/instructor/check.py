"""instructor: every mode of its OpenAI provider, partial and iterable responses, retries."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from checking import (
    Server,
    check,
    expect,
    expect_cached,
    expect_equal,
    expect_raises,
    expect_text,
    expect_usage,
    run_checks,
    too_long,
)
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field

SERVER = Server.from_environment()
PLAIN = openai.OpenAI(base_url=SERVER.url, api_key=SERVER.key, max_retries=0, timeout=110)
FORCED = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
ASKED: dict[str, Any] = {
    "model": SERVER.model,
    "messages": [{"role": "user", "content": "Extract the person: Ada Lovelace lived to be 36 years old."}],
    "max_tokens": 160,
    "temperature": 0,
    "max_retries": 0,
}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@check
def models_come_with_usage_and_finish_reason() -> None:
    for mode in FORCED:
        client = instructor.from_openai(PLAIN, mode=mode)
        person, raw = client.chat.completions.create_with_completion(response_model=Person, **ASKED)
        expect(isinstance(person, Person), f"{mode}: {person!r}")
        expect_usage(raw.usage.prompt_tokens, raw.usage.completion_tokens, raw.usage.total_tokens, most=160)
        wanted = "stop" if mode is instructor.Mode.JSON_SCHEMA else "tool_calls"
        expect_equal(raw.choices[0].finish_reason, wanted, f"{mode}: finish_reason")
        if mode is instructor.Mode.JSON_SCHEMA:
            expect_text(raw.choices[0].message.content)
        again, second = client.chat.completions.create_with_completion(response_model=Person, **ASKED)
        expect_equal(again.model_dump(), person.model_dump(), f"{mode}: the same request")
        expect(second.usage.prompt_tokens_details is not None, "prompt_tokens_details is missing")
        expect_cached(second.usage.prompt_tokens_details.cached_tokens, second.usage.prompt_tokens)


@check
def json_mode_gives_json() -> None:
    """The schema is only in the prompt here, so a small model may miss it; that it is JSON is the server's part."""
    client = instructor.from_openai(PLAIN, mode=instructor.Mode.JSON)
    try:
        client.chat.completions.create(response_model=Person, **ASKED)
    except (IncompleteOutputException, InstructorRetryException) as error:
        text = error.last_completion.choices[0].message.content
        expect_equal(expect_text(text).lstrip()[:1], "{", "first character in JSON mode")


@check
def responses_tools() -> None:
    client = instructor.from_openai(PLAIN, mode=instructor.Mode.RESPONSES_TOOLS)
    person = client.chat.completions.create(response_model=Person, **ASKED)
    expect(isinstance(person, Person), f"got {person!r}")


@check
def streams_of_partial_and_iterable_models() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(PLAIN, mode=mode)
        whole = client.chat.completions.create(response_model=Person, **ASKED)
        steps = list(client.chat.completions.create_partial(response_model=Person, **ASKED))
        expect(len(steps) > 2, f"{mode}: only {len(steps)} partial models")
        if mode is instructor.Mode.JSON_SCHEMA:
            expect_equal((steps[-1].name, steps[-1].age), (whole.name, whole.age), f"{mode}: last partial model")
        else:
            expect(
                steps[-1].name is not None and steps[-1].age is not None, f"{mode}: last partial model {steps[-1]!r}"
            )


@check
def several_models_in_one_answer() -> None:
    class People(BaseModel):
        """People."""

        people: list[Person] = Field(min_length=2, max_length=2)

    client = instructor.from_openai(PLAIN)
    asked = {**ASKED, "max_tokens": 240}
    result = client.chat.completions.create(response_model=People, **asked)
    expect_equal(len(result.people), 2, "number of people")


@check
def errors_have_their_classes() -> None:
    client = instructor.from_openai(PLAIN)
    cut = {**ASKED, "max_tokens": 3}
    expect_raises(
        (IncompleteOutputException, InstructorRetryException),
        lambda: client.chat.completions.create(response_model=Person, **cut),
    )
    long = {**ASKED, "messages": [{"role": "user", "content": too_long(SERVER)}]}
    error = expect_raises(
        (InstructorRetryException, openai.BadRequestError),
        lambda: client.chat.completions.create(response_model=Person, **long),
    )
    expect("maximum context length" in str(error), f"message: {str(error)[:300]}")
    stranger = instructor.from_openai(PLAIN.with_options(api_key="not-the-key"))
    expect_raises(
        (InstructorRetryException, openai.AuthenticationError),
        lambda: stranger.chat.completions.create(response_model=Person, **ASKED),
    )


if __name__ == "__main__":
    run_checks()
