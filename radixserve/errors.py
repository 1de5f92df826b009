"""Every exception radixserve raises on purpose.

::

    RadixServeError
    ├── ConfigError(field)                 an option of the engine is wrong
    ├── InvalidRequest(param, code)        a request is refused before it is queued
    │   ├── ContextLengthExceeded          prompt + max_tokens beyond the model's context
    │   ├── PoolTooSmall                   the whole KV pool could not hold the request
    │   ├── QueueFull(retry_after_s)       too many requests wait already
    │   └── UnsupportedFeature             known to the field, not done by this release
    ├── ModelLoadError                     a model cannot be read
    │   ├── ModelNotFound
    │   ├── UnknownArchitecture
    │   ├── UnknownTokenizer
    │   └── UnknownTensorType
    ├── NativeUnavailable                  the CPU kernel library cannot be built or loaded here
    ├── RankFailed(rank)                   a process of a tensor-parallel engine is lost, and the engine with it
    ├── StepVoided(step)                   a step is not run, since one that it was planned after failed
    ├── OutOfBlocks                        the pool is empty and nothing can be evicted
    ├── RequestFailed(rid)                 one request failed while it ran; the engine lives on
    ├── MatcherFailed                      a grammar exceeded its limits of work while an output was made
    ├── EngineClosed                       a call on an engine that was shut down
    └── CacheInconsistent(facts)           ``PrefixCache.check()`` found the books wrong
"""

from __future__ import annotations


class RadixServeError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(RadixServeError, ValueError):
    """An engine option is unknown, of the wrong type or out of range.

    ``field`` is the option's name.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class InvalidRequest(RadixServeError, ValueError):
    """A request is refused before it is queued.

    ``param`` names the offending field and ``code`` is a stable, machine-readable reason, both in
    the sense of OpenAI's error body.
    """

    def __init__(self, param: str | None, message: str, code: str = "invalid_value") -> None:
        super().__init__(param, message, code)
        self.param = param
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param else self.message


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output do not fit the model's context window (counts in tokens).

    ``at_least``: the prompt was not tokenized, it is too long however it is.
    """

    def __init__(
        self, limit: int, prompt_tokens: int, max_tokens: int, param: str = "prompt", *, at_least: bool = False
    ) -> None:
        about = "at least " if at_least else ""
        super().__init__(
            param,
            # Two clients tell this error by these very words: "this model's maximum context length is" and "prompt is too
            # long".
            f"this model's maximum context length is {limit} tokens and the prompt is too long for the output wanted: "
            f"{about}{prompt_tokens + max_tokens} tokens were requested "
            f"({about}{prompt_tokens} in the prompt, {max_tokens} for the output)",
            "context_length_exceeded",
        )
        self.limit = limit
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class PoolTooSmall(InvalidRequest):
    """The request needs more KV blocks than the whole pool holds."""

    def __init__(self, needed: int, held: int, param: str = "max_tokens") -> None:
        super().__init__(
            param,
            f"the request needs {needed} KV blocks, but the whole pool holds {held}; "
            "lower max_tokens, shorten the prompt or enlarge the pool",
            "kv_pool_exceeded",
        )
        self.needed = needed
        self.held = held


class QueueFull(InvalidRequest):
    """Too many requests wait already; ``retry_after_s`` is when it is worth trying again."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(None, f"{waiting} requests are waiting already; try again later", "queue_full")
        self.retry_after_s = retry_after_s


class UnsupportedFeature(InvalidRequest):
    """A feature the field knows and this release does not do."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(param, message, "unsupported_feature")


class ModelLoadError(RadixServeError):
    """A model's files cannot be turned into a running model."""


class ModelNotFound(ModelLoadError):
    """No model is found under the given name or path."""


class UnknownArchitecture(ModelLoadError):
    """The checkpoint names an architecture, or a variant of one, that the decoder does not implement."""


class UnknownTokenizer(ModelLoadError):
    """The tokenizer's kind or pre-tokenizer is not implemented; guessing would change token ids."""


class UnknownTensorType(ModelLoadError):
    """A tensor is stored in a type the loader cannot read."""


class NativeUnavailable(RadixServeError):
    """The CPU kernel library cannot be built or loaded on this machine; the message says why."""


class RankFailed(RadixServeError):
    """A process of a tensor-parallel engine died, raised or hangs; no step can be computed any more.

    ``rank``: which, None where it is not known.
    """

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(f"tensor parallelism ended: {reason}" if rank is None else f"rank {rank} {reason}")
        self.rank = rank
        self.reason = reason


class StepVoided(RadixServeError):
    """Step ``step`` counted on one that failed, so it is not run; it is planned anew, and no request hears of it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} was planned after one that failed")
        self.step = step


class OutOfBlocks(RadixServeError):
    """Fewer blocks are free than were asked for, and nothing more can be evicted."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} KV blocks needed, {available} available")
        self.needed = needed
        self.available = available


class RequestFailed(RadixServeError):
    """One request failed while it ran (non-finite logits, a forward pass that raised)."""

    def __init__(self, rid: str, reason: str) -> None:
        super().__init__(f"request {rid}: {reason}")
        self.rid = rid
        self.reason = reason


class MatcherFailed(RadixServeError):
    """A grammar's matcher cannot go on: its limits of work are exceeded, or it was given what the grammar does not take."""


class EngineClosed(RadixServeError):
    """The engine was shut down and takes no more calls."""


class CacheInconsistent(RadixServeError):
    """The recount of ``PrefixCache.check()`` differs from the books; ``facts`` lists every difference."""

    def __init__(self, facts: list[str]) -> None:
        super().__init__("; ".join(facts))
        self.facts = facts
