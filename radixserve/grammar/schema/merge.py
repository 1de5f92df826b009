"""Conjunction of shapes (``allOf`` and everything that acts like it)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from radixserve.grammar.schema.keys import covers
from radixserve.grammar.schema.patterns import Languages
from radixserve.grammar.schema.shapes import (
    ANYWHERE,
    NOWHERE,
    Array,
    Boolean,
    Null,
    Number,
    Object,
    Place,
    Shape,
    Text,
)

_T = TypeVar("_T")


def merge(a: Shape, b: Shape, languages: Languages) -> Shape | None:
    """The values that both allow, or None where that is clearly no value."""
    if isinstance(a, Null) and isinstance(b, Null):
        return a
    if isinstance(a, Boolean) and isinstance(b, Boolean):
        if a.value is None or b.value is None or a.value == b.value:
            return Boolean(b.value if a.value is None else a.value)
        return None
    if isinstance(a, Number) and isinstance(b, Number):
        return tidy_number(_merge_numbers(a, b))
    if isinstance(a, Text) and isinstance(b, Text):
        return tidy_text(_merge_texts(a, b), languages)
    if isinstance(a, Array) and isinstance(b, Array):
        return tidy_array(_merge_arrays(a, b))
    if isinstance(a, Object) and isinstance(b, Object):
        return tidy_object(_merge_objects(a, b), languages)
    return None


def tidy(shape: Shape, languages: Languages) -> Shape | None:
    """The same shape with what is implied made plain, or None where it allows no value."""
    if isinstance(shape, Number):
        return tidy_number(shape)
    if isinstance(shape, Text):
        return tidy_text(shape, languages)
    if isinstance(shape, Array):
        return tidy_array(shape)
    if isinstance(shape, Object):
        return tidy_object(shape, languages)
    return shape


def _merge_numbers(a: Number, b: Number) -> Number:
    low, low_open = a.low, a.low_open
    if b.low is not None and (low is None or (b.low, b.low_open) > (low, low_open)):
        low, low_open = b.low, b.low_open
    high, high_open = a.high, a.high_open
    if b.high is not None and (high is None or (b.high, not b.high_open) < (high, not high_open)):
        high, high_open = b.high, b.high_open
    multiple = a.multiple or b.multiple
    if a.multiple is not None and b.multiple is not None:
        # Of fractions in lowest terms: least common multiple of the numerators over greatest common divisor of the denominators.
        multiple = Fraction(
            math.lcm(a.multiple.numerator, b.multiple.numerator),
            math.gcd(a.multiple.denominator, b.multiple.denominator),
        )
    return Number(
        low, low_open, high, high_open, multiple, _joined(a.not_multiples, b.not_multiples), a.origin or b.origin
    )


def tidy_number(number: Number) -> Number | None:
    """Bounds that are attained; None for an empty range."""
    low, high, step = number.low, number.high, number.multiple
    if step is not None:
        if low is not None:
            index = math.floor(low / step) + 1 if number.low_open else math.ceil(low / step)
            low = index * step
        if high is not None:
            index = math.ceil(high / step) - 1 if number.high_open else math.floor(high / step)
            high = index * step
        number = replace(number, low=low, low_open=False, high=high, high_open=False)
    if low is not None and high is not None and (low > high or (low == high and (number.low_open or number.high_open))):
        return None
    for divisor, _ in number.not_multiples:
        if step is not None and (step / divisor).denominator == 1:
            return None
        if low is not None and low == high:
            if (low / divisor).denominator == 1:
                return None
            number = replace(number, not_multiples=tuple(x for x in number.not_multiples if x[0] != divisor))
    return number


def _merge_texts(a: Text, b: Text) -> Text:
    values = a.values if b.values is None else b.values
    if a.values is not None and b.values is not None:
        allowed = frozenset(b.values)
        values = tuple(value for value in a.values if value in allowed)
    return Text(
        values,
        max(a.low, b.low),
        _least(a.high, b.high),
        _joined(a.patterns, b.patterns),
        _joined(a.not_patterns, b.not_patterns),
        _joined(a.excluded, b.excluded),
        a.origin or b.origin,
    )


def tidy_text(text: Text, languages: Languages) -> Text | None:
    """Finite sets are filtered by all the rest; None for no string."""
    if text.high is not None and text.low > text.high:
        return None
    if text.values is None:
        if frozenset(text.patterns) & frozenset(text.not_patterns):
            return None
        return replace(text, excluded=tuple(value for value in text.excluded if _admits(text, value, languages)))
    excluded = frozenset(text.excluded)
    values = tuple(value for value in text.values if value not in excluded and _admits(text, value, languages))
    return Text(values) if values else None


def _admits(text: Text, value: str, languages: Languages) -> bool:
    return (
        text.low <= len(value)
        and (text.high is None or len(value) <= text.high)
        and all(languages.matches(pattern, value) for pattern in text.patterns)
        and not any(languages.matches(pattern, value) for pattern in text.not_patterns)
    )


def admits(text: Text, value: str, languages: Languages) -> bool:
    """Whether ``value`` is one of the strings of ``text``."""
    return (
        (text.values is None or value in text.values) and value not in text.excluded and _admits(text, value, languages)
    )


def _merge_arrays(a: Array, b: Array) -> Array:
    prefix = tuple(item_place(a, i) & item_place(b, i) for i in range(max(len(a.prefix), len(b.prefix))))
    return Array(
        prefix,
        a.rest & b.rest,
        max(a.low, b.low),
        _least(a.high, b.high),
        _joined(a.counts, b.counts),
        a.unique or b.unique,
        a.not_unique or b.not_unique,
        a.origin or b.origin,
    )


def item_place(array: Array, index: int) -> Place:
    """What holds for the item at ``index``."""
    return array.prefix[index] if index < len(array.prefix) else array.rest


def tidy_array(array: Array) -> Array | None:
    """An array cannot go on past an item that nothing satisfies; None where it would have to."""
    prefix, high = array.prefix, array.high
    for index, item in enumerate(prefix):
        if item == NOWHERE:
            high = _least(high, index)
            break
    if array.rest == NOWHERE:
        high = _least(high, len(prefix))
    if high is not None:
        prefix = prefix[:high]
    while prefix and prefix[-1] == array.rest and (high is None or len(prefix) <= high):
        prefix = prefix[:-1]
    if (high is not None and array.low > high) or (array.unique and array.not_unique):
        return None
    return replace(array, prefix=prefix, high=high)


def _merge_objects(a: Object, b: Object) -> Object:
    rules = {rule.keys: rule for rule in a.rules}
    for rule in b.rules:
        mine = rules.get(rule.keys)
        rules[rule.keys] = rule if mine is None else replace(mine, place=mine.place & rule.place)
    return Object(
        tuple(rules.values()),
        _joined(a.required, b.required),
        max(a.low, b.low),
        _least(a.high, b.high),
        _joined(a.names, b.names),
        _joined(a.some, b.some),
        a.origin or b.origin,
    )


def tidy_object(shape: Object, languages: Languages) -> Object | None:
    """None where a required property is forbidden or more are required than allowed."""
    if shape.high is not None and (shape.low > shape.high or len(shape.required) > shape.high):
        return None
    rules = tuple(rule for rule in shape.rules if rule.place != ANYWHERE or rule.keys.name is not None)
    shape = replace(shape, rules=rules) if len(rules) != len(shape.rules) else shape
    properties = Properties(shape, languages)
    if any(properties.place(name) == NOWHERE for name in shape.required):
        return None
    some = [item for item in shape.some if item.place != NOWHERE]
    return None if len(some) < len(shape.some) else shape


class Properties:
    """What holds for the values of the properties of ``shape``, by name."""

    def __init__(self, shape: Object, languages: Languages) -> None:
        self._named = {rule.keys.name: rule.place for rule in shape.rules if rule.keys.name is not None}
        self._others = [rule for rule in shape.rules if rule.keys.name is None]
        self._languages = languages

    def place(self, name: str) -> Place:
        """What holds for the value of the property ``name``."""
        result = self._named.get(name, ANYWHERE)
        for rule in self._others:
            if covers(rule.keys, name, self._languages):
                result = result & rule.place
        return result


def _joined(a: Iterable[_T], b: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
