"""One HTTP connection: uvicorn's, with a bound on request heads and OpenAI's error body for what is no HTTP."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from radixserve.errors import InvalidRequest
from radixserve.server.errors import error_response

# Request line and headers. Nobody has shown a key yet when they come, so they must not fill the memory.
_MAX_HEAD = 64 << 10


class Connection(HttpToolsProtocol):
    """Refuses a request whose line and headers go on past `_MAX_HEAD` bytes (or one more piece read from the socket)."""

    # Whether a request's head, or nothing, came last; bytes of the head so far.
    _in_head = True
    _head = 0
    _head_ended = False

    def data_received(self, data: bytes) -> None:
        """Take what was read; what neither ended a head nor came behind one counts."""
        whole = not self._in_head
        self._head_ended = False
        super().data_received(data)
        if whole or self._head_ended:
            self._head = 0
            return
        self._head += len(data)
        if self._head > _MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The request's headers are too large.")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head, self._head_ended = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole: a head comes next."""
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read as a request, and hang up."""
        response = error_response(InvalidRequest(None, msg, "invalid_http"))
        head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n%bconnection: close\r\n\r\n%b" % (head, bytes(response.body))
        )
        self.transport.close()
