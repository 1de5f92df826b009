"""Servers that lack one feature each, made by taking it out of the traffic: what the checks must be seen to fail against.

Answers of all shapes pass here: chat and text completions, responses, embeddings, SGLang's ``/generate``, and their streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.clients.kit.proxy import DONE

Json = Any
CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "regex",
    "ebnf",
)


class Missing:
    """A server without one feature. The base class changes nothing.

    ``edit`` and ``edit_request`` get a copy that they may change in place; what they leave equal counts as untouched.
    """

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        """Take the feature out of a request."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        """Take the feature out of an answer or an event of a stream."""

    def request(self, path: str, body: Json) -> Json:
        """`proxy.Mutation.request`."""
        return self._edited(path, body, self.edit_request)

    def answer(self, path: str, status: int, body: Json) -> tuple[int, Json]:
        """`proxy.Mutation.answer`."""
        return status, self._edited(path, body, self.edit)

    def event(self, path: str, data: Json) -> Json:
        """`proxy.Mutation.event`."""
        return self._edited(path, data, self.edit)

    @staticmethod
    def _edited(path: str, body: Json, edit: Callable[[str, dict[str, Json]], None]) -> Json:
        changed = copy.deepcopy(body)
        for document in changed if isinstance(changed, list) else [changed]:
            if isinstance(document, dict):
                edit(path, document)
        return body if changed == body else changed


def _response(body: dict[str, Json]) -> dict[str, Json]:
    """The response object of an event of ``/v1/responses``, or the body itself."""
    inner = body.get("response")
    return inner if isinstance(inner, dict) else body


def _choices(body: dict[str, Json]) -> list[dict[str, Json]]:
    return body.get("choices") or []


def _message(choice: dict[str, Json]) -> dict[str, Json]:
    return choice.get("message") or choice.get("delta") or {}


def _meta(body: dict[str, Json]) -> dict[str, Json]:
    return body.get("meta_info") or {}


class Usage(Missing):
    """No token counts."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        _response(body).pop("usage", None)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            _meta(body).pop(name, None)


class StreamUsage(Missing):
    """No token counts in streams."""

    def event(self, path: str, data: Json) -> Json:
        if not isinstance(data, dict):
            return data
        if data.get("usage") and not data.get("choices") and "choices" in data:
            return None
        return self._edited(path, data, Usage().edit)


class CachedTokens(Missing):
    """No count of cached tokens."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        usage = _response(body).get("usage") or {}
        usage.pop("prompt_tokens_details", None)
        if "input_tokens_details" in usage:
            usage["input_tokens_details"] = {"cached_tokens": 0}
        _meta(body).pop("cached_tokens", None)


class FinishReason(Missing):
    """No reason why an answer ended, and no status of a response."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        for choice in _choices(body):
            choice["finish_reason"] = None
        if "output" in _response(body):
            _response(body)["status"] = None
            _response(body)["incomplete_details"] = None
        if "finish_reason" in _meta(body):
            body["meta_info"]["finish_reason"] = None


class Content(Missing):
    """No text."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        for choice in _choices(body):
            if _message(choice).get("content"):
                _message(choice)["content"] = ""
            if choice.get("text"):
                choice["text"] = ""
        for item in [
            *(_response(body).get("output") or []),
            body.get("item") or {},
            {"content": [body.get("part") or {}]},
        ]:
            for part in item.get("content") or []:
                if "text" in part:
                    part["text"] = ""
        if str(body.get("type", "")).startswith("response.output_text."):
            body.update({name: "" for name in ("delta", "text") if name in body})
        if "meta_info" in body:
            body["text"] = ""


class StreamText(Missing):
    """Streams that lose every third piece of text; where each event repeats all text so far, its last character."""

    def __init__(self) -> None:
        self._pieces = 0

    def event(self, path: str, data: Json) -> Json:
        if not isinstance(data, dict):
            return data
        if "meta_info" in data:
            return {**data, "text": data["text"][:-1]} if data["text"] else data
        said = any(_message(choice).get("content") or choice.get("text") for choice in _choices(data))
        self._pieces += said or data.get("type") == "response.output_text.delta"
        return self._edited(path, data, self._silence) if self._pieces % 3 == 0 else data

    @staticmethod
    def _silence(path: str, body: dict[str, Json]) -> None:
        for choice in _choices(body):
            if _message(choice).get("content"):
                choice["delta"]["content"] = ""
            if choice.get("text"):
                choice["text"] = ""
        if body.get("type") == "response.output_text.delta":
            body["delta"] = ""


class ToolCalls(Missing):
    """No tool calls in answers."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        for choice in _choices(body):
            _message(choice).pop("tool_calls", None)
        response = _response(body)
        if isinstance(response.get("output"), list):
            response["output"] = [item for item in response["output"] if item.get("type") != "function_call"]


