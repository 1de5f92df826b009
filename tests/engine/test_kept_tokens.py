"""Which output tokens lie inside the text: a conversation that goes on from them has exactly that text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve import Engine, SamplingParams
from radixserve.constraints import Regex
from radixserve.engine.detokenizer import IncrementalDetokenizer
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import FinishReason
from tests.engine.test_detokenizer import AWKWARD, CUTS, SPECIAL, FakeTokenizer, cut
from tests.tiny_model import tiny_model

# What may come next: after whole characters it leaves the text before it as it is.
NEXT = (b"a", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xbf", b"\x90\x80\x80", b"\xa0\x80")
LETTERS = {token: -1000.0 for token in range(264) if not 97 <= token <= 122}


def decode(data: bytes) -> str:
    return data.decode(errors="replace")


def inside(tokenizer: FakeTokenizer, tokens: list[int], text: str, start: int, *, skip: bool) -> int:
    """The most tokens whose text ``text`` begins with, ending with a whole character not before ``start``; else none."""
    for count in range(len(tokens), 0, -1):
        data = b"".join(tokenizer.token_bytes(token) for token in tokens[:count] if not (skip and token == SPECIAL))
        whole = all(decode(data + rest).startswith(decode(data)) for rest in NEXT)
        if whole and len(decode(data)) >= start and text.startswith(decode(data)):
            return count
    return 0


@settings(max_examples=400)
@given(
    AWKWARD | st.text("abc<|end>é€", max_size=12).map(str.encode),
    CUTS,
    st.lists(st.integers(0, 12), max_size=3),
    st.lists(st.text("abc|é", min_size=1, max_size=3), max_size=2),
    st.sampled_from(["", "a", "é", "ab€"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_kept_tokens_and_rest_are_the_text(
    data: bytes,
    cuts: list[int],
    specials: list[int],
    stops: list[str],
    prefix: str,
    skip: bool,
    include: bool,
    patterns: bool,
    chunk: int,
) -> None:
    tokenizer = FakeTokenizer()
    tokens = tokenizer.tokens(*cut(prefix.encode() + data, cuts))
    tokens = [token for token in tokens if tokenizer.token_bytes(token)]
    covered = next(
        (
            count
            for count in range(len(tokens) + 1)
            if len(b"".join(map(tokenizer.token_bytes, tokens[:count]))) >= len(prefix.encode())
        ),
        len(tokens),
    )
    for at in specials:
        # None comes in place of what was taken off a prompt.
        tokens.insert(covered + at % (len(tokens) - covered + 1), SPECIAL)
    detokenizer = IncrementalDetokenizer(
        tokenizer,
        stop=stops,
        include_stop=include,
        skip_special_tokens=skip,
        patterns=StopPatterns(("c.",)) if patterns else None,
        prefix=prefix.encode(),
    )
    for start in range(0, len(tokens), chunk):
        detokenizer.push(tokens[start : start + chunk])
    detokenizer.finish()
    kept, text = detokenizer.kept_tokens, prefix + detokenizer.text
    shown = [token for token in tokens[:kept] if not (skip and token == SPECIAL)]
    assert decode(b"".join(map(tokenizer.token_bytes, shown))) + detokenizer.rest == text
    assert kept <= detokenizer.num_tokens
    assert kept == inside(tokenizer, tokens[: detokenizer.num_tokens], text, len(prefix), skip=skip)


def test_a_long_text_leaves_no_trail() -> None:
    """What is remembered of places does not grow with the text."""
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), stop=("abcd",))
    for _ in range(500):
        detokenizer.push(list(b"abc."))
    assert len(detokenizer._ends) <= 4 and detokenizer.kept_tokens == 2000


def test_what_is_not_repeated_of_a_prefix_is_left() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), prefix=b"abc")
    detokenizer.push(list(b"ab"))
    assert (detokenizer.finish(), detokenizer.kept_tokens, detokenizer.rest) == ("", 0, "abc")


def test_min_tokens_counts_from_the_first_that_brings_text() -> None:
    detokenizer = IncrementalDetokenizer(FakeTokenizer(), prefix=b"ab", stop=("x",), min_tokens=1)
    assert [detokenizer.push([byte]) for byte in b"abxx"] == ["", "", "x", ""] and detokenizer.stopped == "x"


# --- In an engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model(), num_blocks=64, kernels="torch", threads=1) as engine:
        yield engine
        engine.check()


def sampling(**changes: object) -> SamplingParams:
    values = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, "logit_bias": LETTERS}
    return SamplingParams(**{**values, **changes})  # type: ignore[arg-type]


def test_an_end_token_is_not_kept(engine: Engine) -> None:
    whole = engine.generate("abc", sampling())
    assert (whole.kept_tokens, whole.rest) == (20, "")
    token = whole.token_ids[10]
    first = whole.token_ids.index(token)
    for include, kept in ((False, first), (True, first + 1)):
        output = engine.generate("abc", sampling(stop_token_ids=(token,), include_stop=include))
        assert (len(output.token_ids), output.kept_tokens, output.rest) == (first + 1, kept, "")
    # The text of a control token is left out, so it is not kept either.
    for include in (False, True):
        biased = sampling(logit_bias={257: 1e4}, ignore_eos=False, include_stop=include)
        assert engine.generate("abc", biased).kept_tokens == 0
    shown = sampling(logit_bias={257: 1e4}, ignore_eos=False, include_stop=True, skip_special_tokens=False)
    output = engine.generate("abc", shown)
    assert (output.text, output.kept_tokens) == ("</s>", 1)


def test_a_stop_string_is_not_kept(engine: Engine) -> None:
    whole = engine.generate("abc", sampling()).text
    output = engine.generate("abc", sampling(stop=(whole[4:7],)))
    end = whole.index(whole[4:7])
    assert (output.text, output.kept_tokens, output.rest) == (whole[:end], end, "")
    assert len(output.token_ids) == end + 3


def test_an_incomplete_character_is_not_kept(engine: Engine) -> None:
    output = engine.generate("abc", sampling(logit_bias={0xE2: 1e4}, max_tokens=1))
    assert (output.text, output.token_ids, output.kept_tokens, output.rest) == ("\ufffd", [0xE2], 0, "\ufffd")


def test_all_samples_and_last_pieces_tell_it(engine: Engine) -> None:
    wanted = sampling(n=3, temperature=1.0, seed=3, stop=("e",))
    output = engine.generate("abc", wanted)
    assert len({sample.kept_tokens for sample in output.samples}) > 1
    for sample in output.samples:
        assert (sample.kept_tokens, sample.rest) == (len(sample.text), "")
    assert (output.kept_tokens, output.rest) == (output.samples[0].kept_tokens, "")
    last = {
        chunk.index: chunk
        for chunk in engine.generate("abc", wanted, stream=True)
        if chunk.finish_reason is not None or chunk.kept_tokens is not None
    }
    assert [last[index].kept_tokens for index in range(3)] == [sample.kept_tokens for sample in output.samples]
    assert all(chunk.rest == "" and chunk.forced_tokens == 0 for chunk in last.values())


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("fast_forward", [True, False])
def test_forced_tokens_are_counted(fast_forward: bool, logprobs: int | None) -> None:
    options = {"num_blocks": 64, "kernels": "torch", "threads": 1, "fast_forward": fast_forward}
    with Engine.from_model(tiny_model(), **options) as engine:
        pattern = Regex("abc[xy]def[xy]")
        wanted = SamplingParams(temperature=0, max_tokens=20, constraint=pattern, logprobs=logprobs, n=2)
        output = engine.generate("abc", wanted)
        assert [sample.forced_tokens for sample in output.samples] == [6, 6]
        assert output.forced_tokens == 6 and output.finish_reason is FinishReason.STOP
        # A stop string cuts what was forced as well.
        cut = engine.generate("abc", SamplingParams(temperature=0, max_tokens=20, constraint=pattern, stop=("e",)))
        assert (cut.text[4:], cut.forced_tokens, cut.kept_tokens) == ("d", 5, 5)
        assert engine.generate("abc", sampling()).forced_tokens == 0
