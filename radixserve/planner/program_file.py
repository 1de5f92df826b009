"""The program and the inputs in a Python file."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from radixlang.function import Program
from radixserve.errors import ConfigError

INPUTS = "inputs"
PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A program and what to run it on, once for each of ``inputs``."""

    program: Program
    inputs: Sequence[Mapping[str, Any] | Sequence[Any]]


def read_program(path: Path, program: str | None = None, inputs: Path | None = None) -> ProgramFile:
    """Run the file ``path`` and take what it calls ``program`` and ``inputs``.

    ``program``: another name; without it a file's only program will do. ``inputs``: a JSON file with a list of objects or lists, one a run;
    without it the file's own: a list, or a function without required arguments that returns one. A program without parameters of its own
    needs no inputs. Raises `ConfigError` naming what is missing or wrong; what the file itself raises goes through.
    """
    module = _module(path)
    found = _program(module, path, program)
    return ProgramFile(found, _inputs(module, path, found, inputs))


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError("file", f"{path} is no file")
    name = f"radixserve_plan_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("file", f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # As Python has it for scripts and for -m: what stands beside the file and in the working directory can be imported, now and later.
    sys.path[:0] = [place for place in (str(path.parent.resolve()), str(Path.cwd())) if place not in sys.path]
    # Its classes find their module.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _program(module: ModuleType, path: Path, name: str | None) -> Program:
    if name is not None or hasattr(module, PROGRAM):
        value = getattr(module, name or PROGRAM, None)
        if not isinstance(value, Program):
            raise ConfigError(
                "program", f"{path} has no program (a function under @function) called {name or PROGRAM!r}"
            )
        return value
    own = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if len(set(map(id, own.values()))) != 1:
        known = f"it has {', '.join(sorted(own))}" if own else "it has no function under @function"
        raise ConfigError("program", f"{path} has none called {PROGRAM!r}; {known}")
    return next(iter(own.values()))


def _inputs(
    module: ModuleType, path: Path, program: Program, file: Path | None
) -> Sequence[Mapping[str, Any] | Sequence[Any]]:
    if file is not None:
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("inputs", f"{file} cannot be read: {error}") from None
        return _checked(value, str(file))
    if hasattr(module, INPUTS):
        value = getattr(module, INPUTS)
        return _checked(value() if callable(value) else value, f"{path}: {INPUTS}")
    parameters = list(inspect.signature(program.body).parameters.values())[1:]
    if any(
        parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL for parameter in parameters
    ):
        raise ConfigError("inputs", f"{path} has none called {INPUTS!r}, and the program has parameters")
    return [{}]


def _checked(value: object, where: str) -> Sequence[Mapping[str, Any] | Sequence[Any]]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence) or not value:
        raise ConfigError("inputs", f"{where} must be a list, and hold the arguments of at least one run")
    for number, item in enumerate(value):
        if isinstance(item, str) or not isinstance(item, Mapping | Sequence):
            raise ConfigError("inputs", f"{where}[{number}] must be a mapping of arguments or a sequence of them")
    return value
