"""Log lines: as text for people, or one JSON object a line for machines."""

from __future__ import annotations

import datetime as dt
import logging
import sys
from contextvars import ContextVar
from typing import Any

import msgspec

from radixserve.server.options import ServerOptions

# What becomes known of the request in hand while it is handled, for its log line; the gate makes a new one for each.
request_facts: ContextVar[dict[str, Any] | None] = ContextVar("request_facts", default=None)


class JSONFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the record's ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, message, and of a request its tokens and its id."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = super().format(record)
        facts = getattr(record, "facts", {})
        if "prompt_tokens" in facts:
            line += f", {facts['prompt_tokens']} prompt tokens ({facts['cached_tokens']} cached), "
            line += f"{facts['completion_tokens']} new"
        if "request_id" in facts:
            line += f" [{facts['request_id']}]"
        # Texts come last: they may be long, and the operator asked for them.
        for name in ("prompts", "outputs"):
            if name in facts:
                line += f"\n  {name}: {facts[name]!r}"
        return line


def set_up_logs(options: ServerOptions) -> None:
    """Send all logs to standard error, as ``options`` say. Called once by the server's process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if options.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options.log_level.upper())
    # The access line is ours; uvicorn's would be a second one.
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("uvicorn", "uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.error").setLevel("WARNING" if options.log_level != "debug" else "DEBUG")
