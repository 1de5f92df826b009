"""Plays a log of prompts on a core: closed loop, so many at once, in the log's order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from radixserve.chat.format import ChatFormat, ChatPrompt
from radixserve.chat.history import GeneratedHistory
from radixserve.constraints import StructuralTag
from radixserve.errors import InvalidRequest
from radixserve.messages import FinishReason, GenerationOutput, SamplingParams
from radixserve.model.text import TextModel
from radixserve.planner.log import ChatBody, Log, LogCall
from radixserve.planner.trace import Answer, Intent, intended
from radixserve.planner.traced_core import TracedCore


class LogRun:
    """``concurrency``: how many calls are under way at once. ``history``: answers that come back in a conversation keep the tokens they
    were generated with, as our server has it.

    ``refused``: calls that the engine would not take, each with the reason.
    """

    def __init__(self, core: TracedCore, text: TextModel, log: Log, *, concurrency: int, history: bool = True) -> None:
        self.refused: list[str] = []
        self._core = core
        self._text = text
        self._calls = log.calls
        self._concurrency = concurrency
        self._chat = ChatFormat(
            text.chat_template, text.tokenizer, history=GeneratedHistory(text.tokenizer) if history else None
        )
        self._prompts: dict[int, ChatPrompt] = {}

    def run(self) -> None:
        """Play it to the end."""
        waiting = list(range(len(self._calls)))
        ended: set[int] = set()
        running: dict[str, int] = {}
        while waiting or running:
            for index in self._ready(waiting, ended, self._concurrency - len(running)):
                waiting.remove(index)
                try:
                    self._add(index, self._calls[index])
                except InvalidRequest as error:
                    self.refused.append(f"{self._calls[index].place}: {error}")
                    ended.add(index)
                else:
                    running[_rid(index)] = index
            for chunk in self._core.step():
                if chunk.output is not None:
                    index = running.pop(chunk.rid)
                    ended.add(index)
                    self._remember(index, chunk.output)

    def _ready(self, waiting: Sequence[int], ended: set[int], room: int) -> list[int]:
        ready: list[int] = []
        for index in waiting:
            if len(ready) == room:
                break
            needs = self._calls[index].needs
            if needs is None or needs in ended:
                ready.append(index)
        return ready

    def _add(self, index: int, call: LogCall) -> None:
        if isinstance(call.prompt, ChatBody):
            prompt, sampling = self._rendered(index, call, call.prompt)
        else:
            prompt, sampling = call.prompt, call.sampling
        with intended(Intent("gen", call.place, self._answers(call))):
            self._core.add(_rid(index), prompt, sampling, priority=call.priority, salt=call.salt)

    def _rendered(self, index: int, call: LogCall, chat: ChatBody) -> tuple[list[int], SamplingParams]:
        """The tokens of a conversation and the parameters of its answer, as the server makes them."""
        sampling, toolbox = call.sampling, chat.toolbox
        constraint = sampling.constraint
        free = constraint is None
        if toolbox.active and not isinstance(constraint, StructuralTag):
            # What the log says of the output goes before what it must look like.
            constraint = self._chat.constraint(toolbox, constraint) if call.output is None else None
            free = free and not toolbox.forced
        prompt = self._chat.prompt(
            chat.conversation,
            toolbox,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            template_options=chat.template_options,
            close_reasoning=not free,
            salt=call.salt,
        )
        self._prompts[index] = prompt
        changes = {"constraint": constraint, "skip_special_tokens": self._chat.skip_special_tokens(toolbox)}
        return prompt.token_ids, msgspec.structs.replace(sampling, **changes)

    def _answers(self, call: LogCall) -> tuple[Answer, ...] | None:
        if call.output is None:
            return None
        encode = self._text.tokenizer.encode_continuation
        return tuple(Answer(tuple(encode(one) if isinstance(one, str) else one)) for one in call.output)

    def _remember(self, index: int, output: GenerationOutput) -> None:
        prompt = self._prompts.pop(index, None)
        if prompt is None:
            return
        for sample in output.all_samples:
            if sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self._chat.remember(self._calls[index].salt, prompt, sample.token_ids, sample.text)


def _rid(index: int) -> str:
    return f"log-{index}"
