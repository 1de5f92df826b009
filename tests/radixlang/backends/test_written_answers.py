"""An answer that a program writes itself begins as the template writes one, not as it asks the model for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import radixlang as rl
from radixserve import SamplingParams
from tests.chat import templates
from tests.chat.models import byte_level, sentencepiece
from tests.radixlang.backends.models import Served, model_of, served
from tests.radixlang.backends.test_role_marks import SYSTEM_IN_TURN

MODELS = {
    "reasoning": (byte_level(("<s>", "<|im_start|>", "<|im_end|>")), templates.THINKER),
    "a space": (sentencepiece(("<s>", "</s>")), SYSTEM_IN_TURN),
}


@pytest.fixture(scope="module", params=MODELS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(model_of(*MODELS[request.param])) as made:
        yield made


@rl.function
def example(s: rl.ProgramState) -> None:
    s += rl.user("One?")
    s += rl.assistant("Two.")
    s += rl.user("Three?")
    s += rl.assistant(rl.gen("answer", max_tokens=4, temperature=0, ignore_eos=True))


def test_examples_and_questions_have_the_chat_endpoints_tokens(server: Served) -> None:
    state = example.run(backend=rl.EngineBackend(server.engine))
    prompt = server.engine.apply_chat_template(state.messages()[:3])
    expected = server.engine.generate(prompt, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert state.meta("answer")["prompt_tokens"] == len(prompt)
    assert state.meta("answer")["token_ids"] == expected.token_ids
