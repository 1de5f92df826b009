"""Constrained requests keep the engine's promises about bits, and do not touch those of other requests.

On a tiny model by torch and on the embedded one by the kernels that it is served with; at temperature 1, with logprobs and samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixserve import Engine, SamplingParams
from radixserve.constraints import Choice, Grammar, JsonSchema, Regex, Tag
from radixserve.engine.streams import collect
from radixserve.messages import GenerationOutput
from radixserve.model.loader import LoadedModel
from tests.grammar.vocabularies import structural
from tests.tiny_model import tiny_model

JSON = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
                "kind": {"enum": ["alpha", "beta", None]},
            },
            "required": ["name", "sizes", "kind"],
            "additionalProperties": False,
        }
    )
)
LISTS = Grammar('root ::= list\nlist ::= "(" (item ("," item){0,2})? ")"\nitem ::= [a-c] | list')
TAGS = structural([Tag("<fn=one>", JSON, "</fn>"), Tag("<fn=two>", Regex("[0-9]{2}"), "</fn>")], ["<fn="])

FREE: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"logprobs": 1},
    {"n": 3, "logprobs": 0},
    {"repetition_penalty": 1.3, "top_k": 20, "logprobs": 1},
    {"logit_bias": {7: 3.0}, "min_p": 0.05, "prompt_logprobs": 1},
]
BOUND: list[dict[str, Any]] = [
    {"constraint": JSON, "logprobs": 2},
    {"constraint": JSON, "n": 3, "logprobs": 0},
    {"constraint": Regex("[a-z]{3}( [a-z]{2}){0,9}"), "logprobs": 1, "prompt_logprobs": 1},
    {"constraint": LISTS, "n": 2, "top_p": 0.9, "logprobs": 1},
    {"constraint": TAGS, "logprobs": 1},
    {"constraint": Choice(("yes", "no", "yesterday")), "frequency_penalty": 0.5, "logprobs": 1},
    {"constraint": JSON, "finish_json": True, "n": 2, "logprobs": 1},
]
ALL = [*FREE, *BOUND]
PROMPTS = [f"A beginning that all of them share, and number {index}" for index in range(len(ALL))]

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module", params=["tiny model, torch", "smollm2"])
def make(request: pytest.FixtureRequest) -> MakeEngine:
    """Makes engines on one of the models."""
    if request.param == "smollm2":
        model: LoadedModel = request.getfixturevalue("smollm2")
    else:
        model = tiny_model("llama")

    def engine(**options: Any) -> Engine:
        return Engine.from_model(model, **{"num_blocks": 400, "check_every_step": True, "threads": 1, **options})

    return engine


@pytest.fixture(scope="module")
def engine(make: MakeEngine) -> Iterator[Engine]:
    with make() as engine:
        yield engine
        engine.check()


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[object]:
    """What each request brings by itself."""
    return [described(engine.generate(prompt, wanted)) for prompt, wanted in zip(PROMPTS, params(), strict=True)]


def params(**changes: Any) -> list[SamplingParams]:
    return [
        SamplingParams(
            **{"temperature": 1.0, "seed": 20 + index, "max_tokens": 64, "ignore_eos": True, **each, **changes}
        )
        if "constraint" not in each
        else SamplingParams(**{"temperature": 1.0, "seed": 20 + index, "max_tokens": 64, **each, **changes})
        for index, each in enumerate(ALL)
    ]


def described(output: GenerationOutput) -> object:
    assert output.error is None
    return output.prompt_logprobs, [
        (sample.token_ids, sample.text, sample.logprobs, sample.finish_reason, sample.stop_reason)
        for sample in output.all_samples
    ]


def described_all(outputs: list[GenerationOutput]) -> list[object]:
    return [described(output) for output in outputs]


def test_a_mixed_batch_has_the_bits_of_each_request_alone(engine: Engine, alone: list[object]) -> None:
    together = described_all(engine.generate(PROMPTS, params()))
    # Those without a constraint first: nothing about their neighbours may show.
    assert together[: len(FREE)] == alone[: len(FREE)]
    assert together[len(FREE) :] == alone[len(FREE) :]


def test_free_requests_do_not_notice_that_neighbours_are_constrained(engine: Engine, alone: list[object]) -> None:
    unbound = [
        SamplingParams(temperature=1.0, seed=index, max_tokens=64, ignore_eos=True) for index in range(len(BOUND))
    ]
    outputs = engine.generate(PROMPTS, [*params()[: len(FREE)], *unbound])
    assert described_all(outputs)[: len(FREE)] == alone[: len(FREE)]


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_cache": "off"},
        {"max_batch_tokens": 8, "max_running": 3, "overlap": "on"},
        {"fast_forward": False, "prefix_cache": "off"},
        {"block_size": 32, "num_blocks": 200, "fast_forward": False},
    ],
    ids=["no cache", "chunks of 8, overlap", "a forced token a step, no cache", "a forced token a step, larger blocks"],
)
def test_cold_equals_warm(make: MakeEngine, engine: Engine, alone: list[object], options: dict[str, Any]) -> None:
    assert described_all(engine.generate(PROMPTS, params())) == alone
    with make(**options) as other:
        assert described_all(other.generate(PROMPTS, params())) == alone
        assert described_all(other.generate(PROMPTS[::-1], params()[::-1])) == alone[::-1]


def test_preemption_changes_neither_samples_nor_neighbours(make: MakeEngine, engine: Engine) -> None:
    long = JsonSchema(json.dumps({"type": "array", "items": {"type": "string", "minLength": 9}, "minItems": 20}))
    kinds: list[dict[str, Any]] = [{"n": 2}, {}, {"prompt_logprobs": 0}]
    bound = [
        SamplingParams(constraint=long, temperature=1.0, seed=index, max_tokens=80, logprobs=1, **kinds[index % 3])
        for index in range(6)
    ]
    free = [
        SamplingParams(temperature=1.0, seed=index, max_tokens=80, logprobs=1, ignore_eos=True) for index in range(3)
    ]
    with make(num_blocks=36, policy="priority", overlap="on") as tight:
        # The free ones come later and count for more, so that the others have to make room.
        chunks = tight.generate(PROMPTS[:6], bound, stream=True)
        squeezed_free = tight.generate(PROMPTS[6:9], free, priority=1)
        squeezed = collect(chunks, 6)
    assert any(output.timings.preemptions for output in squeezed)
    assert described_all(squeezed) == described_all(engine.generate(PROMPTS[:6], bound))
    assert described_all(squeezed_free) == described_all(engine.generate(PROMPTS[6:9], free))


def test_seeds_reproduce_and_tell_outputs_apart(make: MakeEngine, engine: Engine, alone: list[object]) -> None:
    bound, prompts = params()[len(FREE) :], PROMPTS[len(FREE) :]
    assert described_all(engine.generate(prompts, bound)) == alone[len(FREE) :]
    others = [
        described(engine.generate("Say", SamplingParams(constraint=JSON, seed=seed, max_tokens=64)))
        for seed in range(4)
    ]
    assert len({str(other) for other in others}) == 4
    # Without a seed the engine's own decides.
    unseeded = [SamplingParams(constraint=JSON, n=2, max_tokens=64, logprobs=1) for _ in range(2)]
    runs = []
    for seed in (5, 5, 6):
        with make(seed=seed) as fresh:
            runs.append(described_all(fresh.generate(["Say", "Say"], unseeded)))
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]
