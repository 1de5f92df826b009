"""`ChatFormat`: one model's way to be talked with, from messages and tools to token ids and from text to messages."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixserve.chat import reasoning
from radixserve.chat.call_parser import CallParser
from radixserve.chat.conversation import Conversation
from radixserve.chat.history import GeneratedHistory
from radixserve.chat.output import ContentStops, OutputParser
from radixserve.chat.prompt import RenderedText, render_prompt
from radixserve.chat.reasoning import ReasoningSplitter, opens_reasoning
from radixserve.chat.special_names import SpecialNames
from radixserve.chat.template_traits import TemplateTraits, find_traits
from radixserve.chat.tools import Toolbox
from radixserve.constraints import StructuralTag, TagContent
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.tokenizer import Tokenizer

NO_TOOLS = Toolbox()

_TAG = re.compile(r"constraint\.tags\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model reads it.

    ``reused_output_tokens``: how many of ``token_ids`` are remembered ones (see `history`). ``opens_reasoning``: the
    output goes on inside a block of reasoning.
    """

    text: str
    token_ids: list[int]
    reused_output_tokens: int = 0
    opens_reasoning: bool = False


class ChatFormat:
    """Made once from a model's template (None if it has none) and tokenizer; safe to share between threads.

    ``history``: what this server generated, so that it keeps its tokens; None encodes every text anew. ``split_reasoning``:
    whether outputs are looked through for reasoning; None asks the template.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        *,
        history: GeneratedHistory | None = None,
        split_reasoning: bool | None = None,
    ) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.history = history
        traits = None if template is None else find_traits(template, tokenizer)
        if traits is not None and split_reasoning is not None:
            traits = dataclasses.replace(traits, reasoning=split_reasoning)
        self._traits = traits

    @property
    def traits(self) -> TemplateTraits:
        """What the template can show. Raises `InvalidRequest` where there is no template."""
        if self._traits is None:
            raise InvalidRequest("messages", "this model has no chat template", "no_chat_template")
        return self._traits

    def render(
        self,
        conversation: Conversation,
        toolbox: Toolbox = NO_TOOLS,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_options: Mapping[str, Any] | None = None,
        close_reasoning: bool = False,
    ) -> RenderedText:
        """The text of a prompt, as `prompt` makes it."""
        traits = self.traits
        assert self.template is not None, "there are traits of it"
        rendered = render_prompt(
            self.template,
            traits,
            self.tokenizer,
            conversation,
            toolbox,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_options=template_options,
        )
        if (close_reasoning or toolbox.forced) and opens_reasoning(rendered.text):
            # What is enforced from the first token on leaves no room to think.
            line = "" if rendered.text.endswith("\n") else "\n"
            return RenderedText(f"{rendered.text}{line}\n{reasoning.CLOSE}\n\n", rendered.data)
        return rendered

    def prompt(
        self,
        conversation: Conversation,
        toolbox: Toolbox = NO_TOOLS,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_options: Mapping[str, Any] | None = None,
        close_reasoning: bool = False,
        salt: bytes = b"",
        check_least: Callable[[int], None] | None = None,
    ) -> ChatPrompt:
        """The prompt of a conversation with tools, ready for the model's answer.

        ``continue_final_message``: the model goes on with the assistant's last message instead of a new one.
        ``template_options``: the caller's variables for the template (``chat_template_kwargs``). ``close_reasoning``: a
        block of reasoning that the template opens is closed at once, as it is where calls are forced: for outputs that
        are constrained from their first token on. ``salt``: the namespace in which generated tokens are looked up.
        ``check_least`` is told how many tokens it will be at least, before they are made, and raises where that is too much.

        Raises `InvalidRequest` for what the template refuses.
        """
        rendered = self.render(
            conversation,
            toolbox,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_options=template_options,
            close_reasoning=close_reasoning,
        )
        if check_least is not None:
            check_least(self.tokenizer.least_tokens(rendered.text))
        if self.history is None:
            ids, reused = self.tokenizer.encode_with_data(rendered.text, rendered.data), 0
        else:
            answers = {message.content for message in conversation if message.role == "assistant" and message.content}
            ids, reused = self.history.encode(salt, rendered.text, rendered.data, answers)
        return ChatPrompt(rendered.text, ids, reused, opens_reasoning(rendered.text))

    def prompt_of(self, token_ids: Sequence[int]) -> ChatPrompt:
        """The prompt that ``token_ids`` are."""
        text = self.tokenizer.decode(token_ids)
        return ChatPrompt(text, list(token_ids), opens_reasoning=opens_reasoning(text))

    def remember(self, salt: bytes, prompt: ChatPrompt, output_ids: Sequence[int], output_text: str) -> None:
        """``output_ids`` were generated for ``prompt`` and gave ``output_text``; nothing is kept without a history."""
        if self.history is not None:
            self.history.remember(salt, prompt.text, prompt.token_ids, output_ids, output_text)

    def constraint(self, toolbox: Toolbox, otherwise: TagContent | None = None) -> StructuralTag | None:
        """What the output must look like because of its tools, None where anything may come.

        ``otherwise``: what an answer that calls none of them must look like; nothing is free text then.
        """
        return self.traits.syntax.constraint(toolbox, otherwise)

    def refused(self, error: InvalidRequest, toolbox: Toolbox) -> InvalidRequest:
        """What refused a request because of a constraint of `constraint`, by the name of the tool whose schema it is.

        Other errors are returned as they are.
        """
        param = error.param or ""
        if not toolbox.active or param.partition(".")[0] != "constraint":
            return error
        tag = _TAG.match(param)
        tool = None if tag is None else self.traits.syntax.tool_of_tag(toolbox, int(tag[1]))
        return InvalidRequest("tools" if tool is None else f"{tool.place}.parameters", error.message, error.code)

    def sampling(self, params: SamplingParams, toolbox: Toolbox) -> SamplingParams:
        """``params`` with what `output_parser` needs: the tools' constraint and the special tokens that open things.

        Raises `InvalidRequest` where ``params`` have a constraint of their own and the answer may hold calls.
        """
        constraint = self.constraint(toolbox)
        if constraint is not None and params.constraint is not None:
            raise InvalidRequest("tools", "cannot be used together with another constraint on the output")
        return msgspec.structs.replace(
            params,
            constraint=params.constraint if constraint is None else constraint,
            skip_special_tokens=params.skip_special_tokens and self.skip_special_tokens(toolbox),
        )

    def skip_special_tokens(self, toolbox: Toolbox) -> bool:
        """What a request must say: False where calls or reasoning are opened by special tokens.

        Then the output's text holds the names of special tokens, and `output_parser` takes them out again.
        """
        return not self._special_markers(toolbox)

    def output_parser(
        self,
        toolbox: Toolbox,
        prompt: ChatPrompt,
        *,
        stops: ContentStops | None = None,
        include_stop: bool = False,
        otherwise: bool = False,
    ) -> OutputParser:
        """What takes one output of ``prompt`` apart; each sample needs its own. ``stops`` as in `OutputParser`.

        ``otherwise``: the output was constrained to calls or something else, so that the beginning of a call that is cut
        off is no content; only where calls begin like any JSON, it could be.
        """
        traits, markers = self.traits, self._special_markers(toolbox)
        tagged = not any(str(pattern[0]).startswith("{") for pattern in traits.syntax.patterns.openings)
        forced = toolbox.forced or (otherwise and tagged)
        names = [tool.name for tool in toolbox.allowed]
        return OutputParser(
            special=SpecialNames(self.tokenizer.special_names - markers) if markers else None,
            reasoning=ReasoningSplitter(opened=prompt.opens_reasoning) if traits.reasoning else None,
            calls=CallParser(traits.syntax.patterns, names, forced=forced) if toolbox.active else None,
            stops=stops,
            include_stop=include_stop,
        )

    def _special_markers(self, toolbox: Toolbox) -> frozenset[str]:
        """Those of the texts that a parser looks for which are names of special tokens."""
        markers = set[str]()
        if toolbox.active:
            markers.update(self.traits.syntax.markers)
        if self.traits.reasoning:
            markers.update((reasoning.OPEN, reasoning.CLOSE))
        return frozenset(markers & self.tokenizer.special_names)
