"""What a program adds to its state: texts, generations, choices, roles. Expressions are values; `+` puts them in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from radixlang.constraints import Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import InvalidProgram
from radixlang.sampling import Fields, Sampling
from radixlang.select import Method, token_length_normalized
from radixlang.typed import Reader, json_schema_of, typed


class Expr:
    """Anything that can be added to a state."""

    __slots__ = ()

    def __add__(self, other: str | Expr) -> Expr:
        return Row((*atoms(self), *atoms(other)))

    def __radd__(self, other: str) -> Expr:
        return Row((*atoms(other), *atoms(self)))

    def __format__(self, spec: str) -> str:
        """Raises `InvalidProgram`: in a formatted text the model would be shown an expression's Python instead of being asked."""
        kind = type(self).__name__.lower()
        raise InvalidProgram("s +=", f"a {kind} cannot stand inside a formatted text; add it with +")


@dataclass(frozen=True, slots=True)
class Constant(Expr):
    """Text as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Text that the model writes. ``reader`` makes the variable's value of it; None: the value is the text."""

    name: str | None
    sampling: Sampling
    constraint: Constraint | None = None
    reader: Reader | None = None
    heal: bool | None = None


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """One of ``choices``, by their likelihoods."""

    name: str | None
    choices: tuple[str, ...]
    method: Method
    heal: bool | None = None


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """The beginning of a message."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """The end of a message."""

    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin(Expr):
    """From here on text belongs to variable ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    """The end of what belongs to variable ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Row(Expr):
    """Expressions one after the other; none of them a row."""

    parts: tuple[Expr, ...]


def atoms(value: str | Expr) -> Iterator[Expr]:
    """The expressions that ``value`` is a row of. Raises `InvalidProgram` for what is no expression."""
    match value:
        case str():
            if value:
                yield Constant(value)
        case Row(parts):
            yield from parts
        case Expr():
            yield value
        case _:
            kind = type(value).__name__
            raise InvalidProgram("s +=", f"takes texts and expressions, not {kind}; make a text of it with str()")


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: Method | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | bool | None = None,
    grammar: str | None = None,
    heal: bool | None = None,
    **sampling: Unpack[Fields],
) -> Gen | Select:
    """Let the model write, and keep what it wrote as variable ``name``.

    ``dtype``: int, float, bool, str, a `Literal`, an enum, a dataclass, `msgspec.Struct` or pydantic model, lists of these and so on; the
    output is held to it and the variable has such a value. ``choices``: the same as `select`. ``regex``, ``json_schema``,
    ``grammar`` (GBNF): what the output must look like; the variable is its text. ``heal``: the prompt's last tokens may be replaced by
    others that spell the same and more, so that a text that ends inside a word or in a space does no harm; by default
    as the program says. With ``n`` above 1 the variable is a list, and the state goes on from the first sample.
    The rest is `Sampling`. Raises `InvalidProgram` naming the argument.
    """
    given = {"dtype": dtype, "choices": choices, "regex": regex, "json_schema": json_schema, "grammar": grammar}
    kinds = [field for field, value in given.items() if value is not None]
    if len(kinds) > 1:
        raise InvalidProgram(kinds[1], f"cannot be given together with {kinds[0]}")
    if choices is not None:
        fields: dict[str, Any] = {"max_tokens": max_tokens, **sampling}
        told = [field for field, value in fields.items() if value is not None and field != "temperature"]
        if told:
            raise InvalidProgram(told[0], "has no meaning where choices are scored")
        return select(name, choices, sampling.get("temperature") or 0.0, choices_method, heal=heal)
    if choices_method is not None:
        raise InvalidProgram("choices_method", "needs choices")
    constraint: Constraint | None = None
    reader: Reader | None = None
    if dtype is not None:
        constraint, reader = typed(dtype)
    elif regex is not None:
        constraint = Regex(regex)
    elif json_schema is not None:
        constraint = JsonSchema(json_schema_of(json_schema))
    elif grammar is not None:
        constraint = Grammar(grammar)
    return Gen(_named(name), _sampling(max_tokens, sampling), constraint, reader, _healing(heal))


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: Method | None = None,
    *,
    heal: bool | None = None,
) -> Select:
    """Add the one of ``choices`` that the model finds likeliest, by ``choices_method`` (default `token_length_normalized`).

    Nothing is sampled: a ``temperature`` other than 0 is refused. ``heal``: choices are read together with the text before
    them, as with `gen`. The variable is the choice; `meta` tells all scores. Raises `InvalidProgram` naming the argument.
    """
    if temperature:
        raise InvalidProgram("temperature", "choices are scored, not sampled")
    if choices is None or isinstance(choices, str):
        raise InvalidProgram("choices", "takes a list of texts")
    texts = tuple(choices)
    if not texts:
        raise InvalidProgram("choices", "is empty")
    for choice in texts:
        if choice == "" or not isinstance(choice, str):
            raise InvalidProgram("choices", f"takes texts that are not empty, not {choice!r}")
    if len(set(texts)) < len(texts):
        twice = next(choice for choice in texts if texts.count(choice) > 1)
        raise InvalidProgram("choices", f"{twice!r} is there twice")
    method = choices_method or token_length_normalized
    if not all(hasattr(method, needed) for needed in ("__call__", "name", "needs_unconditional")):
        raise InvalidProgram("choices_method", f"is a method such as token_length_normalized, not {method!r}")
    return Select(_named(name), texts, method, _healing(heal))


def gen_int(
    name: str | None = None, max_tokens: int | None = None, *, heal: bool | None = None, **sampling: Unpack[Fields]
) -> Gen:
    """`gen` of a whole number."""
    return _typed_gen(int, name, max_tokens, heal, sampling)


def gen_string(
    name: str | None = None, max_tokens: int | None = None, *, heal: bool | None = None, **sampling: Unpack[Fields]
) -> Gen:
    """`gen` of a JSON string: the text has the quotes, the variable is what is between them."""
    return _typed_gen(str, name, max_tokens, heal, sampling)


def gen_json(
    name: str | None = None,
    schema: Any = True,
    max_tokens: int | None = None,
    *,
    heal: bool | None = None,
    **sampling: Unpack[Fields],
) -> Gen:
    """`gen` of a JSON document, read: ``schema`` is a JSON schema (True: any document) or a type as for ``dtype``."""
    return _typed_gen(schema, name, max_tokens, heal, sampling, json=True)


def _typed_gen(
    dtype: Any, name: str | None, max_tokens: int | None, heal: bool | None, fields: Fields, *, json: bool = False
) -> Gen:
    constraint, reader = typed(dtype, json=json)
    return Gen(_named(name), _sampling(max_tokens, fields), constraint, reader, _healing(heal))


def _sampling(max_tokens: int | None, fields: Fields) -> Sampling:
    return Sampling.of(max_tokens=max_tokens, **fields)


def _healing(heal: bool | None) -> bool | None:
    if not isinstance(heal, bool | None):
        raise InvalidProgram("heal", f"is True or False, not {heal!r}")
    return heal


def _named(name: str | None) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidProgram("name", f"is a text, not {type(name).__name__}")
    return name
