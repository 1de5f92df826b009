"""Where an output ends: stop tokens, stop patterns, and what they leave in the text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixserve import Engine, SamplingParams
from radixserve.engine.detokenizer import IncrementalDetokenizer
from radixserve.errors import InvalidRequest
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import FinishReason
from tests.tiny_model import byte_tokenizer, tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
# Keeps the outputs of a model of random bytes to letters.
LETTERS = {token: -1000.0 for token in range(264) if not 97 <= token <= 122}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model(), num_blocks=64, kernels="torch", threads=1) as engine:
        yield engine


def sampling(**changes: object) -> SamplingParams:
    values = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logit_bias": LETTERS}
    return SamplingParams(**{**values, **changes})  # type: ignore[arg-type]


def test_a_stop_token_is_no_part_of_the_text(engine: Engine) -> None:
    whole = engine.generate("abc", sampling())
    token = whole.token_ids[10]
    first = whole.token_ids.index(token)
    for more in ({}, {"n": 2, "temperature": 0.0}):
        output = engine.generate("abc", sampling(stop_token_ids=(token,), **more))
        assert output.text == whole.text[:first] and output.token_ids == whole.token_ids[: first + 1]
        assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, token)
    kept = engine.generate("abc", sampling(stop_token_ids=(token,), include_stop=True))
    assert kept.text == whole.text[: first + 1]
    streamed = "".join(chunk.text for chunk in engine.generate("abc", sampling(stop_token_ids=(token,)), stream=True))
    assert streamed == whole.text[:first]


def test_the_models_own_end_token_is_no_part_of_the_text(engine: Engine) -> None:
    biased = sampling(logit_bias={257: 1e4}, ignore_eos=False, skip_special_tokens=False)
    output = engine.generate("abc", biased)
    assert (output.text, output.token_ids, output.finish_reason) == ("", [257], FinishReason.STOP)
    ignored = engine.generate("abc", sampling(logit_bias={257: 1e4}, max_tokens=2, skip_special_tokens=False))
    assert ignored.text == "</s></s>"


def test_a_pattern_ends_the_output_after_its_match(engine: Engine) -> None:
    whole = engine.generate("abc", sampling())
    pattern = f"[{whole.text[7]}-z][a-z][{whole.text[9]}]"
    output = engine.generate("abc", sampling(stop_regex=(pattern, "THE END")))
    assert output.finish_reason is FinishReason.STOP and output.stop_reason == pattern
    assert whole.text.startswith(output.text) and 3 <= len(output.text) <= 10
    chunks = list(engine.generate("abc", sampling(stop_regex=(pattern,)), stream=True))
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert chunks[-1].stop_reason == pattern and chunks[0].cached_tokens is not None


def test_the_first_of_stop_string_and_pattern_wins(engine: Engine) -> None:
    whole = engine.generate("abc", sampling()).text
    string, pattern = whole[4:6], whole[2:4]
    output = engine.generate("abc", sampling(stop=(string,), stop_regex=(pattern,)))
    assert output.stop_reason == pattern and output.text == whole[: whole.index(pattern) + 2]


def test_a_pattern_that_cannot_be_followed_is_refused(engine: Engine) -> None:
    for wrong in (("(",), ("a*",), ("x",) * 5, ("x" * 2000,), "text", (5,)):
        with pytest.raises(InvalidRequest) as caught:
            engine.generate("abc", sampling(stop_regex=wrong))
        assert caught.value.param == "stop_regex"


def test_a_pattern_that_is_too_much_work_is_the_requests_own_fault(engine: Engine) -> None:
    greedy = sampling(max_tokens=500, logit_bias={97: 1e4}, stop_regex=("(a{1,900}b?){900}z",))
    neighbour = engine.generate("abc", sampling())
    chunks = list(engine.generate("b", greedy, stream=True))
    output = chunks[-1].output
    assert output is not None and output.error is not None and "too complex" in output.error
    assert output.error_param == "stop_regex" and output.finish_reason is FinishReason.ERROR
    assert output.completion_tokens < 500
    assert engine.generate("abc", sampling()).token_ids == neighbour.token_ids


# ---------------------------------------------------------------- the text alone


def detokenizer(pattern: str, stop: tuple[str, ...] = (), **options: object) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(byte_tokenizer(), stop=stop, patterns=StopPatterns([pattern]), **options)  # type: ignore[arg-type]


def test_text_after_a_match_is_dropped() -> None:
    text = detokenizer("[0-9]")
    assert text.push(list(b"ab1cd")) == "ab1" and text.stopped == "[0-9]" and text.num_tokens == 3
    assert text.push(list(b"more")) == "" and text.finish() == "" and text.text == "ab1"


def test_a_match_may_span_pushes_and_characters() -> None:
    text = detokenizer("é!")
    assert text.push([0xC3]) == "" and text.push([0xA9]) == "é" and text.stopped is None
    assert text.push(list(b"!x")) == "!" and text.stopped == "é!"


def test_what_a_stop_string_holds_back_belongs_to_the_match() -> None:
    text = detokenizer("b1", stop=("ab12",))
    assert text.push(list(b"xab")) == "x"
    assert text.push(list(b"1")) == "ab1" and text.stopped == "b1"


def test_where_both_end_the_stop_string_wins() -> None:
    text = detokenizer("c", stop=("bc",))
    assert text.push(list(b"abcd")) == "a" and text.stopped == "bc"


def test_matches_within_min_tokens_do_not_count() -> None:
    text = detokenizer("a", min_tokens=2)
    assert text.push(list(b"aa")) == "aa" and text.stopped is None
    assert text.push(list(b"ba")) == "ba" and text.stopped == "a"


def test_a_pattern_that_cannot_go_on_says_so() -> None:
    text = detokenizer("(a{1,900}b?){900}z")
    for _ in range(10):
        text.push(list(b"a" * 100))
    assert text.failure is not None and "too complex" in text.failure and text.stopped is None
