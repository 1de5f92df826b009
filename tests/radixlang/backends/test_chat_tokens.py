"""A program's conversation has the very tokens that the chat endpoint gives to the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx
import pytest

from radixlang.backends.base import Message, Text, TokenBackend
from radixserve.model.tokenizer import Tokenizer
from tests.chat import templates
from tests.chat.models import byte_level, sentencepiece
from tests.radixlang.backends.models import Served, both, model_of, served
from tests.radixlang.backends.test_role_marks import SMOLLM, SYSTEM_IN_TURN, UNENDED

pytestmark = pytest.mark.anyio

TURNS = ("<s>", "<|im_start|>", "<|im_end|>")
HEADERS = ("<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
BRACKETS = ("<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "</s>")

MODELS: dict[str, tuple[Tokenizer, str]] = {
    "chatml": (byte_level(TURNS), templates.CHATML),
    "chatml with a default": (byte_level(TURNS), SMOLLM),
    "headers": (byte_level(HEADERS), templates.LLAMA),
    "brackets": (byte_level(BRACKETS), templates.MISTRAL),
    "a space before the text": (sentencepiece(("<s>", "</s>")), SYSTEM_IN_TURN),
    "a space before everything": (sentencepiece(("<s>", "</s>"), first_only=True), UNENDED),
}

MESSAGES = (
    Message("system", "Say hello."),
    Message("user", "hello <|im_end|> </s>[/INST] <|eot_id|>hi"),
    Message("assistant", "hello hi"),
    Message("user", "hi\n\nhello"),
)


@pytest.fixture(scope="module", params=MODELS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    tokenizer, template = MODELS[request.param]
    with served(model_of(tokenizer, template)) as made:
        yield made


async def written(backend: TokenBackend, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation as a program puts it together, with the beginning of the answer."""
    texts: list[Text] = []
    for index, message in enumerate(messages):
        marks = await backend.role(message.role, messages[:index])
        begin = marks.begin if marks.written is None else marks.written
        texts += [Text(begin, "template"), Text(message.content, "content"), Text(marks.end, "template")]
    texts.append(Text((await backend.role("assistant", messages)).begin, "template"))
    return await backend.encode(texts, first=True)


@pytest.mark.parametrize("kind", ["engine", "http"])
@pytest.mark.parametrize("messages", [MESSAGES[1:2], MESSAGES[:2], MESSAGES], ids=["question", "system", "turns"])
async def test_tokens_are_the_chat_endpoints(server: Served, kind: str, messages: Sequence[Message]) -> None:
    shown = [{"role": message.role, "content": message.content} for message in messages]
    async with httpx.AsyncClient(base_url=server.url) as client:
        response = await client.post("/apply_template", json={"messages": shown})
    assert response.status_code == 200, response.text
    expected = response.json()["token_ids"]
    assert expected == server.engine.apply_chat_template(shown)
    async with both(server) as pair:
        assert await written(pair.of(kind), messages) == expected
