from __future__ import annotations

from typing import Any

import pytest

from radixserve.chat.format import ChatFormat
from radixserve.model.chat_template import ChatTemplate
from radixserve.server.openai.responses_items import parse_items
from radixserve.server.openai.responses_store import ResponseStore, StoredResponse
from tests.chat.templates import QWEN
from tests.server.fake_client import Script
from tests.server.harness import error_of, serve
from tests.server.openai.responses_client import PATH, WEATHER, both, call_text, create, let_reason, stream, wide

pytestmark = pytest.mark.anyio
MINE = {"Authorization": "Bearer mine"}
YOURS = {"Authorization": "Bearer yours"}


def response(name: str, texts: list[str], body: bytes = b"{}") -> StoredResponse:
    items = parse_items([{"role": "user", "content": text, "id": f"msg_{text}"} for text in texts])
    return StoredResponse(name, body, tuple(items), ())


# ---------------------------------------------------------------- the store


def test_the_one_that_was_not_used_for_longest_goes_first() -> None:
    store = ResponseStore(2)
    for name in ("a", "b"):
        store.put(b"s", response(name, [name]))
    assert store.get(b"s", "a") is not None
    store.put(b"s", response("c", ["c"]))
    assert len(store) == 2 and store.get(b"s", "b") is None and store.get(b"s", "a") is not None
    assert store.item(b"s", "msg_b") is None and store.item(b"s", "msg_c") is not None


def test_namespaces_know_nothing_of_each_other() -> None:
    store = ResponseStore(2)
    store.put(b"s", response("a", ["a"]))
    assert store.get(b"t", "a") is None and store.item(b"t", "msg_a") is None and not store.delete(b"t", "a")
    assert store.get(b"s", "a") is not None


def test_bytes_are_bounded() -> None:
    one = response("a", ["a" * 1000])
    store = ResponseStore(100, max_bytes=one.size * 2)
    for name in "abc":
        store.put(b"s", response(name, [name * 1000]))
    assert [store.get(b"s", name) is not None for name in "abc"] == [False, True, True]
    store.put(b"s", response("d", ["d" * 5000]))
    assert len(store) == 2, "what is larger than the store is not kept, and costs nobody else"


def test_an_item_stays_as_long_as_any_response_holds_it() -> None:
    store = ResponseStore(5)
    first = response("a", ["a"])
    store.put(b"s", first)
    store.put(b"s", StoredResponse("b", b"{}", (*first.input, *first.input), ()))
    assert store.delete(b"s", "a") and store.item(b"s", "msg_a") is not None
    assert store.delete(b"s", "b") and store.item(b"s", "msg_a") is None
    assert not store.delete(b"s", "b") and len(store) == 0


def test_a_store_of_no_size_keeps_nothing() -> None:
    store = ResponseStore(0)
    store.put(b"s", response("a", ["a"]))
    assert not store.enabled and len(store) == 0


# ---------------------------------------------------------------- going on from a response


async def test_a_response_is_gone_on_from_in_its_own_tokens() -> None:
    async with serve(Script(("Hello",))) as server:
        first = await create(server, {"input": "Hi", "instructions": "Be nice."})
        second = await both(server, {"input": "More", "previous_response_id": first["id"]})
        third = await create(server, {"input": "Yet more", "previous_response_id": second["id"]})
        prompts = [bytes(token for token in job.token_ids if token < 256).decode() for job in server.engine.jobs]
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    assert "Be nice." in prompts[0] and "Be nice." not in prompts[1], "instructions are not inherited"
    assert prompts[1] == prompts[2] == "user\nHi\nassistant\nHello\nuser\nMore\nassistant\n"
    assert prompts[3] == prompts[1] + "Hello\nuser\nYet more\nassistant\n"
    assert third["usage"]["reused_output_tokens"] == 5


async def test_the_same_instructions_keep_the_tokens_of_all_turns() -> None:
    async with serve(Script(("Hello",))) as server:
        body: dict[str, Any] = {"input": "Hi", "instructions": "Be nice."}
        reused = []
        for _ in range(3):
            answer = await create(server, body)
            reused.append(answer["usage"]["reused_output_tokens"])
            body["previous_response_id"] = answer["id"]
    assert reused == [0, 5, 10]


