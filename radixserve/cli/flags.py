"""Command-line flags made from the classes that define the options, so that nothing is declared twice.

A command takes some of ``options: EngineOptions``, ``sampling: SamplingFields`` and ``server: ServerFields``;
`expand_flags` replaces these parameters by one flag an option. The mappings hold only what was given on the
command line: every default stays where it is defined.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import typer

from radixserve.cli.constraint_flags import CONSTRAINT_HELP, CONSTRAINT_TYPES, constraint_of
from radixserve.cli.help_text import ENGINE_HELP, SAMPLING_HELP, SERVER_HELP
from radixserve.config import EngineConfig
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams
from radixserve.server.options import ServerOptions

EngineOptions = dict[str, Any]
SamplingFields = dict[str, Any]
ServerFields = dict[str, Any]

# What the field calls an option for short.
_SHORT_NAMES = {"tensor_parallel_size": "--tp", "watchdog_timeout_s": "--watchdog-timeout"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: the option it sets, and the keyword under which typer passes its value (the two differ for a name that
    is both an engine option and a sampling field).
    """

    option: str
    keyword: str
    hint: Any
    default: Any
    help: str
    panel: str

    def parameter(self) -> inspect.Parameter:
        """The flag as typer reads it: a keyword whose default, None, means "not given"."""
        hint, metavar = _flag_type(self.hint)
        long = "--" + self.keyword.replace("_", "-")
        names = [f"{long}/--no-{long[2:]}"] if hint is bool else [long]
        if len(self.keyword) == 1:
            names.append(f"-{self.keyword}")
        if self.option in _SHORT_NAMES:
            names.append(_SHORT_NAMES[self.option])
        info = typer.Option(
            *names,
            help=self.help,
            metavar=metavar,
            rich_help_panel=self.panel,
            show_default=_shown(self.default),
        )
        return inspect.Parameter(
            self.keyword, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, info]
        )

    def value(self, given: Any) -> Any:
        """What typer parsed, in the type of the option; raises `InvalidRequest` naming it."""
        if typing.get_origin(self.hint) is dict:
            return dict(_pair(self.option, text) for text in given)
        return tuple(given) if typing.get_origin(self.hint) is tuple else given


def engine_flags(*, beside_sampling: bool = True) -> Iterator[Flag]:
    """One flag for each option of `EngineConfig`, in the order of its parts.

    ``beside_sampling``: the command has the sampling fields too, so what both call by one name is told apart.
    """
    default = EngineConfig()
    hints = typing.get_type_hints(EngineConfig)
    for part in dataclasses.fields(EngineConfig):
        value = getattr(default, part.name)
        if not dataclasses.is_dataclass(value):
            yield _engine_flag(part.name, hints[part.name], value, "Engine", beside_sampling)
            continue
        part_hints = typing.get_type_hints(type(value))
        for item in dataclasses.fields(value):
            panel = part.name.capitalize()
            yield _engine_flag(item.name, part_hints[item.name], getattr(value, item.name), panel, beside_sampling)


def server_flags() -> Iterator[Flag]:
    """One flag for each field of `ServerOptions`, grouped by topic."""
    hints = typing.get_type_hints(ServerOptions)
    for item in dataclasses.fields(ServerOptions):
        panel, text = SERVER_HELP.get(item.name, ("Server", ""))
        yield Flag(item.name, item.name, hints[item.name], item.default, text, panel)


def sampling_flags() -> Iterator[Flag]:
    """One flag for each field of `SamplingParams` but the constraint, which has several of its own."""
    default = SamplingParams()
    for item in msgspec.structs.fields(SamplingParams):
        if item.name == "constraint":
            continue
        value = getattr(default, item.name)
        yield Flag(item.name, item.name, item.type, value, SAMPLING_HELP.get(item.name, ""), "Sampling")


def constraint_flags() -> Iterator[Flag]:
    """One flag for each kind of constraint."""
    for name, hint in CONSTRAINT_TYPES.items():
        yield Flag(name, name, hint, None, CONSTRAINT_HELP[name], "Constraint")


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with its parameters ``options``, ``sampling`` and ``server`` replaced by one flag an option."""
    signature = inspect.signature(command, eval_str=True)
    beside_sampling = "sampling" in signature.parameters
    made = {
        "options": lambda: engine_flags(beside_sampling=beside_sampling),
        "sampling": lambda: (*sampling_flags(), *constraint_flags()),
        "server": server_flags,
    }
    groups = {name: tuple(flags()) for name, flags in made.items() if name in signature.parameters}

    @functools.wraps(command)
    def expanded(**keywords: Any) -> None:
        for group, flags in groups.items():
            given = {flag.option: (flag, keywords.pop(flag.keyword)) for flag in flags}
            keywords[group] = {name: flag.value(value) for name, (flag, value) in given.items() if value is not None}
        if "sampling" in groups:
            _gather_constraint(keywords["sampling"])
        command(**keywords)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            parameters += [flag.parameter() for flag in groups[parameter.name]]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _engine_flag(name: str, hint: Any, default: Any, panel: str, beside_sampling: bool) -> Flag:
    keyword = f"engine_{name}" if beside_sampling and name in SamplingParams.__struct_fields__ else name
    return Flag(name, keyword, hint, default, ENGINE_HELP.get(name, ""), panel)


def _gather_constraint(sampling: SamplingFields) -> None:
    """Put the constraint itself in the place of the flags that ask for it."""
    given = {name: sampling.pop(name) for name in CONSTRAINT_TYPES if name in sampling}
    constraint = constraint_of(given)
    if constraint is not None:
        sampling["constraint"] = constraint


def _flag_type(hint: Any) -> tuple[Any, str | None]:
    """The type that typer parses for a field's type, and the placeholder to show where typer's own would mislead."""
    if isinstance(hint, types.UnionType):
        (hint,) = (choice for choice in typing.get_args(hint) if choice is not type(None))
    origin = typing.get_origin(hint)
    if origin is dict:
        return list[str], "ID=BIAS"
    if origin is tuple:
        return list[typing.get_args(hint)[0]], None  # type: ignore[misc]
    if origin is Literal:
        return hint, "|".join(typing.get_args(hint))
    return hint, None


def _shown(default: Any) -> str | bool:
    """The default as the help shows it; False shows none."""
    if default is None or default == () or default == {}:
        return False
    if isinstance(default, bool):
        return "on" if default else "off"
    return str(default)


def _pair(option: str, text: str) -> tuple[int, float]:
    key, _, value = text.partition("=")
    try:
        return int(key), float(value)
    except ValueError:
        raise InvalidRequest(option, f"must be ID=BIAS, a token id and a number, not {text!r}") from None
