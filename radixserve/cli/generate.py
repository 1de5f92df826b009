"""``radixserve generate``: continue prompts, or answer them with the model's chat template."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Annotated

import msgspec
import typer

from radixserve.cli.engine import Chunk, CommandEngine, EngineFactory, Message, Output
from radixserve.cli.flags import EngineOptions, SamplingFields, expand_flags
from radixserve.cli.ordered_text import OrderedText
from radixserve.cli.report import FAILED, note, report_error, reported_errors, summary, write_text
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams

DEFAULT_MAX_TOKENS = 256


def generate_command(factory: EngineFactory) -> Callable[..., None]:
    """The command over engines that ``factory`` opens."""

    @reported_errors()
    @expand_flags
    def generate(
        prompts: Annotated[
            list[str] | None, typer.Argument(metavar="PROMPT...", help="Texts to continue.", show_default=False)
        ] = None,
        stdin: Annotated[bool, typer.Option("--stdin", help="Take standard input as one more prompt.")] = False,
        chat: Annotated[
            bool, typer.Option("--chat/--raw", help="Answer through the chat template, or continue the text as it is.")
        ] = False,
        system: Annotated[str | None, typer.Option(help="System message of --chat.", show_default=False)] = None,
        stream: Annotated[bool, typer.Option(help="Print while the text is made, or when it is complete.")] = True,
        json: Annotated[
            bool,
            typer.Option("--json", help="Print JSON, an object a line: each chunk, or with --no-stream each output."),
        ] = False,
        priority: Annotated[int, typer.Option(help="Higher goes first under --policy priority.")] = 0,
        cache_salt: Annotated[
            str | None, typer.Option(help="Share prefixes only with requests of the same salt.", show_default=False)
        ] = None,
        *,
        sampling: SamplingFields,
        options: EngineOptions,
    ) -> None:
        """Continue each PROMPT and print the text; statistics go to standard error.

        Several raw prompts run together in one batch; with --chat they are answered one after another.
        --max-tokens is 256 unless given.
        """
        texts = [*(prompts or []), *([sys.stdin.read()] if stdin else [])]
        if not texts:
            raise InvalidRequest("prompt", "give at least one PROMPT, or --stdin")
        if system is not None and not chat:
            raise InvalidRequest("system", "a system message needs --chat")
        with closing(factory(**options)) as engine:
            params = lay_over(engine.default_sampling, {"max_tokens": DEFAULT_MAX_TOKENS, **sampling})
            if chat:
                chunks = _answers(engine, texts, system, params, priority, cache_salt)
            else:
                made = engine.generate(texts, params, stream=True, priority=priority, cache_salt=cache_salt)
                chunks = ((chunk.prompt_index, chunk) for chunk in made)
            if json:
                outputs = _print_json(chunks, stream=stream)
            else:
                outputs = _print_text(chunks, prompts=len(texts), samples=params.n, stream=stream)
        if any(output.error is not None for output in outputs):
            raise typer.Exit(FAILED)

    return generate


def lay_over(defaults: SamplingParams, given: SamplingFields) -> SamplingParams:
    """The model's defaults with the given fields replaced."""
    return msgspec.structs.replace(defaults, **given)


def conversation(system: str | None) -> list[Message]:
    """An empty conversation, or one that starts with a system message."""
    return [] if system is None else [{"role": "system", "content": system}]


def _answers(
    engine: CommandEngine,
    texts: list[str],
    system: str | None,
    sampling: SamplingParams,
    priority: int,
    cache_salt: str | None,
) -> Iterator[tuple[int, Chunk]]:
    """The chunks of one conversation a text, each with the number of its text."""
    for number, text in enumerate(texts):
        messages = [*conversation(system), {"role": "user", "content": text}]
        for chunk in engine.chat(messages, sampling, stream=True, priority=priority, cache_salt=cache_salt):
            yield number, chunk


def _print_json(chunks: Iterator[tuple[int, Chunk]], *, stream: bool) -> list[Output]:
    """One object a line: every chunk, or every output."""
    outputs = []
    for _, chunk in chunks:
        if stream:
            typer.echo(msgspec.json.encode(chunk).decode())
        if chunk.output is not None:
            outputs.append(chunk.output)
            if not stream:
                typer.echo(msgspec.json.encode(chunk.output).decode())
    return outputs


def _print_text(chunks: Iterator[tuple[int, Chunk]], *, prompts: int, samples: int, stream: bool) -> list[Output]:
    """The texts in order, then the statistics and errors of each prompt."""
    text = OrderedText(prompts, samples, write_text, live=stream)
    outputs: dict[int, Output] = {}
    for number, chunk in chunks:
        text.add((number, chunk.index), chunk.text, finished=chunk.finish_reason is not None)
        if chunk.output is not None:
            outputs[number] = chunk.output
    ordered = [outputs[number] for number in sorted(outputs)]
    for number, output in enumerate(ordered):
        note(f"prompt {number + 1}: {summary(output)}" if prompts > 1 else summary(output))
        if output.error is not None:
            report_error(output.error)
    return ordered
