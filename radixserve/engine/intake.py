"""What is checked before a request is queued: whatever is wrong is refused here, by the name of its field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import msgspec
import numpy as np

from radixserve.errors import ContextLengthExceeded, InvalidRequest, PoolTooSmall
from radixserve.messages import Pooling, SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can hold: vocabulary (ids), context (tokens), pool (blocks) and rows of a step."""

    vocab_size: int
    context_length: int
    num_blocks: int
    block_size: int
    max_running: int

    def check_tokens(self, tokens: object) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """``tokens`` as a new int32 array; raises `InvalidRequest` unless it is a non-empty sequence of token ids."""
        if isinstance(tokens, np.ndarray):
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise InvalidRequest("prompt", "token ids must be a flat sequence of integers", "invalid_type")
            array = tokens.astype(np.int64)
        elif isinstance(tokens, (list, tuple)):
            if not all(type(token) is int for token in tokens):
                raise InvalidRequest("prompt", "token ids must be integers", "invalid_type")
            try:
                array = np.array(tokens, np.int64)
            except OverflowError:
                raise InvalidRequest("prompt", f"token ids must be below {self.vocab_size}") from None
        else:
            raise InvalidRequest("prompt", f"must be text or token ids, not {type(tokens).__name__}", "invalid_type")
        if len(array) == 0:
            raise InvalidRequest("prompt", "must not be empty", "empty_prompt")
        outside = array[(array < 0) | (array >= self.vocab_size)]
        if len(outside):
            raise InvalidRequest("prompt", f"token id {outside[0]} is outside the vocabulary of {self.vocab_size}")
        return array.astype(np.int32)

    def check_least(self, num_prompt: int, param: str = "prompt") -> None:
        """Raise, about ``param``, where a prompt of at least ``num_prompt`` tokens is too long, before it is tokenized."""
        if num_prompt > self.context_length:
            raise ContextLengthExceeded(self.context_length, num_prompt, 0, param, at_least=True)

    def max_tokens(self, num_prompt: int, sampling: SamplingParams) -> int:
        """Tokens a request may draw; raises where prompt and output cannot fit context or pool.

        Without ``max_tokens`` it is what both leave.
        """
        capacity = self.num_blocks * self.block_size
        if sampling.max_tokens is None:
            wanted = min(self.context_length, capacity) - num_prompt
            if wanted < 1:
                if num_prompt >= self.context_length:
                    raise ContextLengthExceeded(self.context_length, num_prompt, 1)
                raise PoolTooSmall(self._blocks(num_prompt + 1), self.num_blocks, "prompt")
            if sampling.min_tokens > wanted:
                raise InvalidRequest("min_tokens", f"{sampling.min_tokens} is more than the {wanted} that are left")
            return wanted
        if num_prompt + sampling.max_tokens > self.context_length:
            raise ContextLengthExceeded(self.context_length, num_prompt, sampling.max_tokens)
        needed = self._blocks(num_prompt + sampling.max_tokens)
        if needed > self.num_blocks:
            raise PoolTooSmall(needed, self.num_blocks)
        return sampling.max_tokens

    def check_sampling(self, sampling: object) -> SamplingParams:
        """Raise `InvalidRequest` unless ``sampling`` can be done here."""
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequest("sampling", f"must be SamplingParams, not {type(sampling).__name__}", "invalid_type")
        sampling.validate(self.vocab_size)
        if sampling.n > self.max_running:
            raise InvalidRequest("n", f"{sampling.n} samples, but at most {self.max_running} sequences run together")
        # A copy: what was checked stays what it was, whatever the caller does with its own containers.
        return msgspec.structs.replace(
            sampling,
            logit_bias=dict(sampling.logit_bias),
            stop=tuple(sampling.stop),
            stop_token_ids=tuple(sampling.stop_token_ids),
            logprob_token_ids=tuple(sampling.logprob_token_ids),
            stop_regex=tuple(sampling.stop_regex),
        )

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def check_priority(priority: object) -> int:
    """A priority is any integer that fits 32 bits."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
        raise InvalidRequest("priority", f"must be an integer, not {priority!r}", "invalid_type")
    return priority


def check_pooling(pooling: object, sampling: SamplingParams) -> None:
    """Raise `InvalidRequest` unless ``pooling`` is one there is and ``sampling`` draws nothing beside it."""
    if pooling not in get_args(Pooling):
        raise InvalidRequest("pooling", f"must be one of {', '.join(get_args(Pooling))}, not {pooling!r}")
    if sampling.max_tokens != 0:
        raise InvalidRequest("max_tokens", "must be 0 where hidden states are pooled")
    if sampling.n != 1:
        raise InvalidRequest("n", "must be 1 where hidden states are pooled")


def check_hold(hold_s: object, sampling: SamplingParams) -> float:
    """The seconds for which a prompt is to be held. Raises `InvalidRequest`, also where ``sampling`` draws anything beside it."""
    if isinstance(hold_s, bool) or not isinstance(hold_s, (int, float)):
        raise InvalidRequest("hold_s", f"must be a number of seconds, not {hold_s!r}", "invalid_type")
    if not 0 < hold_s < math.inf:
        raise InvalidRequest("hold_s", f"must be above 0 and finite, not {hold_s}")
    if sampling.max_tokens != 0:
        raise InvalidRequest("max_tokens", "must be 0 where a prompt is held")
    if sampling.n != 1:
        raise InvalidRequest("n", "must be 1 where a prompt is held")
    return float(hold_s)


def check_salt(cache_salt: object) -> bytes:
    """The salt of a namespace from the caller's text.

    Without one it is the common namespace of all who give none. The empty salt, which everybody sees, is only for what
    an operator makes public.
    """
    if cache_salt is None:
        return b"common"
    if not isinstance(cache_salt, str) or not cache_salt:
        raise InvalidRequest("cache_salt", "must be a non-empty text", "invalid_type")
    return b"salt:" + cache_salt.encode("utf-8", "surrogatepass")
