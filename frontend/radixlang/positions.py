"""Where in a program's source a step was written."""

from __future__ import annotations

import sys

from radixlang.errors import Position

_PACKAGE = __name__.split(".")[0]


def caller() -> Position:
    """The line that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE:
        frame = frame.f_back
    return Position(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
