"""radixserve's answers, as far as the language reads them."""

from __future__ import annotations

from typing import Literal

import msgspec

# (logprob, token id, text); the logprob is None for what cannot be drawn, the text where it was not asked for.
Entry = tuple[float | None, int, str | None]


class Finish(msgspec.Struct, frozen=True):
    """Why an output ended."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    message: str | None = None


class Timings(msgspec.Struct, frozen=True):
    """Seconds since the request was queued."""

    queued_s: float = 0.0
    first_token_s: float | None = None


class Meta(msgspec.Struct, frozen=True):
    """``meta_info`` of ``/generate``; in streams some of it comes with a sample's last event only."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish_reason: Finish | None = None
    healed_tokens: int = 0
    kept_tokens: int | None = None
    rest: str | None = None
    forced_tokens: int | None = None
    forced_at: list[int] = []
    output_token_logprobs: list[Entry] = []
    output_top_logprobs: list[list[Entry] | None] = []
    input_token_logprobs: list[Entry] = []
    input_token_ids_logprobs: list[list[Entry] | None] = []
    output_token_ids_logprobs: list[list[Entry] | None] = []
    timings: Timings | None = None


class Generated(msgspec.Struct, frozen=True):
    """One sample; ``index``: its place in streams of several."""

    text: str
    output_ids: list[int]
    meta_info: Meta
    index: int = 0


class Tokens(msgspec.Struct, frozen=True):
    """Of ``/tokenize``."""

    tokens: list[int]


class Detokenized(msgspec.Struct, frozen=True):
    """Of ``/detokenize``."""

    text: str


class Rendered(msgspec.Struct, frozen=True):
    """Of ``/apply_template``."""

    prompt: str


class ModelInfo(msgspec.Struct, frozen=True):
    """Of ``/model_info``."""

    served_model_name: str
    architecture: str
    vocab_size: int
    context_length: int
    eos_token_ids: list[int]
    has_chat_template: bool


class Held(msgspec.Struct, frozen=True):
    """Of ``/hold``."""

    id: str
    held_tokens: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    expires_in_s: float
    timings: Timings
