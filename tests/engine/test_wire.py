"""What goes over the sockets comes out as it went in, and a newer version's messages are still read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixserve.constraints import Regex, StructuralTag, Tag
from radixserve.engine import wire
from radixserve.errors import (
    ContextLengthExceeded,
    EngineClosed,
    InvalidRequest,
    PoolTooSmall,
    RadixServeError,
    UnsupportedFeature,
)
from radixserve.messages import (
    Explanation,
    FinishReason,
    GenerationChunk,
    GenerationOutput,
    SampleOutput,
    SamplingParams,
    Timings,
    TokenLogprob,
)
from tests.engine.clients import job

ERRORS: list[RadixServeError] = [
    InvalidRequest("temperature", "must be between 0 and 100, not -1"),
    InvalidRequest(None, "what is this", "strange"),
    ContextLengthExceeded(100, 90, 20, "messages"),
    PoolTooSmall(20, 10, "prompt"),
    UnsupportedFeature("audio", "is not done"),
    EngineClosed("the engine is closed"),
    RadixServeError("something else"),
]


def round_trip(message: Any, kind: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_keep_kind_and_facts(error: RadixServeError) -> None:
    refused = round_trip(wire.Refused(7, wire.pack_error(error)), wire.Report)
    again = wire.unpack_error(refused.error)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_an_error_of_nobody_is_the_engines_fault() -> None:
    again = wire.unpack_error(wire.pack_error(KeyError("x")))
    assert type(again) is RadixServeError and str(again) == "KeyError: 'x'"


def full_chunk() -> GenerationChunk:
    """A chunk that says all there is to say, except the place of the prompt, which the client knows."""
    entry = TokenLogprob(5, -1.5, 2, ((7, -0.5), (5, -1.5)), forced=True)
    values: dict[str, Any] = {
        "rid": "mine",
        "prompt_token_ids": [1, 2, 3],
        "text": "text",
        "token_ids": [5],
        "finish_reason": FinishReason.STOP,
        "stop_reason": "t",
        "logprobs": [entry],
        "prompt_logprobs": [None, entry],
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "completion_tokens": 1,
        "timings": Timings(queued_s=1.0, first_token_s=2.0, total_s=3.0, steps_waited=4, preemptions=5),
        "samples": [SampleOutput(index=1, text="text", token_ids=[5])],
        "error": "none",
        "explanation": Explanation("capped", 1, 1, 3, "why", "text"),
        "embedding": [0.6, 0.8],
    }
    output = GenerationOutput(
        **{name: value for name, value in values.items() if name in GenerationOutput.__struct_fields__}
    )
    return GenerationChunk(
        index=1,
        output=output,
        **{name: value for name, value in values.items() if name in GenerationChunk.__struct_fields__},
    )


def test_a_chunk_loses_nothing_on_its_way() -> None:
    chunk = full_chunk()
    asked = msgspec.structs.replace(job("mine"), token_ids=[1, 2, 3])
    message = round_trip(wire.Pieces([wire.Piece.of(11, chunk)]), wire.Report)
    [piece] = message.pieces
    assert piece.number == 11
    assert piece.stripped.output.prompt_token_ids == [] and piece.stripped.rid == ""
    assert piece.chunk(asked, 3) == msgspec.structs.replace(chunk, prompt_index=3)
    assert chunk.output is not None and chunk.output.prompt_token_ids == [1, 2, 3]


def test_a_token_costs_few_bytes() -> None:
    plain = GenerationChunk(rid="a-name-that-is-as-long-as-names-are", index=0, text=" the", token_ids=[260])
    one, two = (len(msgspec.msgpack.encode(wire.Pieces([wire.Piece.of(70000, plain)] * count))) for count in (1, 2))
    assert two - one < 50


def test_requests() -> None:
    jobs = [
        job("a", sampling=SamplingParams(temperature=0, logit_bias={5: 1.0}, stop=("x",))),
        job("b", pooling="last"),
        job("c", sampling=SamplingParams(constraint=StructuralTag((Tag("<a>", Regex("x+"), "</a>"),), ("<a>",)))),
    ]
    requests = [
        wire.Submit(3, jobs),
        wire.Abort(["a"]),
        wire.Close(),
        *(
            wire.Ask(4, question)
            for question in (
                wire.Explain([1, 2], b"salt", see_all=True),
                wire.Flush(b"salt"),
                wire.Flush(),
                wire.Release(["a", "b"]),
                wire.Stats(),
                wire.View(None, 10, 20),
                wire.Check(),
            )
        ),
    ]
    for request in requests:
        assert round_trip(request, wire.Request) == request


def test_fields_that_a_newer_version_appends_are_skipped() -> None:
    class Newer(msgspec.Struct, tag="refused"):
        number: int
        error: wire.WireError
        hint: str = "more"

    error = wire.Failure("it broke")
    assert round_trip(Newer(1, error), wire.Report) == wire.Refused(1, error)
    piece = msgspec.msgpack.encode([1, {"rid": "", "index": 0, "colour": "red"}, "more"])
    assert msgspec.msgpack.decode(piece, type=wire.Piece).stripped == GenerationChunk(rid="", index=0)
