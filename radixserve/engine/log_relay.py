"""Log records of the engine process on their way to the server's handlers, over the engine's standard error.

A record is one line: a mark and the record as JSON. Everything else on that stream (a traceback of the interpreter, what a
native library prints) is passed on as it is.
"""

from __future__ import annotations

import logging
import traceback

import msgspec

_MARK = "\x1e"


class Record(msgspec.Struct, frozen=True):
    """What is kept of a log record. ``created``: seconds since the epoch."""

    level: int
    name: str
    message: str
    created: float
    trace: str | None = None


class RelayFormatter(logging.Formatter):
    """Writes records as lines that `read_record` understands."""

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else None
        packed = Record(record.levelno, record.name, record.getMessage(), record.created, trace)
        return _MARK + msgspec.json.encode(packed).decode()


def read_record(line: str) -> logging.LogRecord | None:
    """The record in ``line``; None if it is none."""
    if not line.startswith(_MARK):
        return None
    try:
        packed = msgspec.json.decode(line[len(_MARK) :], type=Record)
    except msgspec.DecodeError:
        return None
    record = logging.LogRecord(packed.name, packed.level, "", 0, packed.message, None, None)
    record.created = packed.created
    record.msecs = packed.created % 1 * 1000
    record.exc_text = packed.trace
    return record
