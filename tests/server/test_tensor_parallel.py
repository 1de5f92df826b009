"""A server of two ranks on the embedded model: one rank's tokens, and an end that is told."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.runtime.tensor_parallel.ranks import rank_processes, wait_gone
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.long]

FLAGS = ("--dtype", "float32", "--kernels", "torch", "--threads", "1")
BEGINNINGS = [
    f"{beginning} {thing}"
    for beginning in ("The story begins with", "A long time ago,", "My report is about", "Nobody knows", "Dear reader:")
    for thing in ("the river", "an old bridge", "some bread", "the colour blue")
]


async def answers(server: ServerProcess) -> list[Any]:
    """Token ids of the greedy continuation of each, all asked for at once."""
    async with server.client() as client:
        bodies = [
            {
                "text": beginning,
                "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
                "return_logprob": True,
            }
            for beginning in BEGINNINGS
        ]
        replies = await asyncio.gather(*(client.post("/generate", json=body) for body in bodies))
    assert [reply.status_code for reply in replies] == [200] * len(replies), replies[0].text
    return [[token for _, token, _ in reply.json()["meta_info"]["output_token_logprobs"]] for reply in replies]


async def test_twenty_prompts_get_the_tokens_of_one_rank() -> None:
    with ServerProcess(*FLAGS) as server:
        expected = await answers(server)
        server.stop()
    assert len(expected) == 20 and all(len(tokens) == 24 for tokens in expected)
    with ServerProcess(*FLAGS, "--tp", "2") as server:
        assert await answers(server) == expected
        # Now from the cache.
        assert await answers(server) == expected
        async with server.client() as client:
            information = (await client.get("/get_server_info")).json()
        assert information["runner"]["tensor_parallel_size"] == 2
        [engine] = server.children()
        ranks = rank_processes(engine)
        assert len(ranks) == 1
        assert server.stop() == 0
        wait_gone(ranks)


async def test_a_server_whose_rank_is_killed_ends_and_says_why() -> None:
    with ServerProcess(*FLAGS, "--tp", "2") as server:
        [engine] = server.children()
        [rank] = rank_processes(engine)
        os.kill(rank, signal.SIGKILL)
        assert server.wait() != 0
        assert "rank 1 was killed by SIGKILL" in server.log
