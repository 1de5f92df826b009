"""``radixserve chat``: a conversation in the terminal that shows what the cache saves in every turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from radixserve.cli.engine import CommandEngine, EngineFactory, Message, Output
from radixserve.cli.flags import EngineOptions, SamplingFields, expand_flags
from radixserve.cli.generate import conversation, lay_over
from radixserve.cli.interrupt import caught_interrupt
from radixserve.cli.report import note, report_error, reported_errors, stats_table, summary, write_text
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams

PROMPT = "> "
COMMANDS = "/reset starts over, /stats shows the cache, /explain says why the last prompt missed, /quit ends"


def chat_command(factory: EngineFactory) -> Callable[..., None]:
    """The command over engines that ``factory`` opens."""

    @reported_errors()
    @expand_flags
    def chat(
        system: Annotated[str | None, typer.Option(help="System message.", show_default=False)] = None,
        *,
        sampling: SamplingFields,
        options: EngineOptions,
    ) -> None:
        """Talk with the model. Ctrl-C stops an answer, Ctrl-D or /quit ends the chat.

        An answer may take what the context leaves, unless --max-tokens is given.
        """
        if sampling.get("n", 1) != 1:
            raise InvalidRequest("n", "a chat has one answer a turn")
        with closing(factory(**options)) as engine:
            talk(Conversation(engine, lay_over(engine.default_sampling, sampling), system))

    return chat


class Conversation:
    """The messages so far, and what the last turn brought."""

    def __init__(self, engine: CommandEngine, sampling: SamplingParams, system: str | None) -> None:
        self._engine = engine
        self._sampling = sampling
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Forget the messages; the cache keeps what it holds."""
        self.messages: list[Message] = conversation(self._system)
        self.last: Output | None = None

    def turn(self, text: str) -> None:
        """Ask, and print the answer while it is made.

        An answer stopped by Ctrl-C stays in the conversation as far as it came; a turn that fails leaves no trace.
        """
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        answer, output = "", None
        with caught_interrupt() as interrupt:
            aborted = False
            for chunk in self._engine.chat(asked, self._sampling, stream=True, explain=True):
                answer += chunk.text
                output = chunk.output
                write_text(chunk.text)
                if interrupt.requested and not aborted:
                    aborted = True
                    self._engine.abort(chunk.rid)
        write_text("\n")
        if output is None:
            return
        self.last = output
        if output.error is not None:
            report_error(output.error)
            return
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        note(summary(output))

    def stats(self) -> None:
        """Show the counters of the cache."""
        stats_table(self._engine.cache_stats())

    def explain(self) -> None:
        """Say why the last prompt hit no more than it did."""
        explanation = None if self.last is None else self.last.explanation
        if explanation is None:
            note("nothing was asked yet")
            return
        at = "" if explanation.text is None else f" ({explanation.text!r})"
        note(
            f"{explanation.cached_tokens} of {explanation.prompt_tokens} prompt tokens were cached; "
            f"{explanation.reason} at token {explanation.position}{at}: {explanation.detail}"
        )


def talk(conversation: Conversation) -> None:
    """Read lines until the end: turns and slash commands."""
    commands = {"/reset": conversation.reset, "/stats": conversation.stats, "/explain": conversation.explain}
    note(COMMANDS)
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            note("Ctrl-D or /quit ends the chat")
            continue
        if not line:
            continue
        if line == "/quit":
            return
        if line in commands:
            commands[line]()
        elif line.startswith("/"):
            report_error(f"unknown command {line.split()[0]}; {COMMANDS}")
        else:
            _turn(conversation, line)


def _turn(conversation: Conversation, line: str) -> None:
    """One turn; a request that is refused (a context that is full) is reported and the chat goes on."""
    try:
        conversation.turn(line)
    except InvalidRequest as error:
        report_error(str(error))
