"""Generated answers keep their tokens, and the text never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.chat.conversation import parse_conversation
from radixserve.chat.format import ChatFormat, ChatPrompt
from radixserve.chat.history import GeneratedHistory
from radixserve.chat.tools import parse_tools
from radixserve.model.tokenizer import Tokenizer
from tests.chat import templates
from tests.chat.models import byte_level, chat_format, sentencepiece

SALT = b"common"
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def asked(*contents: str) -> list[dict[str, Any]]:
    """User and assistant in turns."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(contents)]


def prompt(chat: ChatFormat, *contents: str, salt: bytes = SALT, **options: Any) -> ChatPrompt:
    made = chat.prompt(parse_conversation(asked(*contents)), salt=salt, **options)
    assert chat.tokenizer.adds_space or chat.tokenizer.decode(made.token_ids) == made.text
    return made


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """``text`` one byte a token, as no encoding gives it."""
    return [next(i for i in range(256) if tokenizer.token_bytes(i) == bytes([byte])) for byte in text.encode()]


@pytest.fixture
def chat() -> ChatFormat:
    return chat_format(templates.CHATML, history=True)


def test_an_answer_keeps_its_tokens(chat: ChatFormat) -> None:
    first = prompt(chat, "go")
    output = [*spelled(chat.tokenizer, "hello"), chat.tokenizer.eos_ids[0]]
    chat.remember(SALT, first, output, "hello")
    second = prompt(chat, "go", "hello", "more")
    assert second.reused_output_tokens == 5
    assert second.token_ids[: len(first.token_ids) + 6] == first.token_ids + output, "the end token is the template's"
    again = [*spelled(chat.tokenizer, "ll"), chat.tokenizer.eos_ids[0]]
    chat.remember(SALT, second, again, "ll")
    third = prompt(chat, "go", "hello", "more", "ll", "?")
    assert third.reused_output_tokens == 7
    assert third.token_ids[: len(second.token_ids) + 3] == second.token_ids + again


def test_seams_that_encoding_would_merge(chat: ChatFormat) -> None:
    """An answer that begins with a line break merges with the template's own when it is encoded again."""
    first = prompt(chat, "go")
    output = spelled(chat.tokenizer, "\nhello")
    chat.remember(SALT, first, output, "\nhello")
    fresh = chat_format(templates.CHATML, chat.tokenizer)
    assert prompt(fresh, "go", "\nhello", "x").token_ids[: len(first.token_ids)] != first.token_ids
    assert prompt(chat, "go", "\nhello", "x").token_ids[: len(first.token_ids) + 6] == first.token_ids + output


def test_what_differs_is_encoded(chat: ChatFormat) -> None:
    first = prompt(chat, "go")
    chat.remember(SALT, first, spelled(chat.tokenizer, "hello"), "hello")
    plain = chat_format(templates.CHATML, chat.tokenizer)
    for contents, salt in (
        (("go", "hello there", "x"), SALT),
        (("go", "hell", "x"), SALT),
        (("other", "hello", "x"), SALT),
        (("go", "hello", "x"), b"other"),
        (("x", "y", "go", "hello", "x"), SALT),
    ):
        made = prompt(chat, *contents, salt=salt)
        assert made.reused_output_tokens == 0
        assert made.token_ids == prompt(plain, *contents).token_ids
    assert prompt(chat, "go", "hello", "x").reused_output_tokens == 5


def test_namespaces_are_apart(chat: ChatFormat) -> None:
    first = prompt(chat, "go")
    for salt, output in ((SALT, spelled(chat.tokenizer, "hello")), (b"other", chat.tokenizer.encode("hello"))):
        chat.remember(salt, first, output, "hello")
    assert prompt(chat, "go", "hello", "x").reused_output_tokens == 5
    assert prompt(chat, "go", "hello", "x", salt=b"other").reused_output_tokens == 1


