"""Numbers and strings in the spelling that the engine enforces exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from radixserve.grammar.schema.json_values import exact, plain
from radixserve.grammar.schema.limits import ROOT, Budget, too_complex
from radixserve.grammar.schema.patterns import Languages, Pattern, exactly, fits_trie, none_of, source
from radixserve.grammar.schema.refusal import SchemaRefused
from radixserve.grammar.schema.shapes import Number, Text

# Beyond these the engine computes with rounded or wrapped numbers.
_EXACT = 2**53
# A step of c costs the engine an automaton of c states, less where c has factors of ten: it is no use against hostile schemas.
_MAX_COEFFICIENT = 10_000
_MAX_ROUND_COEFFICIENT = 10_000_000
_FEW = 256

JsonSchema = dict[str, object]


def point(number: Number) -> int | float | None:
    """The one value of ``number``, or None if it has more."""
    if number.low is None or number.low != number.high:
        return None
    _check(number.low, number)
    return plain(number.low)


def write_number(number: Number, budget: Budget) -> Iterator[JsonSchema]:
    """Schemas that together accept the numbers of ``number``, which is no single one."""
    if number.not_multiples:
        yield from _sifted(number)
        return
    for bound in (number.low, number.high):
        if bound is not None:
            _check(bound, number)
    step = number.multiple
    if step is None:
        if _takes_open_bound(number):
            raise _refused(number, "an exclusive bound this close to the other one is not kept by the engine")
        yield _between(number, "number")
    elif step == 1:
        yield _between(number, "integer")
    else:
        for multiple in _by_decimals(step):
            coefficient = _coefficient(multiple)
            if coefficient is None:
                raise _refused(number, f"multiples of {float(step):g} are beyond the engine's precision")
            budget.spend("steps", coefficient)
            kind = "integer" if multiple.denominator == 1 else "number"
            yield {**_between(number, kind), **({"multipleOf": plain(multiple)} if multiple != 1 else {})}
    if step is None or step.denominator != 1:
        values = [value for value in _cut_short(number) if step is None or (value / step).denominator == 1]
        if values:
            yield {"enum": [plain(value) for value in values]}


def _between(number: Number, kind: str) -> JsonSchema:
    schema: JsonSchema = {"type": kind}
    if number.low is not None:
        schema["exclusiveMinimum" if number.low_open else "minimum"] = plain(number.low)
    if number.high is not None:
        schema["exclusiveMaximum" if number.high_open else "maximum"] = plain(number.high)
    return schema


def _takes_open_bound(number: Number) -> bool:
    """Whether the engine's range includes a bound that is excluded: the one nearer to zero, when it is whole and the other one has
    the same whole part.
    """
    low, high = number.low, number.high
    if low is None or high is None:
        return False
    if low >= 0:
        return number.low_open and low.denominator == 1 and math.floor(high) == low
    return high <= 0 and number.high_open and high.denominator == 1 and math.floor(-low) == -high


def _by_decimals(step: Fraction) -> list[Fraction]:
    """Steps that together make the multiples of ``step``: the engine knows only multiples written with all decimals of its step, or all but
    trailing zeros where it is a power of ten.
    """
    found = [step]
    decimals = 0
    while (step * 10**decimals).denominator != 1 and decimals < 20:
        decimals += 1
    for places in range(decimals - 1, -1, -1):
        unit = Fraction(1, 10**places)
        common = math.lcm(step.numerator, unit.numerator), math.gcd(step.denominator, unit.denominator)
        found.append(Fraction(*common))
    return list(dict.fromkeys(found)) if step.numerator != 1 or 10**decimals != step.denominator else [step]


def _cut_short(number: Number) -> Iterator[Fraction]:
    """The numbers in range whose decimals are the first ones of the bound farther from zero; the engine wants more digits there."""
    for bound in (number.low, number.high):
        if bound is None or bound.denominator == 1:
            continue
        shorter, decimals = abs(bound), 0
        while (shorter * 10 ** (decimals + 1)).denominator != 1 and decimals < 20:
            value = Fraction(math.floor(shorter * 10**decimals), 10**decimals) * (1 if bound > 0 else -1)
            if _inside(value, number):
                yield value
            decimals += 1
        value = Fraction(math.floor(shorter * 10**decimals), 10**decimals) * (1 if bound > 0 else -1)
        if _inside(value, number):
            yield value


def _inside(value: Fraction, number: Number) -> bool:
    above = number.low is None or value > number.low or (value == number.low and not number.low_open)
    below = number.high is None or value < number.high or (value == number.high and not number.high_open)
    return above and below


def _sifted(number: Number) -> Iterator[JsonSchema]:
    """A few multiples, without those of others."""
    _, origin = number.not_multiples[0]
    step, low, high = number.multiple, number.low, number.high
    if step is None or low is None or high is None or (high - low) / step >= _FEW:
        raise SchemaRefused(origin, "numbers that are no multiple of something cannot be enforced")
    kept = [
        low + index * step
        for index in range(int((high - low) / step) + 1)
        if all(((low + index * step) / divisor).denominator != 1 for divisor, _ in number.not_multiples)
    ]
    for value in kept:
        _check(value, number)
    if kept:
        yield {"enum": [plain(value) for value in kept]}


def _check(bound: Fraction, number: Number) -> None:
    if abs(bound) >= _EXACT or exact(plain(bound)) != bound:
        raise _refused(number, f"{float(bound):g} is beyond the engine's precision")


def _coefficient(step: Fraction) -> int | None:
    """The states that the engine's automaton for multiples of ``step`` has; None if the engine does not read it exactly.

    The engine multiplies the binary number by ten until nothing is behind the point.
    """
    value, exponent = float(step), 0
    while value % 1 and exponent < 20:
        value, exponent = value * 10, exponent + 1
    if Fraction(value) / 10**exponent != step:
        return None
    core = int(value)
    for factor in (2, 5):
        while core and core % factor == 0:
            core //= factor
    if value < _MAX_COEFFICIENT:
        return int(value)
    return core if core * 10 < _MAX_COEFFICIENT and value < _MAX_ROUND_COEFFICIENT else None


def _refused(number: Number, reason: str) -> SchemaRefused:
    return SchemaRefused(number.origin or ROOT, reason)


def write_text(text: Text, languages: Languages) -> JsonSchema:
    """A schema for the strings of ``text``, which is no finite set of values."""
    schema: JsonSchema = {"type": "string"}
    if text.low:
        schema["minLength"] = text.low
    if text.high is not None:
        schema["maxLength"] = text.high
    if max(text.low, text.high or 0) > 100_000:
        raise SchemaRefused(text.origin or ROOT, "lengths over 100000 are not enforced")
    negative: list[Pattern] = list(text.not_patterns)
    if text.excluded:
        origin = text.origin or ROOT
        negative += [exactly(value, origin) for value in text.excluded]
    if text.excluded and not fits_trie(text.excluded):
        raise too_complex("it excludes too many strings, or too long ones", text.origin or ROOT)
    if text.excluded and not text.not_patterns and not text.patterns:
        schema["pattern"] = none_of(text.excluded)
    elif negative:
        wanted = frozenset(range(len(text.patterns)))
        both = [*text.patterns, *negative]
        schema["pattern"] = languages.rewritten(both, lambda labels: labels == wanted, negative[0].origin)
    elif len(text.patterns) == 1:
        schema["pattern"] = source(text.patterns[0])
    elif text.patterns:
        schema["allOf"] = [{"type": "string", "pattern": source(pattern)} for pattern in text.patterns]
    return schema
