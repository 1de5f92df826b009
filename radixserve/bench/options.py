"""What a benchmark is asked to do, and what it hands back. Light to import: the command line reads defaults from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixserve.bench.step_case import DEFAULT_CASES
from radixserve.bench.workloads import NAMES, WHOLE, Scale
from radixserve.errors import ConfigError

OWN_SERVER = "radixserve"

# Is told what is being done.
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FloorOptions:
    """Where the machine's limits come from: measured, or read from ``file``; ``wanted``: False does without, and without floors."""

    wanted: bool = True
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to run.

    ``url``: the server under test, called ``name``; None starts ours with ``engine`` options. ``peers``: name -> URL of others.
    ``native``: names of servers whose weights are in the blocks of their file. ``model``: whose tokenizer makes the prompts and whose
    shapes make the floors. ``model_name``: what the servers call it; None asks them. ``token_ids``: send prompts as token ids.
    """

    url: str | None = None
    name: str = OWN_SERVER
    peers: Mapping[str, str] = field(default_factory=dict)
    native: frozenset[str] = frozenset()
    model: str = "smollm2"
    model_name: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    workloads: tuple[str, ...] = NAMES
    rounds: int = 3
    seed: int = 1
    scale: Scale = WHOLE
    token_ids: bool = False

    def validate(self) -> None:
        """Raise `ConfigError` naming the option that is wrong."""
        if unknown := [name for name in self.workloads if name not in NAMES]:
            raise ConfigError("workload", f"unknown: {', '.join(unknown)}; known are {', '.join(NAMES)}")
        if self.rounds < 1:
            raise ConfigError("rounds", f"must be at least 1, not {self.rounds}")
        if self.name in self.peers:
            raise ConfigError("peer", f"{self.name!r} is the server under test")
        if unknown := sorted(self.native - {self.name, *self.peers}):
            raise ConfigError("native", f"no server is called {', '.join(unknown)}")
        if self.url is not None and self.engine:
            raise ConfigError(next(iter(self.engine)), "is an option of a server that is started here; there is a URL")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """``engine``: its options by flat name. ``cases``: as `radixserve.bench.step_case.StepCase` reads them. ``steps``: timed of each.

    ``busy``: processes that compete for the cores meanwhile.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[str, ...] = DEFAULT_CASES
    steps: int = 20
    busy: int = 0


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """``groups``: of kernels, all where empty. ``threads``: 0 takes the cores this process may use. ``repeats``: runs of each.

    ``most_tokens``: larger batches are left out.
    """

    groups: tuple[str, ...] = ()
    threads: int = 0
    repeats: int = 9
    most_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Finished:
    """A benchmark that has run: its ``report`` as written to JSON, the same as text and as an SVG; ``errors``: requests that failed."""

    report: Any
    text: str
    chart: str
    errors: int = 0