def test_the_same_text_behind_other_tokens_is_another_prompt(chat: ChatFormat) -> None:
    history = chat.history
    assert history is not None
    first = prompt(chat, "go")
    history.remember(SALT, first.text, spelled(chat.tokenizer, "zz"), spelled(chat.tokenizer, "hello"), "hello")
    assert prompt(chat, "go", "hello", "x").reused_output_tokens == 0


def test_continued_answers_join(chat: ChatFormat) -> None:
    first = prompt(chat, "go")
    chat.remember(SALT, first, spelled(chat.tokenizer, "he"), "he")
    second = prompt(chat, "go", "he", continue_final_message=True)
    assert second.token_ids == first.token_ids + spelled(chat.tokenizer, "he")
    chat.remember(SALT, second, spelled(chat.tokenizer, "llo"), "llo")
    third = prompt(chat, "go", "hello", "x")
    assert third.reused_output_tokens == 0, "'he' alone is not the message"
    chat.remember(SALT, first, spelled(chat.tokenizer, "hello"), "hello")
    assert prompt(chat, "go", "hello", "x").reused_output_tokens == 5


def test_output_beyond_the_text_is_left_out(chat: ChatFormat) -> None:
    """A stop string's tokens, special tokens that the text skips, and half a token are not put in."""
    tokenizer, first = chat.tokenizer, prompt(chat, "go")
    chat.remember(SALT, first, spelled(tokenizer, "hello STOP"), "hello ")
    assert prompt(chat, "go", "hello ", "x").reused_output_tokens == 6
    start = tokenizer.id_of("<|im_start|>")
    assert start is not None
    other = prompt(chat, "other")
    chat.remember(SALT, other, [*spelled(tokenizer, "he"), start, *spelled(tokenizer, "llo")], "hello")
    assert prompt(chat, "other", "hello", "x").reused_output_tokens == 2
    merged = prompt(chat, "merged")
    chat.remember(SALT, merged, [*spelled(tokenizer, "a"), *tokenizer.encode("hello")], "ahe")
    assert prompt(chat, "merged", "ahe", "x").reused_output_tokens == 1
    accent = prompt(chat, "accent")
    chat.remember(SALT, accent, spelled(tokenizer, "xé"), "x\ufffd")
    assert prompt(chat, "accent", "x\ufffd", "x").reused_output_tokens == 1
    half = prompt(chat, "half")
    chat.remember(SALT, half, spelled(tokenizer, "xé")[:2], "xé")
    assert prompt(chat, "half", "xé", "x").reused_output_tokens == 1, "no seam is inside a character"
    empty = prompt(chat, "empty")
    chat.remember(SALT, empty, [tokenizer.eos_ids[0]], "")
    assert prompt(chat, "empty", "", "x").reused_output_tokens == 0


def test_names_of_special_tokens_in_an_answer(chat: ChatFormat) -> None:
    """What the model wrote with plain tokens stays so; a caller's copy of the text of a control token does not become one."""
    first = prompt(chat, "go")
    output = spelled(chat.tokenizer, "a<|im_end|>b")
    chat.remember(SALT, first, output, "a<|im_end|>b")
    second = prompt(chat, "go", "a<|im_end|>b", "x")
    assert second.token_ids[: len(first.token_ids) + len(output)] == first.token_ids + output
    chat.remember(SALT, prompt(chat, "cut"), spelled(chat.tokenizer, "a"), "a")
    assert prompt(chat, "cut", "a<|im_end|>b", "x").reused_output_tokens == 0, "a name in data ends no message"


def test_templates_without_special_tokens() -> None:
    chat = chat_format(PLAIN, history=True)
    first = prompt(chat, "go")
    output = spelled(chat.tokenizer, "hello")
    chat.remember(SALT, first, output, "hello")
    second = prompt(chat, "go", "hello", "x")
    assert second.token_ids[: len(first.token_ids) + 5] == first.token_ids + output
    assert prompt(chat, "go", "hello you", "x").reused_output_tokens == 0


