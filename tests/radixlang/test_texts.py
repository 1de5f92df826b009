"""Programs on a backend that takes texts and messages: the same programs, and by name what it cannot do."""

from __future__ import annotations

import pytest

import radixlang as rl
from radixlang import ProgramState
from radixlang.backends.base import Message, Text
from radixlang.texts import content_of, merged
from tests.radixlang.text_backend import EchoTexts


def test_completions() -> None:
    backend = EchoTexts()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "one" + rl.gen("x") + " two"
        with s.fork(2) as forks:
            forks += [" a", " b"]
            forks += rl.gen("y")
        s += rl.gen("z", n=2)
        assert "".join(s.stream("x")) == " one!"

    state = program.run(backend=backend)
    assert (state["x"], state["y"], state["z"]) == (" one!", [" a!", " b!"], [" two!"] * 2)
    assert state.text() == "one one! two two!"
    assert set(backend.prompts) == {"one", "one one! two", "one one! two a", "one one! two b"}
    assert state.meta("x")["completion_tokens"] == 5
    assert state.report().total.prompt == len("".join(["one", "one one! two", "one one! two a", "one one! two b"]))
    assert state.report().total.needed is None


def test_concatenation() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += "one"
        forks = s.fork(2)
        forks += [" a", " b"]
        forks += rl.gen("y")
        forks.join("concatenate")
        s += rl.gen("z")

    assert program.run(backend=EchoTexts()).text() == "one a a! b b! b!!"


def test_conversations() -> None:
    backend = EchoTexts()

    @rl.function
    def program(s: ProgramState) -> None:
        s += rl.system("S") + rl.user("hello")
        s += rl.assistant(rl.gen("x"))
        s += rl.user("bye") + rl.assistant(rl.gen("y") + " And more.")

    state = program.run(backend=backend)
    assert (state["x"], state["y"]) == (" hello!", " bye!")
    assert backend.conversations[1] == (
        Message("system", "S"),
        Message("user", "hello"),
        Message("assistant", " hello!"),
        Message("user", "bye"),
    )
    assert state.messages()[-1] == {"role": "assistant", "content": " bye! And more."}
    assert state.text() == "SYSTEM: S\nUSER: hello\nASSISTANT:  hello!\nUSER: bye\nASSISTANT:  bye! And more.\n"


def test_select() -> None:
    backend = EchoTexts()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "one" + rl.select("x", ["a", "bb"])
        s += rl.select("y", ["c", "dd"], choices_method=rl.unconditional_likelihood_normalized)

    state = program.run(backend=backend)
    assert state.text() == "onebbdd"
    assert state.meta("x")["scores"] == {"a": -1.0, "bb": -0.5}
    assert state.meta("y")["scores"] == {"c": 0.0, "dd": 0.5}
    assert backend.prompts == ["one", "onebb", ""]


@pytest.mark.parametrize(
    ("expr", "primitive"),
    [
        (rl.user("a") + rl.gen("x"), "gen outside of messages"),
        ("text" + rl.user("a") + rl.assistant(rl.gen("x")), "text outside of messages"),
        (rl.user(rl.gen("x")), "gen in a message of user"),
        (rl.user("a") + rl.assistant("I" + rl.gen("x")), "gen after the beginning of a message"),
        (rl.user("a") + rl.assistant(rl.select("x", ["a"])), "select in a conversation"),
    ],
)
def test_what_it_cannot_do_is_told_by_name(expr: rl.Expr, primitive: str) -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += expr

    backend = EchoTexts()
    with pytest.raises(rl.ProgramError, match="not possible on texts") as caught:
        program.run(backend=backend)
    assert isinstance(caught.value.__cause__, rl.Unsupported)
    assert caught.value.__cause__.primitive == primitive
    assert backend.prompts == []
    assert backend.conversations == []


def test_pieces_merge_within_their_kind() -> None:
    pieces = [Text("a", "free"), Text("b", "free"), Text("c", "template"), Text("d", "content"), Text("e", "content")]
    assert merged(pieces) == (Text("ab", "free"), Text("c", "template"), Text("de", "content"))
    assert content_of(pieces) == "abde"
    assert merged([]) == ()