async def test_calls_of_a_response_are_answered_in_the_next() -> None:
    text = "Let me see.\n" + call_text('{"city":"Rome"}')
    async with serve(engine=wide(Script([text]))) as server:
        first = await create(server, {"input": "Hi", "tools": [WEATHER]})
        call_id = first["output"][1]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
        body = {"input": [result], "tools": [WEATHER]}
        second = await create(server, {**body, "previous_response_id": first["id"]})
        echoed = {**body, "input": [{"role": "user", "content": "Hi"}, *first["output"], result]}
        await create(server, echoed)
        prompts = [job.token_ids for job in server.engine.jobs]
        lost = error_of(await server.post(PATH, body))
    assert prompts[1] == prompts[2], "what is kept and what is sent back make the same prompt"
    assert b"sunny" in bytes(token for token in prompts[1] if token < 256)
    assert second["usage"]["reused_output_tokens"] > 0
    assert lost["param"] == "input[0].call_id"


async def test_reasoning_is_kept_and_taken_back() -> None:
    async with serve(Script(("Hm.\n</think>\n\nYes.",))) as server:
        let_reason(server)
        first = await create(server, {"input": "Hi"})
        await create(server, {"input": "More", "previous_response_id": first["id"]})
        await create(
            server,
            {"input": [{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "More"}]},
        )
        assert server.engine.jobs[1].token_ids == server.engine.jobs[2].token_ids


async def test_arguments_that_a_template_cannot_take_are_named() -> None:
    text = call_text('{"city":"Rome"}')
    async with serve(engine=wide(Script([text]))) as server:
        server.service.chat = ChatFormat(ChatTemplate(QWEN), server.service.text.tokenizer)
        call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city'}
        items = [
            {"role": "user", "content": "Hi"},
            call,
            {"type": "function_call_output", "call_id": "c", "output": ""},
        ]
        error = error_of(await server.post(PATH, {"input": items, "tools": [WEATHER]}))
    assert (error["param"], error["code"]) == ("input[1].arguments", "invalid_json")


async def test_item_references_are_resolved() -> None:
    async with serve(Script(("Hello",))) as server:
        first = await create(server, {"input": "Hi"})
        body = {"input": [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "a"}]}
        await create(server, body)
        prompt = bytes(token for token in server.engine.jobs[1].token_ids if token < 256)
        missing = await server.post(PATH, {"input": [{"type": "item_reference", "id": "msg_no"}]})
    assert prompt == b"assistant\nHello\nuser\na\nassistant\n"
    assert missing.status_code == 404 and error_of(missing)["param"] == "input[0].id"


async def test_without_input_a_response_is_gone_on_from_as_it_is() -> None:
    async with serve() as server:
        first = await create(server, {"input": "Hi"})
        assert (await create(server, {"previous_response_id": first["id"]}))["status"] == "completed"


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_not_kept_cannot_be_gone_on_from(streamed: bool) -> None:
    async with serve() as server:
        first = await create(server, {"input": "Hi", "store": False})
        assert first["store"] is False and len(server.service.responses) == 0
        for name in (first["id"], "resp_no", ""):
            body = {"input": "a", "previous_response_id": name, "stream": streamed}
            refused = await server.post(PATH, body)
            assert refused.status_code == 404
            assert error_of(refused)["param"] == "previous_response_id"


async def test_a_server_may_keep_nothing() -> None:
    async with serve(stored_responses=0) as server:
        assert (await create(server, {"input": "Hi"}))["store"] is False
        error = error_of(await server.post(PATH, {"input": "Hi", "store": True}))
    assert (error["param"], error["code"]) == ("store", "unsupported_feature")


async def test_the_bound_is_the_operators() -> None:
    async with serve(stored_responses=2) as server:
        names = [(await create(server, {"input": "Hi"}))["id"] for _ in range(3)]
        found = [(await server.client.get(f"{PATH}/{name}")).status_code for name in names]
    assert found == [404, 200, 200]


