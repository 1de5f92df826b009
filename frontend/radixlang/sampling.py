"""How a generation is sampled: the fields, where they come from, and what they mean if nobody says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from radixlang.errors import InvalidProgram

# Other spellings of a field, from SGLang's and OpenAI's languages.
ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "stop_token_id": "stop_token_ids"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Every field None: not given here. A `gen` takes its own fields, then the run's, then `DEFAULTS`.

    ``max_tokens``: output limit. ``stop``, ``stop_regex``: strings and patterns that end the output before (after) them.
    ``logprobs``: how many alternatives to tell beside each token (0: the tokens' own only). ``n``: samples. ``finish_json``: a
    constrained output is brought to a valid end within ``max_tokens``. The rest are radixserve's `SamplingParams`.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: tuple[str, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    finish_json: bool | None = None

    def over(self, other: Sampling) -> Sampling:
        """These fields, and those of ``other`` where they say nothing."""
        return Sampling(**{**other.given(), **self.given()})

    def given(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    @classmethod
    def of(cls, **fields: Any) -> Sampling:
        """Fields as a user spells them: aliases, a single stop string, lists. Raises `InvalidProgram` naming the field."""
        taken: dict[str, Any] = {}
        fields = _logprobs_of_sglang(fields)
        for spelled, value in fields.items():
            name = ALIASES.get(spelled, spelled)
            if name not in FIELDS:
                raise InvalidProgram(spelled, "is no sampling field")
            if value is None:
                continue
            if name in taken:
                raise InvalidProgram(spelled, f"is given twice, as {name} too")
            # What the language itself counts with; the rest is for the model's side to judge.
            if name in _COUNTS and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidProgram(spelled, f"is a whole number, not {value!r}")
            taken[name] = _tuple(value) if name in _SEQUENCES else value
        if taken.get("n", 1) < 1:
            raise InvalidProgram("n", "is at least 1")
        return cls(**taken)


def _logprobs_of_sglang(fields: dict[str, Any]) -> dict[str, Any]:
    """``return_logprob`` and ``top_logprobs_num`` made into ``logprobs``."""
    fields = dict(fields)
    wanted, alternatives = fields.pop("return_logprob", None), fields.pop("top_logprobs_num", None)
    if alternatives is not None and not wanted:
        raise InvalidProgram("top_logprobs_num", "needs return_logprob=True")
    if wanted:
        if fields.get("logprobs") is not None:
            raise InvalidProgram("return_logprob", "is given twice, as logprobs too")
        fields["logprobs"] = alternatives or 0
    return fields


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


_SEQUENCES = ("stop", "stop_regex", "stop_token_ids")
_COUNTS = ("max_tokens", "n")


class Fields(TypedDict, total=False):
    """The same fields, all but ``max_tokens``, as keywords in all spellings; None is the same as not given."""

    max_new_tokens: int | None
    max_completion_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    stop_regex: str | Sequence[str] | None
    stop_token_id: int | None
    stop_token_ids: int | Sequence[int] | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    seed: int | None
    n: int | None
    logprobs: int | None
    return_logprob: bool | None
    top_logprobs_num: int | None
    finish_json: bool | None


# Every keyword that `Sampling.of` takes.
SPELLINGS = frozenset(Fields.__annotations__) | {"max_tokens"}
FIELDS = tuple(field.name for field in dataclasses.fields(Sampling))
DEFAULTS = Sampling(max_tokens=128, temperature=1.0, n=1)
