"""Where chat templates run: Jinja's immutable sandbox, with bounds on the time and on the size of what a template makes.

A template is a program over the caller's messages, and Jinja has no limit of its own: a loop that writes nothing never gives
control back, and a short expression can build a text of gigabytes. So every loop and every call counts a step, which looks
at the clock now and then, and the operators that make a text or list longer check its length first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixserve.errors import InvalidRequest

CLOCK = "__clock__"
"""The variable that holds a rendering's `Clock`; its attributes are private, so a template cannot touch them."""

_STEPS_PER_LOOK = 256


class Clock:
    """The time one rendering may take, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._steps = 0

    def _step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0:
            self._look()

    def _look(self) -> None:
        if time.monotonic() > self._deadline:
            raise InvalidRequest("messages", f"the chat template takes longer than {self._seconds:g} s")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates must be rendered with a `Clock` in the variable `CLOCK`.

    No text or list that ``*``, ``+`` or ``~`` makes is longer than ``max_length``; no number that ``**`` makes has more bits.
    """

    intercepted_binops = frozenset({"*", "+", "**"})

    def __init__(self, max_length: int) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self.code_generator_class = _CountingGenerator
        self.filters[_COUNTED] = _counted
        self._max_length = max_length

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in the base class
        """Call ``__obj`` for a template: one step."""
        __context[CLOCK]._step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply one of ``intercepted_binops`` unless the result would be too long."""
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, Sized) and isinstance(times, int):
                    self._check_length(len(sequence) * times)
        elif operator == "+":
            if isinstance(left, Sized) and isinstance(right, Sized):
                self._check_length(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            self._check_length(left.bit_length() * right)
        return super().call_binop(context, operator, left, right)

    def concatenate(self, parts: tuple[Any, ...]) -> str:
        """What ``~`` makes of its operands."""
        texts = [str(part) for part in parts]
        self._check_length(sum(map(len, texts)))
        return "".join(texts)

    def _check_length(self, length: int) -> None:
        if length > self._max_length:
            raise InvalidRequest("messages", f"the chat template makes a value longer than {self._max_length}")


class GenerationTag(Extension):
    """The block ``{% generation %}``: marks, for training, what the model said. Here it only renders."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_COUNTED = "counted by the clock"  # has spaces, so that no template can name it


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """``items``, one step each."""
    clock: Clock = context[CLOCK]
    for item in items:
        clock._step()
        yield item


class _CountingGenerator(CodeGenerator):
    """Compiles every loop over ``items`` as a loop over ``items | counted``, and ``~`` as `Sandbox.concatenate`."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 - the base class's name
        for loop in node.find_all(nodes.For):
            counted = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
            counted.set_environment(self.environment)
            loop.iter = counted
        super().visit_Template(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - the base class's name
        self.write("environment.concatenate((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")
