"""Log records that cross a pipe as lines."""

from __future__ import annotations

import logging
import sys

from radixserve.engine.log_relay import RelayFormatter, read_record


def relayed(record: logging.LogRecord) -> logging.LogRecord:
    line = RelayFormatter().format(record)
    assert "\n" not in line
    again = read_record(line + "\n")
    assert again is not None
    return again


def test_a_record_is_the_same_on_the_other_side() -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("radixserve.x", logging.WARNING, "f.py", 3, "two\nlines: %d", (5,), error)
    again = relayed(record)
    assert (again.name, again.levelno, again.getMessage()) == ("radixserve.x", logging.WARNING, "two\nlines: 5")
    assert (again.created, again.levelname) == (record.created, "WARNING")
    formatted = logging.Formatter("%(message)s").format(again)
    assert "ValueError: broken\nin two" in formatted and "Traceback" in formatted


def test_what_is_no_record_is_left_alone() -> None:
    assert read_record("Segmentation fault\n") is None
    assert read_record("\x1e{half a record\n") is None
    assert read_record('\x1e{"level": "high"}\n') is None