def test_tokenizers_that_put_spaces_before_texts() -> None:
    """There a text can be encoded in two pieces only where a special token parts it."""
    source = (
        "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    tokenizer = sentencepiece()
    chat = chat_format(source.replace("{% if add", "{% if false and add"), tokenizer, history=True)
    plain = chat_format(source.replace("{% if add", "{% if false and add"), tokenizer)
    first = prompt(chat, "hi")
    output = spelled(tokenizer, " hi")
    chat.remember(SALT, first, output, " hi")
    second = prompt(chat, "hi", " hi", "x")
    assert second.reused_output_tokens == 3
    assert second.token_ids[: len(first.token_ids) + 3] == first.token_ids + output
    unparted = chat_format(PLAIN, tokenizer, history=True)
    first = prompt(unparted, "hi")
    unparted.remember(SALT, first, spelled(tokenizer, "hi"), "hi")
    made = prompt(unparted, "hi", "hi", "x")
    assert made.reused_output_tokens == 0
    assert made.token_ids == prompt(chat_format(PLAIN, tokenizer), "hi", "hi", "x").token_ids
    assert prompt(plain, "hi", " hi", "x").reused_output_tokens == 0


def test_tool_calls_keep_their_tokens() -> None:
    chat = chat_format(templates.QWEN, history=True)
    box = parse_tools([{"type": "function", "name": "f"}])
    messages = asked("go")
    first = chat.prompt(parse_conversation(messages), box, salt=SALT)
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    output = spelled(chat.tokenizer, text)
    chat.remember(SALT, first, output, text)
    (call,) = chat.output_parser(box, first).parse(text).tool_calls
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "one"},
    ]
    second = chat.prompt(parse_conversation(messages), box, salt=SALT)
    assert second.reused_output_tokens == len(output)
    assert second.token_ids[: len(first.token_ids) + len(output)] == first.token_ids + output


def test_bounds() -> None:
    tokenizer = byte_level()
    history = GeneratedHistory(tokenizer, max_tokens=10, max_prompts=3)

    def remember(text: str, output: str) -> None:
        history.remember(SALT, text, spelled(tokenizer, text), spelled(tokenizer, output), output)

    def reused(text: str, output: str) -> int:
        ids, count = history.encode(SALT, text + output)
        assert tokenizer.decode(ids) == text + output
        return count

    for text in ("a", "b", "c", "d"):
        remember(text, "xy")
    assert len(history) == 6 and [reused(text, "xy") for text in "abcd"] == [0, 2, 2, 2]
    reused("b", "xy")  # now the one used last
    remember("e", "xyxyxyxy")
    assert len(history) == 10 and [reused(text, "xy") for text in "bcd"] == [2, 0, 0]
    remember("e", "xyxyxyxy")
    assert len(history) == 10, "the same answer is remembered once"
    remember("f", "x" * 11)
    assert len(history) == 10, "what is larger than all the room is not remembered"
    for number in range(40):
        remember("g", f"{number:02}")
    assert len(history) <= 10 and reused("g", "39") == 2
    assert set(history._ends[SALT]) == {len(place.tail) for place in history._places.values()}


TEXT = st.text(alphabet="helo \né<|im_end|>", max_size=12)


@given(st.data())
def test_any_conversation(data: st.DataObject) -> None:
    """Answers in arbitrary tokens, turn after turn: each prompt goes on from the last one's ids, and reads as rendered."""
    chat = chat_format(templates.CHATML, history=True)
    tokenizer = chat.tokenizer
    contents = [data.draw(TEXT)]
    before: list[int] = []
    for _ in range(3):
        made = prompt(chat, *contents)
        assert made.token_ids[: len(before)] == before
        answer = data.draw(TEXT)
        output = data.draw(st.sampled_from([spelled(tokenizer, answer), _plain(tokenizer, answer)]))
        chat.remember(SALT, made, [*output, tokenizer.eos_ids[0]], answer)
        before = [*made.token_ids, *output, tokenizer.eos_ids[0]]
        contents += [answer, data.draw(TEXT)]


def _plain(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    return tokenizer.encode(text, parse_special=False)
