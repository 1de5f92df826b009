"""Messages of a conversation as expressions."""

from __future__ import annotations

from radixlang.expressions import Expr, RoleBegin, RoleEnd, Row, atoms


def system(content: str | Expr) -> Expr:
    """A message that instructs the model."""
    return message("system", content)


def user(content: str | Expr) -> Expr:
    """A message of the user."""
    return message("user", content)


def assistant(content: str | Expr) -> Expr:
    """A message of the model; a `gen` in it is the model's answer."""
    return message("assistant", content)


def message(role: str, content: str | Expr) -> Expr:
    """A message of any role that the model's template knows."""
    return Row((RoleBegin(role), *atoms(content), RoleEnd(role)))


def system_begin() -> Expr:
    """The beginning of a system message; `system_end` ends it."""
    return RoleBegin("system")


def system_end() -> Expr:
    """The end of a system message."""
    return RoleEnd("system")


def user_begin() -> Expr:
    """The beginning of a user's message; `user_end` ends it."""
    return RoleBegin("user")


def user_end() -> Expr:
    """The end of a user's message."""
    return RoleEnd("user")


def assistant_begin() -> Expr:
    """The beginning of a message of the model; `assistant_end` ends it."""
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    """The end of a message of the model."""
    return RoleEnd("assistant")
