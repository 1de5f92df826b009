"""Where a program's tokens and seconds went, and how much of what could be re-used was.

Columns, here and in JSON. ``calls``: to the model. ``prompt``: tokens of the prompts that the program's calls sent. ``cached``: of
those, found in the engine's cache. ``computed``: prompt tokens that the engine computed. ``needed``: that a cache without end
would have computed (`radixlang.optimum`). ``generated``: output tokens, ``forced`` of them where a constraint left one token
only. ``wall_s``: seconds from sending to the end, added up over calls that may have run at the same time; ``queue_s`` of them
before the engine began. None (a dash in the table) where the backend does not tell. Calls of one variable, in whatever
branch or program, share a line.

A hold computes a prefix ahead of the calls that begin with it. Its prompt is not the program's, so totals count of holds only
``computed`` and ``wall_s``; the calls then find that much more cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec

from radixlang.accounting import Kind, Ledger, Record
from radixlang.backends.base import Usage
from radixlang.optimum import Optimum

_K = TypeVar("_K")
_N = TypeVar("_N", int, float)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over some calls; see the module for the columns. ``name``: of the variable or branch, or the program's number."""

    name: str
    kind: Kind | Literal["all"]
    calls: int
    prompt: int
    cached: int | None
    computed: int | None
    needed: int | None
    generated: int
    forced: int | None
    wall_s: float
    queue_s: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one program or of a batch; `str` of it is a table.

    ``variables``: in order of first use, holds as a variable ``(held)``; ``branches`` and ``programs``: the same calls summed otherwise.
    ``elapsed_s``: from the first call's sending to the last one's end.

    ``reused``: prompt tokens that did not have to be computed, what holds computed taken off. ``reusable``: the same for a cache
    without end. ``share``: the first of the second; above 1 where the cache knew prompts from before, None where nothing was
    re-usable or the backend does not tell.
    """

    variables: tuple[Line, ...]
    branches: tuple[Line, ...]
    programs: tuple[Line, ...]
    total: Line
    elapsed_s: float
    reused: int | None
    reusable: int | None
    share: float | None

    def json(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, strings and numbers."""
        return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(self)))

    def to_json(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    def __str__(self) -> str:
        programs = len(self.programs)
        head = f"{_count(programs, 'program')}, {_count(self.total.calls, 'call')}, {self.elapsed_s:.2f} s"
        return "\n".join((head, "", *_table((*self.variables, self.total)), "", self._summary()))

    def _summary(self) -> str:
        if self.reused is None:
            return "The backend does not tell what it re-used."
        text = f"{self.reused:,} of {self.total.prompt:,} prompt tokens were re-used"
        if self.reusable is None:
            return f"{text}."
        text = f"{text}; a cache without end re-uses {self.reusable:,}"
        return f"{text}." if self.share is None else f"{text}: {100 * self.share:.1f} % of the optimum."


class Accounted(Protocol):
    """What keeps a ledger; the final states of programs do."""

    @property
    def ledger(self) -> Ledger:
        """Its program's calls."""


def program_report(ledger: Ledger) -> Report:
    """The account of one program."""
    return _report([ledger.records()])


def batch_report(states: Iterable[Accounted]) -> Report:
    """The account of many programs that shared a cache, such as those of a batch; ``programs`` has a line for each, by number."""
    return _report([state.ledger.records() for state in states])


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record, its program's number, and what it needed to compute: 0 for a hold, None where its tokens are not known."""

    record: Record
    program: int
    needed: int | None


def _report(programs: Sequence[Sequence[Record]]) -> Report:
    entries = _entries(programs)
    total = _line("total", "all", entries)
    reused, reusable = _less(total.prompt, total.computed), _less(total.prompt, total.needed)
    by_program = _groups(entries, lambda entry: entry.program)
    return Report(
        variables=tuple(
            _line(name, kind, group)
            for (name, kind), group in _groups(entries, lambda entry: (_name(entry.record), entry.record.kind)).items()
        ),
        branches=tuple(
            _line(branch, "all", group) for branch, group in _groups(entries, lambda entry: entry.record.branch).items()
        ),
        programs=tuple(_line(str(number), "all", by_program.get(number, [])) for number in range(len(programs))),
        total=total,
        elapsed_s=_elapsed([entry.record for entry in entries]),
        reused=reused,
        reusable=reusable,
        share=reused / reusable if reused is not None and reusable else None,
    )


def _entries(programs: Sequence[Sequence[Record]]) -> list[_Entry]:
    """All calls in the order in which they ended; those of one program stay in theirs."""
    numbered = [(record, number) for number, records in enumerate(programs) for record in records]
    numbered.sort(key=lambda item: item[0].ended)
    optimum = Optimum()
    return [_Entry(record, number, _needed(optimum, record)) for record, number in numbered]


def _needed(optimum: Optimum, record: Record) -> int | None:
    if record.kind == "hold":
        return 0
    if not record.prompt and not record.outputs:
        return None
    if record.kind == "select":
        return optimum.score(record.prompt, record.outputs)
    return optimum.generate(record.prompt, record.outputs)


def _name(record: Record) -> str:
    return record.variable if record.variable is not None else "(held)" if record.kind == "hold" else "(unnamed)"


def _groups(entries: Iterable[_Entry], key: Callable[[_Entry], _K]) -> dict[_K, list[_Entry]]:
    groups: dict[_K, list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _line(name: str, kind: Kind | Literal["all"], entries: Sequence[_Entry]) -> Line:
    """The sums over ``entries``. Prompts of holds count in a line of holds only."""
    asked = entries if kind == "hold" else [entry for entry in entries if entry.record.kind != "hold"]
    usages = [entry.record.usage for entry in entries]
    return Line(
        name=name,
        kind=kind,
        calls=len(asked),
        prompt=sum(entry.record.usage.prompt for entry in asked),
        cached=_sum(_cached(entry.record.usage) for entry in asked),
        computed=_sum(_computed(usage) for usage in usages),
        needed=_sum(entry.needed for entry in entries),
        generated=sum(usage.generated for usage in usages),
        forced=_sum(usage.forced for usage in usages if usage.generated),
        wall_s=sum(usage.wall_s for usage in usages),
        queue_s=_sum(entry.record.usage.queue_s for entry in asked),
    )


def _cached(usage: Usage) -> int | None:
    return usage.cached if usage.cached is not None else _less(usage.prompt, usage.computed)


def _computed(usage: Usage) -> int | None:
    return usage.computed if usage.computed is not None else _less(usage.prompt, usage.cached)


def _less(whole: int, part: int | None) -> int | None:
    return None if part is None else whole - part


def _sum(values: Iterable[_N | None]) -> _N | None:
    """The sum, None as soon as one is not known."""
    total: Any = 0
    for value in values:
        if value is None:
            return None
        total += value
    return cast("_N", total)


def _elapsed(records: Sequence[Record]) -> float:
    if not records:
        return 0.0
    return max(record.ended for record in records) - min(record.ended - record.usage.wall_s for record in records)


_HEADINGS = ("", "", "calls", "prompt", "cached", "computed", "needed", "generated", "forced", "wall s", "queue s")


def _table(lines: Sequence[Line]) -> list[str]:
    rows = [_HEADINGS, *map(_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _cells(line: Line) -> tuple[str, ...]:
    counts = (line.calls, line.prompt, line.cached, line.computed, line.needed, line.generated, line.forced)
    seconds = (line.wall_s, line.queue_s)
    return (
        line.name,
        "" if line.kind == "all" else line.kind,
        *("-" if count is None else f"{count:,}" for count in counts),
        *("-" if value is None else f"{value:,.2f}" for value in seconds),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
