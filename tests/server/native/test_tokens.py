from __future__ import annotations

from typing import Any

import pytest

from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_text_is_taken_apart() -> None:
    async with serve() as server:
        plain = (await server.post("/tokenize", {"prompt": "hé"})).json()
        named = (await server.post("/tokenize", {"prompt": "a </s>", "return_token_strs": True})).json()
        empty = (await server.post("/tokenize", {"prompt": ""})).json()
    assert plain == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 512}
    assert named["tokens"] == [97, 32, 257] and named["token_strs"] == ["a", "Ġ", "</s>"]
    assert empty["tokens"] == [] and empty["count"] == 0


async def test_parts_are_taken_apart_as_one_text_whose_data_names_no_special_token() -> None:
    parts = [{"text": "<|im_start|>a"}, {"text": "</s>é", "data": True}, {"text": "</s"}, {"text": ">"}]
    async with serve() as server:
        body = (await server.post("/tokenize", {"parts": parts, "add_special_tokens": False})).json()
        none = (await server.post("/tokenize", {"parts": []})).json()
    assert body["tokens"] == [258, *b"a</s>\xc3\xa9", 257]
    assert none["tokens"] == []


async def test_a_conversation_is_taken_apart_as_the_model_reads_it() -> None:
    async with serve() as server:
        tokens = (await server.post("/tokenize", {"messages": HI})).json()["tokens"]
        rendered = (await server.post("/apply_template", {"messages": HI})).json()
        bare = (await server.post("/apply_template", {"messages": HI, "add_generation_prompt": False})).json()
        text = (await server.post("/detokenize", {"tokens": tokens})).json()
    assert rendered == {
        "prompt": PROMPT,
        "token_ids": tokens,
        "count": len(tokens),
        "reused_output_tokens": 0,
    }
    assert bare["prompt"] == PROMPT.removesuffix("<|im_start|>assistant\n")
    assert text == {"prompt": PROMPT, "text": PROMPT}


async def test_a_final_message_can_be_left_open() -> None:
    messages = [*HI, {"role": "assistant", "content": "I thi"}]
    async with serve() as server:
        body = (await server.post("/apply_template", {"messages": messages, "continue_final_message": True})).json()
    assert body["prompt"].endswith("<|im_start|>assistant\nI thi")


async def test_special_tokens_can_be_left_out_of_a_text() -> None:
    async with serve() as server:
        body = (await server.post("/detokenize", {"tokens": [256, 104, 105, 257], "skip_special_tokens": True})).json()
        assert (await server.post("/detokenize", {"tokens": []})).json()["text"] == ""
    assert body["text"] == "hi"


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "invalid_type"),
        ("/tokenize", {"prompt": "a", "parts": []}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"parts": ["a"]}, "parts[0]", "invalid_type"),
        ("/tokenize", {"parts": [{"data": True}]}, "parts[0].text", "missing_required_parameter"),
        ("/tokenize", {"parts": [], "tools": []}, "tools", "invalid_value"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens", "invalid_type"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", "invalid_value"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools", "invalid_value"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens", "invalid_value"),
        ("/tokenize", {"messages": []}, "messages", "invalid_type"),
        ("/tokenize", {"messages": [1]}, "messages[0]", "invalid_type"),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, "chat_template", "unsupported_feature"),
        ("/tokenize", {"prompt": "a", "cache_salt": ""}, "cache_salt", "invalid_value"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": [264]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "invalid_type"),
        ("/detokenize", {"tokens": [10**40]}, "tokens", "invalid_value"),
        ("/apply_template", {}, "messages", "missing_required_parameter"),
        ("/apply_template", {"messages": "hi"}, "messages", "invalid_type"),
        (
            "/apply_template",
            {"messages": HI, "chat_template_kwargs": {"messages": 1}},
            "chat_template_kwargs.messages",
            None,
        ),
        (
            "/apply_template",
            {"messages": HI, "continue_final_message": True},
            "continue_final_message",
            "invalid_value",
        ),
        (
            "/apply_template",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            "invalid_value",
        ),
        ("/apply_template", {"messages": HI, "tools": [{"type": "web"}]}, "tools[0].type", None),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False, "continues": False}, "continues", None),
        ("/tokenize", {"parts": [{"text": "a"}], "continues": False}, "continues", None),
    ],
)
async def test_what_is_wrong_is_refused_by_name(path: str, body: dict[str, Any], param: str, code: str | None) -> None:
    async with serve() as server:
        response = await server.post(path, body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param, error
    assert code is None or error["code"] == code


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply_template"])
async def test_an_unknown_model_is_not_found(path: str) -> None:
    async with serve() as server:
        body = {"model": "other", "prompt": "a"} if path == "/tokenize" else {"model": "other"}
        body |= {"tokens": []} if path == "/detokenize" else {}  # type: ignore[dict-item]
        assert (await server.post(path, body)).status_code == 404
