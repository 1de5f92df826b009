"""What is checked before a request is queued: whatever is wrong is refused here, by the name of its field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from radixserve.errors import ContextLengthExceeded, InvalidRequest, PoolTooSmall, UnsupportedFeature
from radixserve.messages import SamplingParams


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
        )

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def check_priority(priority: object) -> int:
    """A priority is any integer that fits 32 bits."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
        raise InvalidRequest("priority", f"must be an integer, not {priority!r}", "invalid_type")
    return priority


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


def check_messages(messages: object) -> list[dict[str, Any]]:
    """A conversation as new mappings with a ``role`` and, where there was a list of text parts, their texts joined.

    Raises `InvalidRequest` naming the message, `UnsupportedFeature` for parts that are not text.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages", "must be a non-empty list of messages", "invalid_type")
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{index}]", "must be a mapping with a role", "invalid_type")
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            content = "".join(_part_text(part, f"messages[{index}].content[{at}]") for at, part in enumerate(content))
        elif not isinstance(content, (str, type(None))):
            raise InvalidRequest(f"messages[{index}].content", "must be a text or a list of parts", "invalid_type")
        checked.append({**message, "content": content})
    return checked


def _part_text(part: object, name: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(name, "must be a mapping with a type", "invalid_type")
    if part["type"] != "text":
        raise UnsupportedFeature(name, f"parts of type {part['type']!r} are not part of this release, only text")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{name}.text", "must be a text", "invalid_type")
    text: str = part["text"]
    return text
