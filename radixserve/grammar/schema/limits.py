"""Bounds on the work that one schema may cause."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.grammar.schema.refusal import TOO_COMPLEX, Origin, SchemaRefused

ROOT = Origin("schema", "#")


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused as too complex.

    Of the schema: ``values`` JSON values, ``characters`` in keys and strings, ``depth`` of nesting, ``path_length`` of a JSON path,
    ``number_digits``. Of the rewriting:
    ``shapes`` made in all and ``shapes_per_value`` as alternatives of one place, ``places`` (sets of subschemas that hold together),
    ``chain`` of in-place subschemas ($ref, allOf, ...), ``steps`` of automata, ``pattern_length`` of a rewritten
    pattern, ``alternatives`` into which a count of items or properties may be split, ``items`` that a bound on the length of an
    array may name.
    """

    values: int = 40_000
    characters: int = 1_000_000
    depth: int = 100
    path_length: int = 4_000
    number_digits: int = 400
    shapes: int = 40_000
    shapes_per_value: int = 2_000
    places: int = 4_000
    chain: int = 64
    steps: int = 30_000
    pattern_length: int = 20_000
    alternatives: int = 512
    items: int = 4_000


class Budget:
    """Counts work against `Limits`; everything that can blow up draws on it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._left = {"shapes": limits.shapes, "places": limits.places, "steps": limits.steps}

    def spend(self, what: str, amount: int = 1) -> None:
        """Take ``amount`` of ``shapes``, ``places`` or ``steps``; refuses the schema when they are used up."""
        self._left[what] -= amount
        if self._left[what] < 0:
            raise too_complex(f"rewriting it takes more than {getattr(self.limits, what)} {what}")


def too_complex(reason: str, origin: Origin = ROOT) -> SchemaRefused:
    """The refusal of a schema that is beyond a limit."""
    return SchemaRefused(origin, reason, TOO_COMPLEX)
