"""Token healing: rules, draws without a model, and the whole engine."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve import Engine, SamplingParams
from radixserve.config import SchedulerConfig
from radixserve.constraints import Regex
from radixserve.engine.constrained import ConstrainedOutput, constrained_output
from radixserve.engine.core import EngineCore
from radixserve.engine.healing import MAX_HEALED, Healed, HealedOutput, heal_prompt
from radixserve.engine.token_index import TokenIndex
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.messages import FinishReason, GenerationOutput
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import LoadedModel
from tests.engine.schedules import Arrival, Bench, random_schedule
from tests.engine.text_vocabulary import TextVocabulary, text_decoder
from tests.tiny_model import tiny_model

VOCABULARY = TextVocabulary()
INDEX = TokenIndex(VOCABULARY)
SPECIAL = VOCABULARY.special[2]
EURO = b"\xe2\x82\xac".decode()


def healed_text(*prompt: int) -> str | None:
    found = heal_prompt(INDEX, prompt)
    if found is None:
        return None
    assert VOCABULARY.join(found.tokens) == found.text and tuple(prompt[-len(found.tokens) :]) == found.tokens
    return found.text.decode()


# --- What is taken off ------------------------------------------------------------------------------------------------


def test_the_last_tokens_are_taken_off_as_long_as_a_token_goes_on_from_them() -> None:
    ids = VOCABULARY.ids
    assert healed_text(*ids("b", "a")) == "a"
    # More than one token, if their joined text begins a longer one; as many as there are.
    assert healed_text(*ids("b", "a", "b", "a", "b")) == "abab"
    assert healed_text(*ids("b", "b", "b", "b", "b", "b")) == "bbbb"
    assert healed_text(*ids("b", "aaaaa")) is None
    # Not the longest token alone, but a shorter one after it.
    assert healed_text(*ids("ab", "aaaaa", "ab")) == "ab"
    assert healed_text(*ids("c", "c")) is None


def test_one_token_always_stays() -> None:
    ids = VOCABULARY.ids
    assert healed_text(*ids("a")) is None
    assert healed_text(*ids("a", "b")) == "b"


def test_special_tokens_are_never_taken_off() -> None:
    ids = VOCABULARY.ids
    assert healed_text(*ids("a"), SPECIAL) is None
    assert healed_text(*ids("a"), SPECIAL, *ids("b", "a")) == "ba"


def test_tokens_without_a_text_are_never_taken_off() -> None:
    nothing = VOCABULARY.texts.index(b"")
    assert healed_text(*VOCABULARY.ids("b"), nothing) is None
    assert healed_text(*VOCABULARY.ids("b", "b"), nothing, *VOCABULARY.ids("a")) == "a"


def test_only_whole_characters_are_taken_off() -> None:
    texts = VOCABULARY.texts
    head, tail = texts.index(b"\xe2\x82"), texts.index(b"\xac")
    # The last token is the beginning of another one, but only the end of a character.
    assert INDEX.extends(b"\xac") and healed_text(*VOCABULARY.ids("c"), head, tail) == EURO
    assert healed_text(head, tail) is None
    assert healed_text(*VOCABULARY.ids("c"), head) is None


def test_the_way_back_is_bounded() -> None:
    class Long(TextVocabulary):
        def __init__(self) -> None:
            super().__init__()
            self.texts[0] = b"x"
            self.texts[-1] = b"x" * 50

    index = TokenIndex(Long())
    found = heal_prompt(index, [0] * 40)
    assert found is not None and len(found.tokens) == MAX_HEALED


# --- Draws without a model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(VOCABULARY, [VOCABULARY.eos_id], seconds=60)


def drawn(
    prompt: list[int], dice: random.Random, max_tokens: int, constrained: ConstrainedOutput | None
) -> tuple[list[int], int, FinishReason | None, HealedOutput]:
    """Random draws as the scheduler takes them; tokens, the limit in force at the end, and how it ended."""
    found = heal_prompt(INDEX, prompt)
    assert found is not None
    output = HealedOutput(INDEX, found, constrained, max_tokens=max_tokens)
    limit = max_tokens + len(found.tokens)
    follow = output.begin()
    tokens = list(follow.tokens)
    mask = np.zeros(-(-VOCABULARY.vocab_size // 32), np.uint32)
    while follow.ending is None and len(tokens) < limit:
        if dice.random() < 0.2:
            output = output.copy()
        allowed = np.arange(62)
        settle = None
        if output.restricts:
            output.fill_mask(mask)
            choice = output.choice(mask, VOCABULARY.vocab_size)
            allowed, settle = choice.allowed, choice.settle
        token = int(dice.choice(allowed))
        if settle is not None:
            token = settle(token)
        tokens.append(token)
        if token == VOCABULARY.eos_id:
            return tokens, limit, FinishReason.STOP, output
        follow = output.after(token)
        if follow.max_tokens is not None:
            limit = follow.max_tokens
        tokens += follow.tokens
    return tokens, limit, None if follow.ending is None else follow.ending.reason, output


@settings(max_examples=150)
@given(st.lists(st.integers(0, 61), min_size=2, max_size=5), st.integers(0, 2**32), st.integers(1, 5))
def test_free_outputs_begin_with_the_text_and_bring_as_many_tokens_as_asked_for(
    prompt: list[int], seed: int, max_tokens: int
) -> None:
    found = heal_prompt(INDEX, prompt)
    if found is None:
        return
    tokens, _, _, output = drawn(prompt, random.Random(seed), max_tokens, None)
    data = VOCABULARY.join(tokens)
    assert data.startswith(found.text) and not output.restricts
    repeated = sum(len(VOCABULARY.join(tokens[: index + 1])) <= len(found.text) for index in range(len(tokens)))
    assert len(tokens) - repeated == max_tokens


PATTERNS = ("(ab|ba){1,3}", "a{2}b+", "[ab]{4,9}", "b", "(aab|b*)(c|aa)")


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 61), min_size=2, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from(PATTERNS),
    st.booleans(),
)
def test_the_constraint_is_on_what_follows_the_text(
    compiler: ConstraintCompiler, prompt: list[int], seed: int, pattern: str, finish: bool
) -> None:
    found = heal_prompt(INDEX, prompt)
    if found is None:
        return
    max_tokens = 4 if finish else 60
    sampling = SamplingParams(constraint=Regex(pattern), finish_json=finish, max_tokens=max_tokens)
    inner = constrained_output(
        compiler.compile(Regex(pattern)),
        sampling,
        end_tokens=frozenset([VOCABULARY.eos_id]),
        special_ids=VOCABULARY.special_ids,
        max_tokens=max_tokens,
    )
    tokens, limit, reason, _ = drawn(prompt, random.Random(seed), max_tokens, inner)
    assert len(tokens) <= limit
    data = VOCABULARY.join([token for token in tokens if token != VOCABULARY.eos_id])
    assert data.startswith(found.text)
    text = data[len(found.text) :].decode()
    if reason is FinishReason.STOP:
        assert re.fullmatch(pattern, text), text
    else:
        assert not finish


def test_a_constraint_allows_exactly_the_tokens_that_can_begin_it(compiler: ConstraintCompiler) -> None:
    """Against all tokens tried one by one."""
    prompt = VOCABULARY.ids("c", "a")
    found = heal_prompt(INDEX, prompt)
    assert found is not None
    mask = np.zeros(-(-VOCABULARY.vocab_size // 32), np.uint32)
    for pattern in (*PATTERNS, "c", "ba|bb", ""):
        compiled = compiler.compile(Regex(pattern))
        inner = constrained_output(
            compiled,
            SamplingParams(constraint=Regex(pattern)),
            end_tokens=frozenset([VOCABULARY.eos_id]),
            special_ids=VOCABULARY.special_ids,
            max_tokens=9,
        )
        output = HealedOutput(INDEX, found, inner, max_tokens=9)
        output.fill_mask(mask)
        allowed = set(output.choice(mask, VOCABULARY.vocab_size).allowed.tolist())
        for token, text in enumerate(VOCABULARY.texts):
            fits = text.startswith(b"a") and token not in VOCABULARY.special
            if fits and len(text) > 1:
                letters = [VOCABULARY.ids(char)[0] for char in text[1:].decode()]
                fits = compiled.matcher().count_allowed(letters) == len(letters)
            assert (token in allowed) == fits, (pattern, text)


# --- In the engine ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(text_decoder(), 4, 200, VOCABULARY, token_index=INDEX)


def run(bench: Bench, prompt: list[int], *, heal: bool = True, **fields: Any) -> GenerationOutput:
    arrival = Arrival(0, tuple(prompt), SamplingParams(**{"max_tokens": 6, "temperature": 0.0, **fields}), heal=heal)
    return bench.reference(arrival)


def repeats(found: Healed | None, tokens: list[int]) -> int:
    """How many of ``tokens``, from the first, bring nothing but the text that was taken off."""
    left = b"" if found is None else found.text
    for count, token in enumerate(tokens):
        data = VOCABULARY.texts[token]
        if not 0 < len(data) <= len(left):
            return count
        left = left[len(data) :]
    return len(tokens)


def check_text(prompt: list[int], output: GenerationOutput) -> None:
    """The kept tokens and the rest continue what is left of the prompt to exactly the prompt's text and the output's."""
    given = prompt[: len(prompt) - output.healed_tokens]
    before = VOCABULARY.join(prompt).decode(errors="replace")
    for sample in output.all_samples:
        kept = [token for token in sample.token_ids[: sample.kept_tokens] if token not in VOCABULARY.special]
        data = VOCABULARY.join([*given, *kept])
        assert data.decode(errors="replace") + sample.rest == before + sample.text


@settings(max_examples=60)
@given(st.lists(st.integers(0, 61), min_size=1, max_size=8), st.integers(0, 10**6), st.data())
def test_the_text_is_the_prompts_and_what_is_new(
    bench: Bench, prompt: list[int], seed: int, data: st.DataObject
) -> None:
    found = heal_prompt(INDEX, prompt)
    stop = tuple(data.draw(st.lists(st.text("ab", min_size=1, max_size=3), max_size=2)))
    output = run(bench, prompt, temperature=1.0, seed=seed, n=data.draw(st.integers(1, 3)), stop=stop)
    assert output.healed_tokens == (0 if found is None else len(found.tokens))
    assert output.prompt_token_ids == prompt and output.prompt_tokens == len(prompt)
    check_text(prompt, output)
    for sample in output.all_samples:
        assert not any(text in sample.text for text in stop)
        if sample.finish_reason is FinishReason.LENGTH:
            assert len(sample.token_ids) - repeats(found, sample.token_ids) == 6


def test_the_draw_is_the_models_own_given_that_the_text_is_covered(bench: Bench) -> None:
    """One token was taken off: the processed logprob of what was drawn is the raw one over that of all that cover the text."""
    prompt = VOCABULARY.ids("c", "ab", "ba", "c", "ab")
    healed = run(bench, prompt, temperature=1.0, seed=5, logprobs=0, logprobs_mode="processed")
    assert healed.healed_tokens == 1 and healed.logprobs is not None
    covering = INDEX.covering(b"ab").tolist()
    asked = run(bench, prompt[:-1], heal=False, max_tokens=1, logprobs=0, logprob_token_ids=tuple(covering))
    assert asked.logprobs is not None
    raw = dict(asked.logprobs[0].asked)
    total = sum(math.exp(value) for value in raw.values())
    drawn = healed.token_ids[0]
    assert drawn in covering
    assert math.isclose(healed.logprobs[0].logprob, raw[drawn] - math.log(total), abs_tol=1e-6)
    greedy = run(bench, prompt)
    assert greedy.token_ids[0] == max(covering, key=lambda token: raw[token])


def test_after_the_text_it_is_as_if_the_prompt_had_been_sent_so(bench: Bench) -> None:
    """What replaces the tokens is part of the context like any prompt: the rest is what that prompt alone brings."""
    prompt = VOCABULARY.ids("c", "ab", "ba", "c", "ab")
    for seed in range(5):
        healed = run(bench, prompt, temperature=1.0, seed=seed)
        whole = [*prompt[:-1], healed.token_ids[0]]
        other = run(bench, whole, heal=False, temperature=1.0, seed=seed)
        count = min(len(healed.token_ids) - 1, 6)
        assert healed.token_ids[1 : 1 + count] == other.token_ids[:count]


def test_a_token_that_only_repeats_ends_nothing(bench: Bench) -> None:
    prompt = VOCABULARY.ids("c", "ab")
    (own,) = VOCABULARY.ids("ab")
    bias = {own: 1e4}
    output = run(bench, prompt, logit_bias=bias, stop_token_ids=(own,), max_tokens=1)
    # The first repeats the prompt, the second is the stop token.
    assert output.token_ids == [own, own] and (output.text, output.stop_reason) == ("", own)
    assert output.kept_tokens == 1 and output.rest == ""


def test_a_token_that_only_repeats_is_not_held_off(bench: Bench) -> None:
    """``min_tokens`` bans stop tokens, but this one stops nothing yet."""
    prompt = VOCABULARY.ids("c", "ab")
    (own,) = VOCABULARY.ids("ab")
    output = run(bench, prompt, logit_bias={own: 1e4}, stop_token_ids=(own,), min_tokens=2, max_tokens=4)
    assert output.token_ids[0] == own and output.token_ids.index(own, 1) == 3


def test_limits_count_what_is_new(bench: Bench) -> None:
    prompt = VOCABULARY.ids("c", "ab")
    (own,) = VOCABULARY.ids("ab")
    eos = VOCABULARY.eos_id
    stops: dict[str, Any] = {"logit_bias": {own: 1e4, eos: 5e3}, "stop_token_ids": (eos,)}
    assert run(bench, prompt, **stops, max_tokens=3).token_ids == [own] * 4
    # The end token is the most likely one from where the text is repeated on, and is held off for as many as are asked for.
    free: dict[str, Any] = {"logit_bias": {eos: 1e4}, "stop_token_ids": (eos,), "max_tokens": 5}
    for least in range(4):
        output = run(bench, prompt, **free, min_tokens=least)
        new = [token for token in output.token_ids if token != eos]
        repeats = len(VOCABULARY.texts[new[0]]) == 2
        assert len(new) - repeats == max(least, 0 if repeats else 1), output.token_ids


def test_nothing_is_healed_where_nothing_is_generated(bench: Bench) -> None:
    prompt = VOCABULARY.ids("c", "ab")
    output = run(bench, prompt, max_tokens=0, prompt_logprobs=0)
    assert output.healed_tokens == 0 and output.token_ids == []
    assert output.prompt_logprobs == run(bench, prompt, heal=False, max_tokens=0, prompt_logprobs=0).prompt_logprobs


def test_prompt_logprobs_are_those_of_the_tokens_that_stayed(bench: Bench) -> None:
    prompt = VOCABULARY.ids("c", "ab", "c", "ab")
    healed = run(bench, prompt, prompt_logprobs=0).prompt_logprobs
    whole = run(bench, prompt, heal=False, prompt_logprobs=0).prompt_logprobs
    assert healed is not None and whole is not None and healed == [*whole[:-1], None]


def test_cold_equals_warm(bench: Bench) -> None:
    """In any batch, chunked, cached or preempted, with overlap and without: the same tokens and logprobs."""

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        dice = random.Random(seed)
        schedule = random_schedule(seed, bench)
        arrivals = tuple(
            dataclasses.replace(
                arrival,
                heal=dice.random() < 0.8,
                prompt=tuple(token % len(VOCABULARY.texts) for token in arrival.prompt),
            )
            for arrival in schedule.arrivals
        )
        scheduler = dataclasses.replace(schedule.scheduler, overlap=dice.choice(["on", "off"]))
        assert bench.differences(dataclasses.replace(schedule, arrivals=arrivals, scheduler=scheduler)) == []

    check()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 61), min_size=2, max_size=5),
    st.integers(0, 10**6),
    st.sampled_from(("(ab|ba){1,3}", "aab{3}(c|aa)", "[ab]{2,5}c")),
    st.booleans(),
)
def test_constrained_outputs_are_the_same_with_forced_tokens_one_a_step(
    compiler: ConstraintCompiler, prompt: list[int], seed: int, pattern: str, finish: bool
) -> None:
    model = dataclasses.replace(text_decoder(), generation=GenerationDefaults(eos_ids=(VOCABULARY.eos_id,)))
    bench = Bench(model, 4, 60, VOCABULARY, token_index=INDEX, compiler=compiler)
    sampling = SamplingParams(
        max_tokens=9, temperature=1.0, seed=seed, n=2, logprobs=0, constraint=Regex(pattern), finish_json=finish
    )
    found: list[list[Any]] = []
    for fast_forward in (True, False):
        core = bench.core(SchedulerConfig(fast_forward=fast_forward, max_batch_tokens=5, max_running=5), 60)
        outputs: dict[str, GenerationOutput] = {}
        core.add("a", prompt, sampling, heal=True)
        while core.has_work or core.has_news:
            bench.step(core, outputs)
        output = outputs["a"]
        check_text(prompt, output)
        for sample in output.samples:
            assert sample.error is None
            if sample.finish_reason is FinishReason.STOP:
                assert re.fullmatch(pattern, sample.text), sample.text
            else:
                assert not finish
        found.append([(sample.token_ids, sample.logprobs, sample.forced_tokens) for sample in output.samples])
    assert found[0] == found[1]


def test_what_was_committed_is_found_again(bench: Bench) -> None:
    """A conversation that goes on from the kept tokens hits all of them but the last."""
    core = bench.core(SchedulerConfig(), 100)
    prompt = VOCABULARY.ids("c", "ab", "ba", "c", "ab")
    outputs: dict[str, GenerationOutput] = {}
    for turn in range(3):
        core.add(str(turn), prompt, SamplingParams(max_tokens=5, temperature=0.0), heal=True)
        while core.has_work or core.has_news:
            bench.step(core, outputs)
        output = outputs[str(turn)]
        given = prompt[: len(prompt) - output.healed_tokens]
        assert turn == 0 or output.cached_tokens == len(given) - 1
        prompt = [*given, *output.token_ids[: output.kept_tokens], *VOCABULARY.ids("c")]
        prompt = prompt[:-1]


def test_heal_is_refused_by_name(bench: Bench) -> None:
    core = bench.core(SchedulerConfig(), 100)
    with pytest.raises(InvalidRequest) as caught:
        core.add("a", [0, 1], SamplingParams(), heal="yes")  # type: ignore[arg-type]
    assert caught.value.param == "heal"
    plain = Bench(bench.model, 4, 20, VOCABULARY).core(SchedulerConfig(), 20)
    assert isinstance(plain, EngineCore)
    with pytest.raises(UnsupportedFeature) as unsupported:
        plain.add("a", [0, 1], SamplingParams(max_tokens=3), heal=True)
    assert unsupported.value.param == "heal"


# --- What a user sees ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(smollm2: LoadedModel) -> Iterator[Engine]:
    with Engine.from_model(smollm2, num_blocks=200) as engine:
        yield engine
        engine.check()


GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_a_cut_word_and_an_address_go_on(engine: Engine) -> None:
    assert engine.generate("Visit https:", GREEDY, heal=True).text.startswith("//")
    assert engine.generate("def f(x):\n    retur", GREEDY, heal=True).text.startswith("n ")
    assert engine.generate("Once upon a ti", GREEDY, heal=True).text.startswith("me")


def test_streams_and_batches_say_the_same(engine: Engine) -> None:
    prompts = ["Visit https:", "Once upon a ti", "Hello."]
    sampling = msgspec.structs.replace(GREEDY, n=2, temperature=0.8, seed=4)
    outputs = engine.generate(prompts, sampling, heal=True)
    texts: dict[tuple[int, int], str] = {}
    healed: dict[int, int] = {}
    for chunk in engine.generate(prompts, sampling, heal=True, stream=True):
        key = (chunk.prompt_index, chunk.index)
        texts[key] = texts.get(key, "") + chunk.text
        if chunk.healed_tokens is not None:
            healed[chunk.prompt_index] = chunk.healed_tokens
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        assert healed[index] == output.healed_tokens
        assert [texts[index, at] for at in range(2)] == [sample.text for sample in output.samples]
        given = output.prompt_token_ids[: output.prompt_tokens - output.healed_tokens]
        for sample in output.samples:
            whole = engine.detokenize([*given, *sample.token_ids[: sample.kept_tokens]]) + sample.rest
            assert whole == prompt + sample.text


def test_a_constraint_begins_after_the_healed_text(engine: Engine) -> None:
    sampling = msgspec.structs.replace(GREEDY, constraint=Regex("(le|ple) cats?"), finish_json=True)
    output = engine.generate("My sim", sampling, heal=True)
    assert output.text in ("le cat", "le cats", "ple cat", "ple cats") and output.healed_tokens == 1


def test_a_byte_vocabulary_has_nothing_to_heal() -> None:
    with Engine.from_model(tiny_model(), num_blocks=64, kernels="torch", threads=1) as engine:
        assert engine.generate("abc", GREEDY, heal=True).healed_tokens == 0