async def test_namespaces_are_kept_apart() -> None:
    async with serve(api_key=("mine", "yours")) as server:
        made = (await server.post(PATH, {"input": "Hi"}, headers=MINE)).json()
        body = {"input": "a", "previous_response_id": made["id"]}
        assert (await server.post(PATH, body, headers=MINE)).status_code == 200
        assert (await server.post(PATH, body, headers=YOURS)).status_code == 404
        assert (await server.post(PATH, {**body, "cache_salt": "s"}, headers=MINE)).status_code == 404
        reference = {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]}
        assert (await server.post(PATH, reference, headers=YOURS)).status_code == 404
        url = f"{PATH}/{made['id']}"
        for path in (url, f"{url}/input_items"):
            assert (await server.client.get(path, headers=YOURS)).status_code == 404
            assert (await server.client.get(path, headers=MINE)).status_code == 200
        assert (await server.client.delete(url, headers=YOURS)).status_code == 404
        assert (await server.post(f"{url}/cancel", headers=YOURS)).status_code == 404
        salted = (await server.post(PATH, {"input": "Hi", "cache_salt": "s"}, headers=MINE)).json()
        url = f"{PATH}/{salted['id']}"
        assert (await server.client.get(url, headers=MINE)).status_code == 404
        assert (await server.client.get(url, headers=MINE, params={"cache_salt": "s"})).status_code == 200


# ---------------------------------------------------------------- looking at what is kept


async def test_a_response_is_shown_as_it_ended() -> None:
    async with serve() as server:
        made = await create(server, {"input": "Hi"})
        last = (await stream(server, {"input": "Hi"}))[-1]["response"]
        for whole in (made, last):
            assert (await server.client.get(f"{PATH}/{whole['id']}")).json() == whole
        assert (await server.client.get(f"{PATH}/{made['id']}", params={"stream": "false"})).status_code == 200
        refused = await server.client.get(f"{PATH}/{made['id']}", params={"stream": "true"})
        assert error_of(refused)["param"] == "stream"
        unknown = await server.client.get(f"{PATH}/{made['id']}", params={"colour": "red"})
        assert unknown.status_code == 400 and error_of(unknown)["param"] == "colour"


async def test_a_response_is_forgotten_when_asked() -> None:
    async with serve() as server:
        made = await create(server, {"input": "Hi"})
        url = f"{PATH}/{made['id']}"
        assert (await server.client.delete(url)).json() == {"id": made["id"], "object": "response", "deleted": True}
        for again in (await server.client.delete(url), await server.client.get(url)):
            assert again.status_code == 404 and error_of(again)["type"] == "not_found_error"


async def test_what_a_response_was_made_from_is_listed() -> None:
    async with serve(Script(("Hello",))) as server:
        first = await create(server, {"input": "one", "instructions": "Be nice."})
        second = await create(server, {"input": "two", "previous_response_id": first["id"]})
        url = f"{PATH}/{second['id']}/input_items"

        async def page(**query: Any) -> tuple[list[str], dict[str, Any]]:
            found = (await server.client.get(url, params=query)).json()
            assert found["object"] == "list"
            ids = [item["id"] for item in found["data"]]
            assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
            return [item["content"][0]["text"] for item in found["data"]], found

        assert (await page(order="asc"))[0] == ["one", "Hello", "two"]
        texts, found = await page(limit=2)
        assert texts == ["two", "Hello"] and found["has_more"]
        texts, found = await page(limit=2, after=found["last_id"])
        assert texts == ["one"] and not found["has_more"]
        assert await page(after=found["last_id"]) == ([], {**found, "data": [], "first_id": None, "last_id": None})
        for query in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "no"}):
            refused = await server.client.get(url, params=query)
            assert refused.status_code in (400, 404) and error_of(refused)["param"] == next(iter(query))


async def test_only_work_in_the_background_could_be_cancelled() -> None:
    async with serve() as server:
        made = await create(server, {"input": "Hi"})
        refused = await server.post(f"{PATH}/{made['id']}/cancel")
        assert refused.status_code == 400 and "background" in error_of(refused)["message"]
        assert (await server.post(f"{PATH}/resp_no/cancel")).status_code == 404
