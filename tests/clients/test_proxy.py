"""The proxy passes on what it gets, and each mutation takes out what its name says and no more."""

from __future__ import annotations

import copy
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.environments import clients
from tests.clients.kit.proxy import Proxy
from tests.clients.mutations import MUTATIONS

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 8}}
LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "tool_calls": [CALL]},
            "logprobs": LOGPROBS,
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}
EVENTS: list[Any] = [
    *[
        {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        for piece in ("one", " two", " three")
    ],
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
]
RESPONSE = {
    "object": "response",
    "status": "completed",
    "incomplete_details": None,
    "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11, "input_tokens_details": {"cached_tokens": 8}},
}
GENERATED = {
    "text": "Hi",
    "meta_info": {
        "finish_reason": {"type": "stop"},
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "cached_tokens": 8,
        "input_token_logprobs": [[None, 1, None]],
    },
}
ERROR = {"error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}


class Upstream(BaseHTTPRequestHandler):
    """Answers by path, and returns what it was sent under /echo."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Keep quiet."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if json.loads(raw).get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b": keep-alive\n\n")
            for event in EVENTS:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True
            return
        bodies: dict[str, tuple[int, Any]] = {
            "/echo": (200, {"echo": json.loads(raw), "key": self.headers["authorization"]}),
            "/v1/chat/completions": (200, ANSWER),
            "/v1/responses": (200, RESPONSE),
            "/generate": (200, [GENERATED, GENERATED]),
            "/v1/embeddings": (200, {"data": [{"embedding": [0.5, 0.5]}]}),
            "/error": (404, ERROR),
        }
        status, body = bodies[self.path]
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Request-Id", "r1")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def post(proxy: Proxy, path: str, body: Any, **more: Any) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(proxy.root).netloc, timeout=10)
    try:
        data = json.dumps(body).encode()
        connection.request(
            "POST", path, data if not more else iter([data[:5], data[5:]]), {"Authorization": "Bearer k"}, **more
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def through(upstream: str, name: str, path: str, body: Any) -> tuple[int, Any, int]:
    """Status, body or events that a client sees without that feature, and how often something was taken out."""
    with Proxy(upstream, MUTATIONS[name]()) as proxy:
        status, text, _ = post(proxy, path, body)
        return status, events_of(text) if body.get("stream") else json.loads(text), proxy.touched


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_headers_and_statuses_pass(upstream: str, chunked: bool) -> None:
    with Proxy(upstream) as proxy:
        more = {"encode_chunked": True} if chunked else {}
        status, text, headers = post(proxy, "/echo", {"a": [1]}, **more)
        assert (status, json.loads(text)) == (200, {"echo": {"a": [1]}, "key": "Bearer k"})
        assert headers["x-request-id"] == "r1"
        status, text, _ = post(proxy, "/error", {})
        assert (status, json.loads(text)) == (404, ERROR)
        assert [(each.path, each.request, each.status) for each in proxy.exchanges] == [
            ("/echo", {"a": [1]}, 200),
            ("/error", {}, 404),
        ]
        assert proxy.exchanges[1].documents == [ERROR]
        assert proxy.touched == 0


def test_streams_pass_with_comments(upstream: str) -> None:
    with Proxy(upstream) as proxy:
        _, text, _ = post(proxy, "/v1/chat/completions", {"stream": True})
        assert text.startswith(": keep-alive\n\n")
        assert events_of(text) == [*EVENTS, "[DONE]"]
        assert proxy.exchanges[0].documents == [*EVENTS, "[DONE]"]


def test_answers_without_content_usage_and_finish_reason(upstream: str) -> None:
    path = "/v1/chat/completions"
    assert through(upstream, "content", path, {})[1]["choices"][0]["message"]["content"] == ""
    assert "usage" not in through(upstream, "usage", path, {})[1]
    assert through(upstream, "finish_reason", path, {})[1]["choices"][0]["finish_reason"] is None
    assert "prompt_tokens_details" not in through(upstream, "cached_tokens", path, {})[1]["usage"]
    assert through(upstream, "logprobs", path, {})[1]["choices"][0]["logprobs"] is None
    without = through(upstream, "tool_calls", path, {})[1]
    expected = copy.deepcopy(ANSWER)
    del expected["choices"][0]["message"]["tool_calls"]  # type: ignore[index]
    assert without == expected


def test_responses_without_content_usage_and_status(upstream: str) -> None:
    output = through(upstream, "content", "/v1/responses", {})[1]["output"]
    assert output[0]["content"] == [{"type": "output_text", "text": ""}]
    assert "usage" not in through(upstream, "usage", "/v1/responses", {})[1]
    assert through(upstream, "finish_reason", "/v1/responses", {})[1]["status"] is None
    assert through(upstream, "cached_tokens", "/v1/responses", {})[1]["usage"]["input_tokens_details"] == {
        "cached_tokens": 0
    }
    assert [item["type"] for item in through(upstream, "tool_calls", "/v1/responses", {})[1]["output"]] == ["message"]


def test_batches_of_generate_without_features(upstream: str) -> None:
    for name, missing in (
        ("usage", "prompt_tokens"),
        ("cached_tokens", "cached_tokens"),
        ("logprobs", "input_token_logprobs"),
    ):
        _, body, touched = through(upstream, name, "/generate", {})
        assert touched == 1
        assert all(missing not in item["meta_info"] for item in body), name
    assert [item["text"] for item in through(upstream, "content", "/generate", {})[1]] == ["", ""]
    assert [i["meta_info"]["finish_reason"] for i in through(upstream, "finish_reason", "/generate", {})[1]] == [
        None,
        None,
    ]


def test_streams_without_features(upstream: str) -> None:
    asked, path = {"stream": True}, "/v1/chat/completions"
    assert through(upstream, "done", path, asked)[1] == EVENTS
    assert through(upstream, "stream_usage", path, asked)[1] == [*EVENTS[:-1], "[DONE]"]
    texts = [
        event["choices"][0]["delta"].get("content") for event in through(upstream, "stream_text", path, asked)[1][:3]
    ]
    assert texts == ["one", " two", ""]


@pytest.mark.parametrize(
    ("name", "sent", "arrives"),
    [
        ("constraints", {"response_format": {}, "regex": "a", "n": 2}, {"n": 2}),
        ("constraints", {"sampling_params": {"regex": "a", "n": 1}}, {"sampling_params": {"n": 1}}),
        ("constraints", {"text": {"format": {}}}, {"text": {}}),
        ("tool_choice", {"tool_choice": "required"}, {"tool_choice": "none"}),
        ("tool_choice", {"tool_choice": "auto"}, {"tool_choice": "auto"}),
        ("samples", {"n": 3}, {"n": 1}),
        ("stop", {"stop": ["a"], "sampling_params": {"stop": "b", "stop_token_ids": [1]}}, {"sampling_params": {}}),
        ("temperature", {"temperature": 0}, {"temperature": 1}),
        ("seed", {"seed": 0}, {}),
        ("previous_response", {"previous_response_id": "r"}, {}),
        (
            "unconditional_logprobs",
            {"input_ids": [1], "return_logprob": True},
            {"input_ids": [1], "return_logprob": False},
        ),
    ],
)
def test_requests_without_features(upstream: str, name: str, sent: Any, arrives: Any) -> None:
    _, body, touched = through(upstream, name, "/echo", sent)
    assert body["echo"] == arrives
    assert touched == (sent != arrives)


def test_errors_and_embeddings_without_features(upstream: str) -> None:
    assert through(upstream, "error_code", "/error", {})[:2] == (404, {"detail": "Bad Request"})
    assert through(upstream, "error_status", "/error", {})[:2] == (500, ERROR)
    assert through(upstream, "embeddings", "/v1/embeddings", {})[1] == {"data": [{"embedding": []}]}
    assert through(upstream, "error_code", "/echo", {})[2] == 0


def test_every_client_is_pinned_and_named_by_its_package() -> None:
    found = clients()
    assert len(found) == 13
    for client in found:
        assert "==" in client.pins[0], client.name
        assert client.package.replace("-", "_").startswith(client.name[:6]), client.name
