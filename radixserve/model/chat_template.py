"""A conversation to text, by the model's own Jinja template, in a sandbox with bounds."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2

from radixserve.errors import InvalidRequest, ModelLoadError
from radixserve.model.config_fields import read_json
from radixserve.model.gguf_metadata import Metadata
from radixserve.model.template_sandbox import CLOCK, Clock, Sandbox

MAX_CHARACTERS = 16_000_000
MAX_SECONDS = 10.0
_MARK = "\ue000radixserve-continue\ue000"


class ChatTemplate:
    """A model's compiled template. ``special``: names of the model's special tokens, as the template sees them.

    ``tool_source``: the template to take instead of ``source`` where tools are given (models with two templates).
    """

    def __init__(
        self, source: str, special: Mapping[str, str] | None = None, *, tool_source: str | None = None
    ) -> None:
        environment = Sandbox(MAX_CHARACTERS)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
            self._tool_template = self._template if tool_source is None else environment.from_string(tool_source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelLoadError(f"the model's chat template does not compile: {error}") from error
        self._special = dict(special or {})
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **extra: Any,
    ) -> str:
        """The conversation as the model was trained to see it, ready for an answer with ``add_generation_prompt``.

        ``continue_final_message``: the text ends with the last message's content, so that the model goes on with it.
        ``extra``: further variables of the template. Raises `InvalidRequest` for what the template refuses or cannot
        render.
        """
        rendered: list[Mapping[str, Any]] = list(messages)
        if not all(isinstance(message, Mapping) for message in rendered):
            raise InvalidRequest("messages", "every message must be an object", "invalid_type")
        final = ""
        if continue_final_message:
            if not rendered:
                raise InvalidRequest("continue_final_message", "there is no message to continue")
            add_generation_prompt = False
            final, content = _marked(rendered[-1])
            rendered[-1] = {**rendered[-1], "content": content}
        variables = {
            "documents": None,
            **self._special,
            **extra,
            "messages": rendered,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            CLOCK: Clock(MAX_SECONDS),
        }
        text = _bounded(self._tool_template if tools else self._template, variables)
        if continue_final_message:
            before, mark, _ = text.rpartition(_MARK)
            text = before.replace(_MARK, "")
            if not mark or final.strip() not in text:
                raise InvalidRequest(
                    "continue_final_message", "the chat template leaves out the final message or a part of it"
                )
        return text


def gguf_chat_template(metadata: Metadata, special: Mapping[str, str]) -> ChatTemplate | None:
    """The template in a GGUF file's metadata, None if it has none."""
    source = metadata.typed("tokenizer.chat_template", str)
    return None if source is None else ChatTemplate(source, special)


def directory_chat_template(directory: Path, special: Mapping[str, str]) -> ChatTemplate | None:
    """The template of a Hugging Face directory, None if it has none.

    ``chat_template.jinja`` goes before ``chat_template.json`` and the ``chat_template`` of ``tokenizer_config.json``; of
    a list of named templates the one called ``default`` is taken, and ``tool_use`` where tools are given.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(path.read_text(encoding="utf-8"), special)
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        value, tool_value = read_json(path).get("chat_template") if path.is_file() else None, None
        if isinstance(value, list):
            named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
            value, tool_value = named.get("default"), named.get("tool_use")
            if value is None:
                raise ModelLoadError(f"{path}: chat_template has no entry called default")
        if value is not None:
            if not isinstance(value, str) or not isinstance(tool_value, str | None):
                raise ModelLoadError(f"{path}: chat_template must be a text or a list of named texts")
            return ChatTemplate(value, special, tool_source=tool_value)
    return None


def _bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                raise InvalidRequest("messages", f"the rendered conversation exceeds {MAX_CHARACTERS} characters")
    except InvalidRequest:
        raise
    except Exception as error:
        # A template is a program over the caller's data: whatever it raises means that it cannot take them.
        reason = str(error) or type(error).__name__
        raise InvalidRequest("messages", f"the chat template refuses them: {reason}", "template_error") from error
    return "".join(pieces)


def _marked(message: Mapping[str, Any]) -> tuple[str, Any]:
    """The message's last text, and its content with the mark after that text."""
    content = message.get("content")
    if isinstance(content, str):
        return content, content + _MARK
    if isinstance(content, list) and content and isinstance(content[-1], dict) and "text" in content[-1]:
        text = str(content[-1]["text"])
        return text, [*content[:-1], {**content[-1], "text": text + _MARK}]
    raise InvalidRequest("continue_final_message", "the final message has no text to continue")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models were not trained on. Templates pass these options, in this order.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest("messages", f"the chat template refuses them: {message}", "template_error")


def _now(layout: str) -> str:
    return dt.datetime.now().astimezone().strftime(layout)
