"""A program's own engine, on the embedded model."""

from __future__ import annotations

import pytest

import radixlang as rl
from radixlang.backends.base import Text

pytestmark = pytest.mark.anyio


async def test_a_runtime_makes_an_engine_and_closes_it() -> None:
    with rl.Runtime("smollm2", kv_memory_mb=64) as runtime:
        info = await runtime.info()
        assert (info["model"], info["has_chat_template"]) == ("smollm2", True)
        assert runtime.engine.info.model == "smollm2"
        state = await hello.arun(backend=runtime)
        ids = await runtime.encode([Text("hello", "free")], first=True)
        prompt = runtime.engine.apply_chat_template([{"role": "user", "content": "Say hello."}])
        assert state.meta("answer")["prompt_tokens"] == len(prompt)
    with pytest.raises(rl.BackendClosed):
        await runtime.score(ids, [[1]])
    await runtime.aclose()
    runtime.shutdown()


def test_what_is_no_option_is_refused_by_name() -> None:
    from radixserve.errors import ConfigError

    with pytest.raises(ConfigError, match=r"^lora: unknown option"):
        rl.Runtime("smollm2", lora=1)


@rl.function
async def hello(s: rl.ProgramState) -> None:
    s += rl.user("Say hello.")
    s += rl.assistant(rl.gen("answer", max_tokens=4))
