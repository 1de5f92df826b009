"""The server's options: one frozen object, under the same names as flags, environment variables and keys of the TOML file."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Literal

from radixserve.config import check_type
from radixserve.errors import ConfigError

MAX_KEY_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the engine is served over HTTP.

    ``api_key``: any of them opens the API; with none it is open to all who reach it. ``admin_key``: opens the whole view of
    the cache, flushing all of it and aborting others' requests. ``cors``: origins that browsers may call from (``*``:
    all). ``max_queued_requests``: prompts that may wait for their first token; more are a 429. ``max_body_mb``:
    largest request body, unpacked. ``request_timeout_s``: a request that takes longer is ended (0: none). ``grace_s``: how
    long requests may run on after the server was told to stop. ``keepalive_s``: a silent stream carries a comment that
    often. ``served_model_name``: names under which clients may ask for the model, the first is shown; without one the
    model's own. ``retokenize_history``: tokenize earlier answers again instead of re-using their token ids.
    ``stored_responses``: how many answers of ``/v1/responses`` are kept for ``previous_response_id``. ``public_prompt``: files whose
    text every caller may share as a cached prefix; computed at start.
    ``log_prompts``: write prompts and outputs to the log (off: never).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    cors: tuple[str, ...] = ()
    served_model_name: tuple[str, ...] = ()
    max_queued_requests: int = 1024
    max_body_mb: int = 16
    request_timeout_s: float = 0.0
    grace_s: float = 10.0
    keepalive_s: float = 15.0
    retokenize_history: bool = False
    stored_responses: int = 1000
    public_prompt: tuple[str, ...] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    log_prompts: bool = False

    def validate(self) -> None:
        """Raise `ConfigError` naming the first option that is of the wrong type or out of range."""
        hints = typing.get_type_hints(type(self))
        for item in dataclasses.fields(self):
            check_type(item.name, getattr(self, item.name), hints[item.name])
        if not self.host:
            raise ConfigError("host", "must not be empty")
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", f"must be between 0 and 65535, not {self.port}")
        keys = [*self.api_key, *([] if self.admin_key is None else [self.admin_key])]
        for name, key in [*(("api_key", key) for key in self.api_key), ("admin_key", self.admin_key)]:
            # The key itself is never part of a message.
            if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
                raise ConfigError(name, "must be printable ASCII text and not empty")
            if key is not None and key != key.strip():
                raise ConfigError(name, "must not begin or end with a space")
        if len(set(keys)) != len(keys):
            raise ConfigError("api_key", "the same key is given twice")
        for name, low in (("max_queued_requests", 1), ("max_body_mb", 1), ("stored_responses", 0)):
            if getattr(self, name) < low:
                raise ConfigError(name, f"must be at least {low}, not {getattr(self, name)}")
        for name in ("request_timeout_s", "grace_s"):
            if not 0 <= getattr(self, name) < 1e9:
                raise ConfigError(name, f"must be at least 0, not {getattr(self, name)}")
        if not 0 < self.keepalive_s < 1e9:
            raise ConfigError("keepalive_s", f"must be above 0, not {self.keepalive_s}")
        if any(not name for name in self.served_model_name):
            raise ConfigError("served_model_name", "must not be empty")
