"""`select` in programs: where the choices' tokens begin, what is scored, and what enters the state."""

from __future__ import annotations

import math
from typing import Any

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState


def choose(backend: FakeBackend, before: str, choices: list[str], **options: Any) -> ProgramState:
    @rl.function
    def program(s: ProgramState) -> None:
        s += before + rl.select("x", choices, **options)

    return program.run(backend=backend)


def test_scores_are_those_of_the_tokens_by_hand() -> None:
    backend = FakeBackend()
    state = choose(backend, "The answer is", [" yes", " no", " perhaps"])
    (call,) = backend.of_kind("score")
    assert call.text == "The answer is"
    by_hand = {}
    for choice in (" yes", " no", " perhaps"):
        text, logprobs = "The answer is", []
        for token in backend.tokenizer.encode_text(choice):
            piece = backend.tokenizer.text_of(token)
            logprobs.append(backend.likelihood(text, piece))
            text += piece
        by_hand[choice] = sum(logprobs) / len(logprobs)
    assert state.meta("x")["scores"] == pytest.approx(by_hand)
    assert state["x"] == max(by_hand, key=lambda choice: by_hand[choice])
    assert state.text() == "The answer is" + state["x"]


def test_the_order_of_choices_does_not_matter() -> None:
    choices = ["ye", "yes", "yesterday", "no", "none"]
    forward = choose(FakeBackend(), "He said ", choices)
    backward = choose(FakeBackend(), "He said ", choices[::-1])
    assert forward["x"] == backward["x"]
    assert forward.meta("x")["scores"] == backward.meta("x")["scores"]


def test_choices_are_tokenized_with_the_text_before_them() -> None:
    """The tokens of "rai" and "n" are not that of "rain": the boundary moves back, for all choices."""
    backend = FakeBackend()
    state = choose(backend, "a rai", ["n", "l", "nbow"])
    (call,) = backend.of_kind("score")
    assert call.text == "a"
    encode = backend.tokenizer.encode_text
    tokens = state.meta("x")["token_ids"]
    assert tokens == {"n": tuple(encode(" rain")), "l": tuple(encode(" rail")), "nbow": tuple(encode(" rainbow"))}
    assert state.interpreter.content.ids == encode("a rai" + state["x"])


def test_all_choices_are_scored_from_the_same_point() -> None:
    """Only one of them changes the prompt's last token, yet the others are scored from before it as well."""
    backend = FakeBackend()
    state = choose(backend, "one.", ["\n", " two"])
    assert {len(tokens) for tokens in state.meta("x")["token_ids"].values()} == {1, 2}
    assert backend.of_kind("score")[0].text == "one"


def test_a_select_may_be_told_not_to_heal() -> None:
    backend = FakeBackend()
    state = choose(backend, "a rai", ["n", "l"], heal=False)
    assert backend.of_kind("score")[0].text == "a rai"
    encode = backend.tokenizer.encode_text
    assert state.interpreter.content.ids == encode("a rai") + encode(state["x"])


@pytest.mark.parametrize("bos", [False, True])
def test_select_on_an_empty_prompt(bos: bool) -> None:
    backend = FakeBackend(bos=bos)
    state = choose(backend, "", ["one", "two"])
    assert len(backend.of_kind("score")[0].prompt) == int(bos)
    assert state.text() in ("one", "two")


def test_select_after_generated_tokens_leaves_them_alone() -> None:
    backend = FakeBackend(" rai")

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("before") + rl.select("x", ["n", "l"])

    state = program.run(backend=backend)
    encode = backend.tokenizer.encode_text
    assert state.interpreter.content.ids == encode("a rai") + encode(state["x"])
    assert state.text() == "a rai" + state["x"]


def test_select_in_a_message() -> None:
    backend = FakeBackend()

    @rl.function
    def program(s: ProgramState) -> None:
        s += rl.user("Q") + rl.assistant(rl.select("x", ["<|im_end|>", "yes"]))

    state = program.run(backend=backend)
    assert backend.of_kind("score")[0].text.endswith("<|im_start|>assistant\n")
    assert state.messages()[-1]["content"] == state["x"]
    # The name of a special token is a choice like any other.
    assert all(token > 4 for token in state.meta("x")["token_ids"]["<|im_end|>"])


def test_the_likelihood_decides() -> None:
    for favourite in ("yes", "no"):
        backend = FakeBackend(likelihood=lambda before, token: math.log(0.6 if token == favourite else 0.1))  # noqa: B023
        assert choose(backend, "Well? ", [" yes", "yes", "no"], heal=False)["x"] == favourite


def test_methods() -> None:
    logprobs = {"a": -1.0, "b": -1.2}
    alone = {"a": -0.5, "b": -2.0}
    backend = FakeBackend(likelihood=lambda before, token: (logprobs if before else alone)[token])

    def pick(method: rl.Method) -> ProgramState:
        return choose(backend, "?", ["a", "b"], choices_method=method, heal=False)

    assert pick(rl.token_length_normalized)["x"] == "a"
    assert pick(rl.greedy_token_selection)["x"] == "a"
    state = pick(rl.unconditional_likelihood_normalized)
    assert state["x"] == "b"
    meta = state.meta("x")
    assert meta["scores"] == pytest.approx({"a": -0.5, "b": 0.8})
    assert meta["unconditional_logprobs"] == {"a": (-0.5,), "b": (-2.0,)}
    assert meta["choices_method"] == "unconditional_likelihood_normalized"
    assert backend.of_kind("score")[-1].prompt == ()
    assert [line.calls for line in state.report().variables] == [2]


def test_a_method_of_ones_own() -> None:
    class Last:
        name = "last"
        needs_unconditional = False

        def __call__(self, scored: rl.Scored) -> rl.Decision:
            return rl.Decision(len(scored.choices) - 1, tuple(0.0 for _ in scored.choices))

    state = choose(FakeBackend(), "?", ["a", "b", "c"], choices_method=Last())
    assert (state["x"], state.meta("x")["choices_method"]) == ("c", "last")


def test_gen_with_choices_is_select() -> None:
    backend = FakeBackend()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "?" + rl.gen("x", choices=["a", "b"], choices_method=rl.greedy_token_selection, temperature=0)

    assert program.run(backend=backend).meta("x")["choices_method"] == "greedy_token_selection"
    assert backend.of_kind("gen") == []


def test_a_prefix_of_another_choice() -> None:
    """What "a" leaves to "ab" counts: by the mean, "ab" wins only if its second token is likelier than "a" itself."""
    for second, expected in ((-0.5, "ab cd"), (-3.0, "ab")):
        backend = FakeBackend(likelihood=lambda before, token: -1.0 if token == "ab" else second)  # noqa: B023
        assert choose(backend, "", ["ab", "ab cd"])["x"] == expected
