"""What the server's and the engine's process tell each other: msgspec structs as MessagePack, one struct a message.

Fields are only ever appended, with defaults. A job is called by a number that the client gives it, which is shorter than its
rid; job i of a `Submit` has ``number + i``. A question's number is of the same sequence, so a `Refused` needs no more
than a number.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.engine.client import EngineInfo, Job
from radixserve.errors import (
    ContextLengthExceeded,
    EngineClosed,
    InvalidRequest,
    PoolTooSmall,
    RadixServeError,
    UnsupportedFeature,
)
from radixserve.messages import GenerationChunk

# ---------------------------------------------------------------- to the engine


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only line on the engine process's standard input, as JSON.

    ``options``: the engine's, by flat name. ``inbound``, ``outbound``: addresses it connects to, for messages to and from
    it. ``directory``: where these sockets live, to be removed if the parent cannot. ``log_level``: of what it relays.
    """

    options: dict[str, Any]
    inbound: str
    outbound: str
    directory: str
    log_level: int


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Queue all ``jobs`` or none."""

    number: int
    jobs: list[Job]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End generations; unknown and finished ones are left alone."""

    rids: list[str]


class Explain(msgspec.Struct, frozen=True, tag="explain"):
    """Answered by an `Explanation`."""

    token_ids: list[int]
    salt: bytes
    see_all: bool = False


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Answered by the number of blocks. ``salt``: of one namespace, None for all."""

    salt: bytes | None = None


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Answered by the number of holds that there were."""

    ids: list[str]


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Answered by a dict."""


class View(msgspec.Struct, frozen=True, tag="view"):
    """Answered by a `CacheView`."""

    salt: bytes | None
    max_nodes: int
    max_tokens: int


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Answered by a list of texts."""


Question = Explain | Flush | Release | Stats | View | Check


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question, to be answered between two steps."""

    number: int
    question: Question


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End what runs and exit."""


Call = Submit | Abort | Ask
Request = Call | Close

# ---------------------------------------------------------------- from the engine


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """What is being done before the engine is ready, in words."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine takes requests."""

    info: EngineInfo


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of job ``number``, without what the client knows: the job's rid, its place and its prompt."""

    number: int
    stripped: GenerationChunk

    @classmethod
    def of(cls, number: int, chunk: GenerationChunk) -> Piece:
        """``chunk`` of job ``number``."""
        output = chunk.output
        if output is not None:
            output = msgspec.structs.replace(output, prompt_token_ids=[])
        return cls(number, msgspec.structs.replace(chunk, rid="", output=output))

    def chunk(self, job: Job, prompt_index: int) -> GenerationChunk:
        """The chunk again, as piece of ``job``."""
        output = self.stripped.output
        if output is not None:
            output.prompt_token_ids = job.token_ids
        return msgspec.structs.replace(self.stripped, rid=job.rid, prompt_index=prompt_index)


class Pieces(msgspec.Struct, frozen=True, tag="pieces"):
    """What one step brought."""

    pieces: list[Piece]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer to a question, encoded by itself: its type follows from the question."""

    number: int
    value: msgspec.Raw


class Invalid(msgspec.Struct, frozen=True, tag="invalid"):
    """An `InvalidRequest` without more to it."""

    param: str | None
    message: str
    code: str


class ContextExceeded(msgspec.Struct, frozen=True, tag="context"):
    """A `ContextLengthExceeded`."""

    limit: int
    prompt_tokens: int
    max_tokens: int
    param: str | None


class PoolExceeded(msgspec.Struct, frozen=True, tag="pool"):
    """A `PoolTooSmall`."""

    needed: int
    held: int
    param: str | None


class Unsupported(msgspec.Struct, frozen=True, tag="unsupported"):
    """An `UnsupportedFeature`."""

    param: str
    message: str


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """An `EngineClosed`."""

    message: str


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Any other error: the engine's, not the caller's."""

    message: str


WireError = Invalid | ContextExceeded | PoolExceeded | Unsupported | Closed | Failure


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A `Submit` was not queued, or a question cannot be answered."""

    number: int
    error: WireError


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The engine's last message: it is not ready and will never be, or it ends, and why."""

    reason: str


Report = Loading | Ready | Pieces | Answer | Refused | Stopped

# ---------------------------------------------------------------- errors


def pack_error(error: BaseException) -> WireError:
    """``error`` for the wire."""
    match error:
        case ContextLengthExceeded():
            return ContextExceeded(error.limit, error.prompt_tokens, error.max_tokens, error.param)
        case PoolTooSmall():
            return PoolExceeded(error.needed, error.held, error.param)
        case UnsupportedFeature(param=str(param)):
            return Unsupported(param, error.message)
        case InvalidRequest():
            return Invalid(error.param, error.message, error.code)
        case EngineClosed():
            return Closed(str(error))
        case RadixServeError():
            return Failure(str(error))
    return Failure(f"{type(error).__name__}: {error}")


def unpack_error(error: WireError) -> RadixServeError:
    """The exception that was packed; param, code and message are as they were."""
    match error:
        case ContextExceeded():
            return ContextLengthExceeded(error.limit, error.prompt_tokens, error.max_tokens, error.param or "prompt")
        case PoolExceeded():
            return PoolTooSmall(error.needed, error.held, error.param or "max_tokens")
        case Unsupported():
            return UnsupportedFeature(error.param, error.message)
        case Invalid():
            return InvalidRequest(error.param, error.message, error.code)
        case Closed():
            return EngineClosed(error.message)
    return RadixServeError(error.message)
