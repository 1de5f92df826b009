"""Text to tokens, tokens to text, and conversations to prompts."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import InvalidRequest
from radixserve.server import bodies
from radixserve.server.errors import JSONResponse
from radixserve.server.native.conversations import ConversationFields
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a text. ``data``: names of special tokens in it are read as the characters they are."""

    text: str
    data: bool = False


class TokenizeRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """A text in ``prompt``, one in ``parts`` that are tokenized as one, or ``messages``.

    ``add_special_tokens``: put what the model's own setting puts around a text (the default for a text, and refused for
    messages, whose template says what comes around them). Parts without it go on from an earlier text: not even the space that some
    tokenizers put before a text comes before them; unless ``continues`` is false: then they begin a text that says itself what it
    begins with, as a rendered conversation does.
    """

    prompt: str | None = None
    parts: list[TextPart] | None = None
    continues: bool | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    cache_salt: str | None = None


class Tokens(msgspec.Struct, kw_only=True):
    """``token_strs``: how the vocabulary writes each token, where it was asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType | None = UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``skip_special_tokens`` leaves the names of special tokens out of the text."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class Text(msgspec.Struct, kw_only=True):
    """The text, under the names of both vLLM and SGLang."""

    prompt: str
    text: str


class TemplateRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """A conversation."""

    model: str | None = None
    cache_salt: str | None = None


class Rendered(msgspec.Struct, kw_only=True):
    """The prompt that a chat completion of the conversation would have.

    ``reused_output_tokens``: tokens of earlier answers that are taken as they were generated.
    """

    prompt: str
    token_ids: list[int]
    count: int
    reused_output_tokens: int


async def tokenize(request: Request) -> Response:
    """The tokens of a text or a conversation."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, TokenizeRequest, service.body_limit)
    service.check_model(fields.model)
    salt = service.callers.salt(caller, fields.cache_salt)
    return JSONResponse(await off_loop(request, _tokens, fields, service, salt))


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    service = service_of(request)
    fields = await bodies.read(request, DetokenizeRequest, service.body_limit)
    service.check_model(fields.model)
    try:
        text = service.text.tokenizer.decode(fields.tokens, skip_special=bool(fields.skip_special_tokens))
    except InvalidRequest as error:
        error.param = "tokens"
        raise
    return JSONResponse(Text(prompt=text, text=text))


async def apply_template(request: Request) -> Response:
    """The prompt of a conversation, as text and as tokens."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, TemplateRequest, service.body_limit)
    service.check_model(fields.model)
    if fields.messages is None:
        raise InvalidRequest("messages", "is required", "missing_required_parameter")
    prompt = await off_loop(request, fields.render, service, service.callers.salt(caller, fields.cache_salt))
    return JSONResponse(
        Rendered(
            prompt=prompt.text,
            token_ids=prompt.token_ids,
            count=len(prompt.token_ids),
            reused_output_tokens=prompt.reused_output_tokens,
        )
    )


def _tokens(fields: TokenizeRequest, service: Service, salt: bytes) -> Tokens:
    given = [name for name in ("prompt", "parts", "messages") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            "prompt", "exactly one of prompt, parts and messages must be given", "missing_required_parameter"
        )
    tokenizer = service.text.tokenizer
    if fields.continues is not None and (fields.parts is None or fields.add_special_tokens is not False):
        raise InvalidRequest("continues", "is about parts without add_special_tokens")
    if fields.parts is not None:
        fields.check_unused("parts")
        parts = [(part.text, part.data) for part in fields.parts]
        try:
            special = fields.add_special_tokens is not False
            ids = tokenizer.encode_parts(parts, add_special=special, continues=fields.continues)
        except InvalidRequest as error:
            error.param = "parts"
            raise
    elif fields.prompt is None:
        if fields.add_special_tokens:
            raise InvalidRequest("add_special_tokens", "the chat template says what comes around messages")
        ids = fields.render(service, salt).token_ids
    else:
        fields.check_unused("prompt")
        ids = tokenizer.encode(fields.prompt, add_special=fields.add_special_tokens is not False)
    return Tokens(
        tokens=ids,
        count=len(ids),
        max_model_len=service.info.context_length,
        token_strs=[tokenizer.token_name(token) for token in ids] if fields.return_token_strs else UNSET,
    )
