"""What a model's files say about generating with it: end tokens and sampling defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.messages import SamplingParams
from radixserve.model.config_fields import Fields


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults for requests that leave a field open; None where the model's files say nothing.

    ``eos_ids``: tokens that end a generation, without duplicates, the main one first. The others mean what the fields of the same
    name in `SamplingParams` mean; ``temperature`` is 0 where the files ask for greedy decoding (``do_sample: false``).
    """

    eos_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def sampling(self) -> SamplingParams:
        """Sampling parameters that hold these defaults, and the general ones where the model's files say nothing."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
        return SamplingParams(**{name: value for name in names if (value := getattr(self, name)) is not None})


def parse_generation_config(values: Mapping[str, Any], source: str, eos_ids: Iterable[int] = ()) -> GenerationDefaults:
    """Defaults in ``generation_config.json``; ``eos_ids`` are end tokens known from elsewhere and come after its own.

    Raises `ModelLoadError` naming a field that makes no sense.
    """
    fields = Fields(values, source)
    greedy = fields.get("do_sample") is not None and not fields.flag("do_sample", True)
    return GenerationDefaults(
        eos_ids=tuple(dict.fromkeys([*token_ids(fields, "eos_token_id"), *eos_ids])),
        temperature=0.0 if greedy else _number(fields, "temperature", 0.0, 100.0),
        top_p=_number(fields, "top_p", 0.0, 1.0, open_low=True),
        top_k=fields.optional_integer("top_k", low=0),
        min_p=_number(fields, "min_p", 0.0, 1.0),
        repetition_penalty=_number(fields, "repetition_penalty", 0.0, 100.0, open_low=True),
        max_tokens=fields.optional_integer("max_new_tokens"),
    )


def token_ids(fields: Fields, name: str) -> tuple[int, ...]:
    """A field that holds a token id, a list of them or nothing."""
    value = fields.get(name)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ids):
        raise fields.error(name, "a token id or a list of token ids")
    return tuple(ids)


def _number(fields: Fields, name: str, low: float, high: float, *, open_low: bool = False) -> float | None:
    value = fields.optional_number(name)
    if value is not None and (value < low or value > high or (open_low and value == low)):
        raise fields.error(name, f"above {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}")
    return value
