"""What can go wrong in a program, or on its way to a model.

RadixlangError
├── ProgramError         a step of a program failed; says where in the program
├── BackendError         the model's side failed
│   ├── Refused          it refused the request; names the field
│   └── BackendClosed    it is gone
├── Unsupported          this backend has no such primitive; names it
├── UnknownVariable      the program never made a variable of that name
├── InvalidProgram       an expression or argument is wrong; names the field
├── UnreadableOutput     an output is no value of the type that was asked for
└── Stopped              the program was ended from outside
    └── TimedOut         because its time was over
"""

from __future__ import annotations

from dataclasses import dataclass


class RadixlangError(Exception):
    """Anything that this package raises."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in a program's source a step stands."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class ProgramError(RadixlangError):
    """A step of a program failed; its cause is ``__cause__``.

    ``position``: the line of the program that asked for the step. ``variable``: the one that it would have set.
    """

    def __init__(self, message: str, position: Position, variable: str | None = None) -> None:
        super().__init__(f"{position}: {message}")
        self.position = position
        self.variable = variable


class BackendError(RadixlangError):
    """The model's side failed."""


class Refused(BackendError):
    """A request was refused; ``param`` names the field that is wrong, where one is."""

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.param = param
        self.message = message
        self.code = code


class BackendClosed(BackendError):
    """The model's side is gone, or was closed."""


class Unsupported(RadixlangError):
    """The backend ``backend`` cannot do ``primitive``; nothing weaker is done in its place."""

    def __init__(self, primitive: str, backend: str, why: str) -> None:
        super().__init__(f"{primitive}: not possible on {backend}: {why}")
        self.primitive = primitive
        self.backend = backend


class UnknownVariable(RadixlangError, KeyError):
    """The program has no variable ``name``."""

    def __init__(self, name: str) -> None:
        RadixlangError.__init__(self, f"the program sets no variable {name!r}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidProgram(RadixlangError, ValueError):
    """An expression, or an argument of one, is wrong; ``param`` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class UnreadableOutput(RadixlangError, ValueError):
    """An output is no value of the type that its variable has."""


class Stopped(RadixlangError):
    """The program was ended from outside before it was done: its calls are aborted, and nothing can be added or read."""


class TimedOut(Stopped, TimeoutError):
    """The program took longer than it was given."""
