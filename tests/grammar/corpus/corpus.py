"""One hundred schemas such as people have: configuration files, messages of APIs, documents, arguments of tools, answers.

All are this project's own writing; they follow the formats they are named for closely enough to use the same keywords in the same
ways, in drafts 4 to 2020-12 and without a draft, as pydantic writes them too. Each is valid under its meta-schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import jsonschema

from radixserve import Engine, SamplingParams
from radixserve.constraints import JsonSchema
from radixserve.messages import FinishReason, SampleOutput

HERE = Path(__file__).parent

# What is not enforced, by keyword and path; all others are.
REFUSED = {
    "cloudevents": ("schema", "#"),  # format uri that is also measured, in five places
    "cloudformation_bucket": ("const", "#/properties/AWSTemplateFormatVersion/const"),  # draft 4 has no const
    "tsconfig": ("uniqueItems", "#/definitions/compilerOptions/properties/lib/uniqueItems"),  # 1,957 orders
    "webhook_subscription": ("schema", "#"),  # format uri and a pattern
}


def exact(text: str) -> Any:
    """The JSON document ``text`` with its fractions as decimals: in floats 0.7 is no multiple of 0.1."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent of twenty digits, which a decimal has no room for.
        return float(text)


@dataclass(frozen=True, slots=True)
class Entry:
    """A schema of the corpus; ``text`` is it as JSON."""

    name: str
    text: str
    schema: dict[str, Any]

    @property
    def validator(self) -> Any:
        """Checks documents by the schema's own draft, formats as well where `jsonschema` can."""
        kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        return kind(exact(self.text), format_checker=kind.FORMAT_CHECKER)

    @property
    def prompt(self) -> str:
        """What a model is asked for."""
        what = self.schema.get("title") or self.name.replace("_", " ")
        return f"Write a short and realistic example of this as JSON: {what}."


@dataclass(frozen=True, slots=True)
class Generated:
    """A document that a model wrote under a schema of the corpus."""

    entry: Entry
    sample: SampleOutput
    max_tokens: int

    @property
    def finished(self) -> bool:
        """Whether it came to its end; one that was cut by length is no document."""
        return self.sample.finish_reason is FinishReason.STOP

    @property
    def closed(self) -> bool:
        """Whether ``finish_json`` brought it there."""
        return self.sample.stop_reason == "finish_json"

    def problems(self) -> list[str]:
        """What is wrong with it; nothing, for a document that is finished and valid or says that it was cut."""
        if self.sample.error is not None:
            return [self.sample.error]
        if self.sample.finish_reason is FinishReason.LENGTH:
            tokens = len(self.sample.token_ids)
            return [] if tokens == self.max_tokens else [f"cut by length after {tokens} tokens"]
        if not self.finished:
            return [f"ended by {self.sample.finish_reason}"]
        try:
            document = exact(self.sample.text)
        except ValueError as error:
            return [f"not JSON: {error}"]
        return [error.message for error in self.entry.validator.iter_errors(document)]


def generate(
    engine: Engine, entries: Sequence[Entry], *, samples: int, max_tokens: int, seed: int, finish_json: bool
) -> list[Generated]:
    """``samples`` documents under each schema, drawn at temperature 1."""
    prompts = [engine.apply_chat_template([{"role": "user", "content": entry.prompt}]) for entry in entries]
    wanted = [
        SamplingParams(
            constraint=JsonSchema(entry.text),
            temperature=1.0,
            seed=seed,
            n=samples,
            max_tokens=max_tokens,
            finish_json=finish_json,
        )
        for entry in entries
    ]
    outputs = engine.generate(prompts, wanted)
    return [
        Generated(entry, sample, max_tokens)
        for entry, output in zip(entries, outputs, strict=True)
        for sample in output.all_samples
    ]


def load() -> list[Entry]:
    """The corpus in the order of names."""
    return [
        Entry(path.stem, text, json.loads(text)) for path in sorted(HERE.glob("*.json")) if (text := path.read_text())
    ]
