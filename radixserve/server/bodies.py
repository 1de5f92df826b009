"""Request bodies: read within bounds, unpacked, and decoded into structs with errors that name the field."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from starlette.requests import Request

from radixserve.errors import InvalidRequest

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_PLACE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MAX_MESSAGE = 500


class ClientGone(Exception):
    """The client left before its request was complete: there is nobody to answer."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body, unpacked, of at most ``limit`` bytes. Raises `InvalidRequest`, and `ClientGone` for a body cut short."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    unpacker = _unpacker(request.headers.get("content-encoding", ""))
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        if unpacker is not None:
            piece = unpacker.feed(piece, limit - size)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            if unpacker is not None:
                unpacker.finish()
            return b"".join(pieces)


def decode(body: bytes, kind: type[T]) -> T:
    """The struct that ``body`` holds as JSON; raises `InvalidRequest` naming the field that is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(None, f"the body is not valid JSON: {reason}", "invalid_json") from None


def convert(values: Mapping[str, str], kind: type[T]) -> T:
    """The struct whose fields ``values`` spell out as text; raises `InvalidRequest` naming the one that is wrong."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None


async def read(request: Request, kind: type[T], limit: int, *, default: T | None = None) -> T:
    """Read and decode a body. Its declared type must be JSON, or nothing at all.

    An empty body is ``default``, where one is given.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared and declared != "application/json" and not declared.endswith("+json"):
        raise InvalidRequest(None, f"the body must be application/json, not {declared[:100]}", "unsupported_media_type")
    body = await read_body(request, limit)
    return default if default is not None and not body.strip() else decode(body, kind)


class _Unpacker:
    """Takes a packed body piece by piece and never makes more than it may."""

    def __init__(self, encoding: str) -> None:
        # 31 reads a gzip header; 47 reads a zlib one as well, which is what "deflate" means.
        self._stream = zlib.decompressobj(31 if encoding == "gzip" else 47)
        self._encoding = encoding

    def feed(self, data: bytes, room: int) -> bytes:
        """At most ``room`` + 1 bytes: one more than may be tells that there was more."""
        if self._stream.eof:
            if data:
                raise self._more()
            return b""
        try:
            return self._stream.decompress(data, max(1, room + 1))
        except zlib.error as error:
            raise InvalidRequest(None, f"the body is not valid {self._encoding}: {error}", "invalid_encoding") from None

    def _more(self) -> InvalidRequest:
        return InvalidRequest(None, f"bytes follow the end of the {self._encoding} body", "invalid_encoding")

    def finish(self) -> None:
        """No more bytes come."""
        if not self._stream.eof:
            raise InvalidRequest(None, f"the {self._encoding} body is cut short", "invalid_encoding")
        if self._stream.unused_data:
            raise self._more()


def _unpacker(encoding: str) -> _Unpacker | None:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Unpacker("gzip" if encoding != "deflate" else "deflate")
    raise InvalidRequest(
        None, f"content-encoding {encoding[:50]!r} is not taken; gzip and deflate are", "unsupported_media_type"
    )


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(None, f"the body is larger than {limit >> 20} MiB", "request_too_large")


def _refusal(message: str) -> InvalidRequest:
    unknown = _UNKNOWN.match(message)
    if unknown:
        param = _join(unknown[2], unknown[1])
        return InvalidRequest(param, "this field is not known", "unknown_parameter")
    missing = _MISSING.match(message)
    if missing:
        return InvalidRequest(_join(missing[2], missing[1]), "is required", "missing_required_parameter")
    place = _PLACE.match(message)
    assert place is not None, "the pattern takes any text"
    return InvalidRequest(place[2] or None, place[1][:_MAX_MESSAGE], "invalid_type")


def _join(place: str | None, field: str) -> str:
    return f"{place}.{field}"[:_MAX_MESSAGE] if place else field[:_MAX_MESSAGE]
