"""The scripted backend: its tokenizer, what it makes of scripts, its counts and its records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlang.backends.base import Call, Output, Piece, Sample, Text
from radixlang.backends.fake import FakeBackend, FakeCall, Gate
from radixlang.backends.fake_output import draft, sample_of
from radixlang.backends.scripts import Prompt, Script, constrained, fits, instance
from radixlang.backends.toy_tokenizer import BOS, IM_END, IM_START, SPECIAL, ToyTokenizer
from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import Refused, Unsupported
from radixlang.sampling import Sampling

TEXTS = st.text("ab cd.!\n\t", max_size=30) | st.text(max_size=20)


@given(st.lists(TEXTS, max_size=5))
def test_the_tokenizer_is_reversible_and_reads_parts_as_one(parts: list[str]) -> None:
    tokenizer = ToyTokenizer()
    tokens = tokenizer.encode([Text(part, "content") for part in parts])
    assert tokenizer.decode(tokens) == "".join(parts)
    assert tokens == tokenizer.encode([Text("".join(parts), "content")])
    assert ToyTokenizer().encode_text("".join(parts)) == tokens


def test_tokens_merge_across_borders() -> None:
    tokenizer = ToyTokenizer()
    assert tokenizer.encode_text("da") + tokenizer.encode_text("ta") != tokenizer.encode_text("data")
    assert [tokenizer.text_of(token) for token in tokenizer.encode_text("databases and\n\n x.\n")] == [
        "data",
        "base",
        "s",
        " and",
        "\n\n ",
        "x",
        ".\n",
    ]


def test_special_tokens_are_special_where_they_may_be() -> None:
    tokenizer = ToyTokenizer()
    parts = [Text("<|im_start|>a", "free"), Text("<|im_end|>", "content"), Text("<|im_end|>", "template")]
    tokens = tokenizer.encode(parts, bos=True)
    assert tokens[:2] == [BOS, IM_START]
    assert [token for token in tokens if token <= len(SPECIAL)] == [BOS, IM_START, IM_END]
    assert tokenizer.decode(tokens[1:]) == "<|im_start|>a<|im_end|><|im_end|>"


@given(TEXTS, st.sampled_from([1, 2, 5, 50]), st.sampled_from([None, (".",), ("b c", "\n")]), st.booleans(), TEXTS)
def test_tokens_texts_and_rests_of_outputs_agree(
    answer: str, limit: int, stop: tuple[str, ...] | None, heal: bool, before: str
) -> None:
    tokenizer = ToyTokenizer()
    prompt = tokenizer.encode_text(before)
    call = Call(Sampling(max_tokens=limit, stop=stop), heal=heal)
    one = draft(tokenizer, prompt, answer, call)
    sample = sample_of(tokenizer, one, None)
    assert len(sample.token_ids) <= max(limit, 1)
    assert answer.startswith(sample.text)
    settled = tokenizer.decode(prompt[: len(prompt) - one.healed]) + tokenizer.decode(sample.token_ids[: sample.kept])
    assert settled + sample.rest == before + sample.text
    assert "".join(one.pieces) == sample.text
    assert len(one.pieces) == len(sample.token_ids)
    assert (sample.finish_reason == "length") == (len(sample.token_ids) == limit and sample.matched is None)
    for mark in stop or ():
        assert mark not in sample.text


def generate(backend: FakeBackend, prompt: str, call: Call) -> tuple[Output, list[Piece]]:
    async def main() -> tuple[Output, list[Piece]]:
        tokens = await backend.encode([Text(prompt, "free")], first=True)
        pieces = [piece async for piece in backend.generate(tokens, call)]
        output = pieces[-1].output
        assert output is not None
        return output, pieces[:-1]

    return asyncio.run(main())


@pytest.mark.parametrize(
    "script",
    ["yes", {"no match": "no", "me$": "yes"}, lambda prompt: "yes" if prompt.text == "ask me" else "no"],
    ids=["text", "patterns", "function"],
)
def test_scripts(script: Script) -> None:
    output, _ = generate(FakeBackend(script), "ask me", Call(Sampling(max_tokens=5)))
    assert output.samples[0].text == "yes"


def test_what_a_function_sees() -> None:
    seen: list[Prompt] = []

    def script(prompt: Prompt) -> str:
        seen.append(prompt)
        return "yes"

    backend = FakeBackend(script, bos=True)
    for _ in range(2):
        generate(backend, "ask", Call(Sampling(max_tokens=5, n=2)))
    assert [(prompt.text, prompt.sample, prompt.number) for prompt in seen] == [
        ("ask", 0, 0),
        ("ask", 1, 0),
        ("ask", 0, 1),
        ("ask", 1, 1),
    ]


def test_unscripted_answers_depend_on_prompt_seed_and_sample() -> None:
    def texts(prompt: str, **sampling: Any) -> tuple[str, ...]:
        output, _ = generate(FakeBackend(), prompt, Call(Sampling(max_tokens=50, **sampling)))
        return tuple(sample.text for sample in output.samples)

    assert texts("a") == texts("a") != texts("b")
    assert texts("a", n=2, temperature=0.0)[0] == texts("a", n=2, temperature=0.0)[1]
    assert len(set(texts("a", n=4, temperature=1.0))) == 4
    assert texts("a", temperature=1.0, seed=1) != texts("a", temperature=1.0, seed=2)


def test_limits_and_lengths() -> None:
    output, _ = generate(FakeBackend("a b"), "x", Call(Sampling(max_tokens=6, ignore_eos=True)))
    assert (output.samples[0].text, output.samples[0].finish_reason) == ("a b more more more more", "length")
    output, _ = generate(FakeBackend("a b"), "x", Call(Sampling(max_tokens=6, min_tokens=3)))
    assert (output.samples[0].text, output.samples[0].finish_reason) == ("a b more", "stop")
    output, _ = generate(FakeBackend("a 12 b"), "x", Call(Sampling(max_tokens=9, stop_regex=(r"\d+",))))
    assert (output.samples[0].text, output.samples[0].matched) == ("a 12", r"\d+")


def test_pieces_and_logprobs() -> None:
    backend = FakeBackend("one two", likelihood=lambda before, token: -float(len(before)))
    output, pieces = generate(backend, "x", Call(Sampling(max_tokens=9, n=2, logprobs=0), stream=True))
    assert [(piece.index, piece.text) for piece in pieces] == [(0, "one"), (1, "one"), (0, " two"), (1, " two")]
    scores = output.samples[1].logprobs
    assert scores is not None
    assert [(score.text, score.logprob) for score in scores] == [("one", -1.0), (" two", -4.0), ("<|im_end|>", -8.0)]
    _, pieces = generate(backend, "x", Call(Sampling(max_tokens=9)))
    assert pieces == []


@pytest.mark.parametrize(
    ("text", "constraint", "expected"),
    [
        ("take b", Choice(("a", "b")), "b"),
        ("abc", Choice(("a", "ab", "abc")), "abc"),
        ("none of them", Choice(("xy",)), "xy"),
        ("born 1984.", Regex(r"\d+"), "1984"),
        ("nothing", Regex(r"\d\d"), "42"),
        ('so {"a": 1} and', JsonSchema({"type": "object"}), '{"a": 1}'),
        ("[1, 2]", JsonSchema({"type": "array", "items": {"type": "integer"}}), "[1, 2]"),
    ],
)
def test_answers_are_made_to_fit(text: str, constraint: Constraint, expected: str) -> None:
    assert constrained(text, constraint, 0) == expected


def test_what_cannot_be_made_to_fit() -> None:
    with pytest.raises(Refused, match="regex"):
        constrained("nothing", Regex("z{40}"), 0)
    with pytest.raises(Unsupported, match="grammar"):
        constrained("x", Grammar('root ::= "x"'), 0)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/B"}}, "required": ["a", "b"],
         "additionalProperties": False, "$defs": {"B": {"enum": ["x", "y"]}}},
        {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "string"}]}, "minItems": 3},
        {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "number"}], "items": False},
        {"type": ["string", "null"]},
        True,
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", range(3))
def test_instances_are_valid(schema: Any, number: int) -> None:
    import jsonschema

    value = instance(schema, schema, number)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert json.loads(constrained("no document", JsonSchema(schema), number)) == value


@pytest.mark.parametrize(
    ("value", "schema", "valid"),
    [
        ({"a": 1}, {"type": "object", "required": ["b"]}, False),
        ({"a": 1}, {"properties": {"a": {"type": "string"}}}, False),
        ({"a": 1}, {"properties": {}, "additionalProperties": False}, False),
        (True, {"type": "integer"}, False),
        (1, {"type": "number"}, True),
        ([1, "a"], {"items": {"type": "integer"}}, False),
        ("x", {"enum": ["y"]}, False),
        ("x", {"anyOf": [{"type": "null"}, {"type": "string"}]}, True),
        (1, False, False),
    ],
)
def test_fitting(value: Any, schema: Any, valid: bool) -> None:
    assert fits(value, schema, schema) is valid


def test_counts_are_those_of_a_cache() -> None:
    backend = FakeBackend({"^a b c d$": " e f"})
    call = Call(Sampling(max_tokens=10))
    first, _ = generate(backend, "a b c d", call)
    assert (first.usage.prompt, first.usage.cached, first.usage.computed, first.usage.generated) == (4, 0, 4, 3)
    # At least one token is computed, for its logits.
    assert generate(backend, "a b c d", call)[0].usage.cached == 3
    assert generate(backend, "a b x", call)[0].usage.cached == 2
    # Outputs are in the cache up to their last token.
    assert generate(backend, "a b c d e f g", call)[0].usage.cached == 6
    asyncio.run(backend.flush())
    assert generate(backend, "a b c d", call)[0].usage.cached == 0


def test_counts_of_scores_and_holds() -> None:
    backend = FakeBackend()

    async def main() -> None:
        prompt, yes, no = ([*backend.tokenizer.encode_text(text)] for text in ("a b c", " d e f", " d g"))
        hold = await backend.hold(prompt, seconds=1)
        assert (hold.held, hold.usage.computed) == (3, 3)
        result = await backend.score(prompt, [yes, no])
        # What the choices add without their last tokens: " d", " e".
        assert (result.usage.prompt, result.usage.cached, result.usage.computed) == (5, 3, 2)
        assert [len(logprobs) for logprobs in result.logprobs] == [3, 2]
        assert (await backend.score(prompt, [yes, no])).usage.computed == 1
        assert result.logprobs == (await backend.score(prompt, [yes, no])).logprobs
        with pytest.raises(Refused, match="continuations"):
            await backend.score(prompt, [[]])
        assert backend.held == {hold.id: 3}
        await backend.release([hold.id, "unknown"])
        assert (backend.held, backend.released) == ({}, [hold.id])
        assert (await FakeBackend(hold_quota=2).hold([IM_START] * 3, seconds=1)).held == 2

    asyncio.run(main())


def test_a_call_that_is_left_is_aborted() -> None:
    gate = Gate()
    backend = FakeBackend("one two three", before=gate)

    async def main() -> None:
        async def first_piece(generation: AsyncGenerator[Piece, None]) -> None:
            async for _ in generation:
                break
            await generation.aclose()

        left = asyncio.create_task(first_piece(backend.generate([], Call(Sampling(max_tokens=9), stream=True))))
        cancelled = asyncio.create_task(anext(backend.generate([], Call(Sampling(max_tokens=9)))))
        while gate.waiting < 2:
            await asyncio.sleep(0)
        assert backend.active == backend.peak == 2
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.open()
        await left
        assert [call.state for call in backend.calls] == ["aborted", "aborted"]
        assert backend.active == 0

    asyncio.run(main())


def test_a_call_may_be_failed() -> None:
    def failing(error: Exception) -> Callable[[FakeCall], Awaitable[None]]:
        async def before(call: FakeCall) -> None:
            raise error

        return before

    backend = FakeBackend(before=failing(Refused("x", "y")))
    with pytest.raises(Refused):
        generate(backend, "a", Call(Sampling(max_tokens=1)))
    assert backend.calls[0].state == "failed"


def test_healing() -> None:
    tokenizer = ToyTokenizer()
    call = Call(Sampling(max_tokens=9), heal=True)
    prompt = tokenizer.encode_text("see ht")
    one = draft(tokenizer, prompt, "tp x", call)
    assert (one.healed, [tokenizer.text_of(token) for token in one.token_ids]) == (1, [" http", " x", "<|im_end|>"])
    assert sample_of(tokenizer, one, None) == Sample("tp x", "stop", one.token_ids, 2, "", IM_END)
    # Where nothing changes, nothing is replaced.
    assert draft(tokenizer, prompt, " x", call).healed == 0
