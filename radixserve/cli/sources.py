"""Options from a TOML file and from the environment, under the same names as the flags.

The file goes before the defaults, the environment before the file, flags before all of them. What nobody knows is refused,
with the place where it stands.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from radixserve.cli.flags import Flag
from radixserve.errors import ConfigError

PREFIX = "RADIXSERVE_"
# Variables of other parts of the package.
OTHERS = frozenset({"RADIXSERVE_ISA", "RADIXSERVE_NATIVE_LIBRARY", "RADIXSERVE_CONFIG"})


def file_options(path: Path, flags: Iterable[Flag]) -> dict[str, Any]:
    """The options in a TOML file; tables only group them. Raises `ConfigError` naming the file and the key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} is not valid TOML: {error}") from None
    known = {flag.option: flag for flag in flags}
    found: dict[str, Any] = {}
    for name, value in _flatten(values):
        flag = known.get(name)
        if flag is None:
            raise ConfigError(name, f"{path} sets an option that is not known")
        if name in found:
            raise ConfigError(name, f"{path} sets it twice")
        if typing.get_origin(flag.hint) is tuple and isinstance(value, list | str):
            value = (value,) if isinstance(value, str) else tuple(value)
        found[name] = value
    return found


def environment_options(environment: Mapping[str, str], flags: Iterable[Flag]) -> dict[str, Any]:
    """The options in variables such as ``RADIXSERVE_MAX_BATCH_TOKENS``; lists are separated by commas.

    Raises `ConfigError` naming the variable.
    """
    known = {PREFIX + flag.option.upper(): flag for flag in flags}
    found: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in OTHERS:
            continue
        flag = known.get(name)
        if flag is None:
            raise ConfigError(name, "this environment variable sets an option that is not known")
        found[flag.option] = _read(name, text, flag.hint)
    return found


def _flatten(values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value)
        else:
            yield name, value


def _read(name: str, text: str, hint: Any) -> Any:
    """``text`` in the option's type."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(choice for choice in choices if choice is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(name, "must be true or false")
        return _BOOLEANS[text.lower()]
    if typing.get_origin(kind) is Literal:
        return text
    try:
        return kind(text)
    except ValueError:
        # The text is not shown: a variable may hold a secret.
        raise ConfigError(name, f"must be {kind.__name__}") from None


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
