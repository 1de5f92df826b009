from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from radixserve.cli import chat
from radixserve.messages import SamplingParams
from tests.cli.conftest import CommandLine

Make = Callable[..., CommandLine]


def test_turns_build_on_one_another(command_line: Make) -> None:
    ran = command_line()("chat", "--system", "s", "--top-k", "4", stdin="hello you\nand now\n")
    assert ran.code == 0, ran.err
    assert "hello~ you~ \n" in ran.out
    assert ran.engine is not None
    (_, first), (messages, second) = ran.engine.chats
    assert first == second == SamplingParams(temperature=0.5, top_k=4)
    assert messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hello you"},
        {"role": "assistant", "content": "hello~ you~ "},
        {"role": "user", "content": "and now"},
    ]
    assert "(3 cached), 2 new, 2.0 tokens/s" in ran.err
    assert ran.engine.closed


def test_slash_commands(command_line: Make) -> None:
    ran = command_line()("chat", stdin="/explain\nhi\n/explain\n/stats\n/reset\nagain\n/nothing\n/quit\nnever\n")
    assert ran.code == 0
    assert "nothing was asked yet" in ran.err
    assert "0 of 1 prompt tokens were cached; diverged at token 0 ('x'): something else was there" in ran.err
    assert "blocks.free" in ran.err
    assert "0.5123" in ran.err
    assert "unknown command /nothing" in ran.err
    assert ran.engine is not None
    assert [messages[0]["content"] for messages, _ in ran.engine.chats] == ["hi", "again"]


def test_ctrl_c_ends_the_answer_and_not_the_chat(command_line: Make) -> None:
    ran = command_line(interrupt_after=2)("chat", stdin="a b c d e\nx\n")
    assert (ran.code, ran.exception) == (0, None)
    assert ran.engine is not None
    assert ran.engine.aborted == ["c1"]
    assert "ended by abort" in ran.err
    messages, _ = ran.engine.chats[1]
    assert messages[1] == {"role": "assistant", "content": "a~ b~ c~ "}


def test_ctrl_c_at_the_prompt_ends_nothing(command_line: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[str | BaseException] = iter([KeyboardInterrupt(), "hi", EOFError()])

    def read(prompt: str) -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", read)
    ran = command_line()("chat")
    assert ran.code == 0
    assert "Ctrl-D or /quit ends the chat" in ran.err
    assert ran.engine is not None
    assert len(ran.engine.chats) == 1


def test_a_refused_or_failed_turn_leaves_no_trace(command_line: Make) -> None:
    ran = command_line(context=3)("chat", stdin="a b c d\nok\n")
    assert ran.code == 0
    assert "error: prompt: this model's maximum context length is 3 tokens" in ran.err
    assert ran.engine is not None
    assert ran.engine.chats[0][0] == [{"role": "user", "content": "ok"}]
    ran = command_line(error="no luck")("chat", stdin="a\nb\n")
    assert ran.err.count("error: no luck") == 2
    assert ran.engine is not None
    assert [len(messages) for messages, _ in ran.engine.chats] == [1, 1]


def test_a_chat_takes_one_sample(command_line: Make) -> None:
    ran = command_line()("chat", "--n", "2")
    assert ran.code == 2
    assert "n: a chat has one answer a turn" in ran.err
    assert chat.PROMPT not in ran.out
