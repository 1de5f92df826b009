"""A conversation in a request that only wants to know its prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.chat.conversation import parse_conversation
from radixserve.chat.format import ChatPrompt
from radixserve.chat.tools import parse_tools
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.service import Service


class ConversationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages and how to render them, under the names of chat completions."""

    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None

    def render(self, service: Service, salt: bytes = b"") -> ChatPrompt:
        """The prompt of the conversation; earlier answers keep their tokens in the namespace of ``salt``.

        Raises `InvalidRequest`.
        """
        if self.chat_template is not None:
            raise UnsupportedFeature("chat_template", "the model's own template is used; clients cannot bring another")
        keeps_on = bool(self.continue_final_message)
        if keeps_on and self.add_generation_prompt:
            raise InvalidRequest("add_generation_prompt", "cannot be combined with continue_final_message")
        return service.chat.prompt(
            parse_conversation(self.messages),
            parse_tools(self.tools),
            add_generation_prompt=not keeps_on if self.add_generation_prompt is None else self.add_generation_prompt,
            continue_final_message=keeps_on,
            template_options=self.chat_template_kwargs,
            salt=salt,
        )

    def check_unused(self, instead: str) -> None:
        """Raise `InvalidRequest` for fields that say something of messages where ``instead`` is given."""
        for name in ConversationFields.__struct_fields__:
            if getattr(self, name) is not None:
                raise InvalidRequest(name, f"belongs to messages, but {instead} is given")
