"""Server-sent events: the data of each, from the bytes of a response (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

# What OpenAI's and SGLang's streams end with.
DONE = b"[DONE]"


async def event_data(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of every event until `DONE` or the end of ``pieces``; comments and other fields are passed over.

    ``pieces`` may be cut anywhere. An event that the end of the stream cuts off is dropped, as the standard has it.
    """
    held: list[bytes] = []
    async for line in _lines(pieces):
        if not line:
            data = b"\n".join(held)
            held.clear()
            if data == DONE:
                return
            if data:
                yield data
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            held.append(value.removeprefix(b" "))


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    # Only at line feeds: texts in JSON may hold any other character that Python takes for the end of a line.
    begun: list[bytes] = []
    async for piece in pieces:
        first, *more = piece.split(b"\n")
        begun.append(first)
        for line in more:
            yield b"".join(begun).removesuffix(b"\r")
            begun = [line]