class ToolChoice(Missing):
    """Forced tool calls are left to the model."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        if body.get("tool_choice") not in (None, "none", "auto"):
            body["tool_choice"] = "none"


class Constraints(Missing):
    """Schemas, patterns and grammars are accepted and ignored."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        for name in CONSTRAINTS:
            body.pop(name, None)
        if isinstance(body.get("text"), dict):
            body["text"].pop("format", None)
        for name in ("regex", "json_schema", "ebnf"):
            (body.get("sampling_params") or {}).pop(name, None)


class Logprobs(Missing):
    """No logprobs."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        for choice in _choices(body):
            if choice.get("logprobs") is not None:
                choice["logprobs"] = None
        for name in [name for name in _meta(body) if name.endswith("logprobs")]:
            del body["meta_info"][name]


class Samples(Missing):
    """Only one answer, whatever ``n`` says."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        if (body.get("n") or 1) > 1:
            body["n"] = 1


class Stop(Missing):
    """Stop strings and stop tokens are ignored."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        for holder in (body, body.get("sampling_params") or {}):
            for name in ("stop", "stop_token_ids"):
                if holder.get(name):
                    del holder[name]


class Temperature(Missing):
    """The temperature is ignored: always 1."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        for holder in (body, body.get("sampling_params") or {}):
            if holder.get("temperature") is not None:
                holder["temperature"] = 1


class Seed(Missing):
    """The seed is ignored."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        if body.get("seed") is not None:
            del body["seed"]


class PreviousResponse(Missing):
    """Earlier responses are forgotten."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        body.pop("previous_response_id", None)


class Embeddings(Missing):
    """Embeddings are empty."""

    def edit(self, path: str, body: dict[str, Json]) -> None:
        if path.endswith("/embeddings"):
            for item in body.get("data") or []:
                item["embedding"] = [] if isinstance(item["embedding"], list) else ""


class ErrorCode(Missing):
    """Errors that say only that something is wrong, without code, parameter or reason."""

    def answer(self, path: str, status: int, body: Json) -> tuple[int, Json]:
        if status < 400:
            return status, body
        return status, {"detail": "Bad Request"}


class ErrorStatus(Missing):
    """Refusals that come as status 500."""

    def answer(self, path: str, status: int, body: Json) -> tuple[int, Json]:
        return (500 if 400 <= status < 500 else status), body


class Done(Missing):
    """Streams without their closing ``[DONE]``."""

    def event(self, path: str, data: Json) -> Json:
        return None if data == DONE else data


class SelectedLogprobs(Missing):
    """SGLang's ``/generate`` without the prompt's logprobs when no start is given."""

    def edit_request(self, path: str, body: dict[str, Json]) -> None:
        if body.get("return_logprob") and "logprob_start_len" not in body and "input_ids" in body:
            body["return_logprob"] = False


MUTATIONS: dict[str, Callable[[], Missing]] = {
    "content": Content,
    "usage": Usage,
    "finish_reason": FinishReason,
    "cached_tokens": CachedTokens,
    "stream_text": StreamText,
    "stream_usage": StreamUsage,
    "tool_calls": ToolCalls,
    "tool_choice": ToolChoice,
    "constraints": Constraints,
    "logprobs": Logprobs,
    "samples": Samples,
    "stop": Stop,
    "temperature": Temperature,
    "seed": Seed,
    "previous_response": PreviousResponse,
    "embeddings": Embeddings,
    "error_code": ErrorCode,
    "error_status": ErrorStatus,
    "done": Done,
    "unconditional_logprobs": SelectedLogprobs,
}
# What issue and documentation promise of every client's checks.
ESSENTIAL = ("content", "usage", "finish_reason")
