"""Fifty tool calls at temperature 1: what is offered and asked, and whether the arguments are the tool's.

The tools are pydantic models, which all clients that call tools bring along: their schemas go to the server, and they judge
what comes back. Texts and lists are bounded and nothing is recursive, so that no call is cut by length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from checking import expect, expect_equal
from pydantic import BaseModel, ConfigDict, Field, ValidationError

COUNT = 50
MAX_TOKENS = 512


class Arguments(BaseModel):
    """Arguments of a tool; others than the named are wrong."""

    model_config = ConfigDict(extra="forbid")


class GetWeather(Arguments):
    """Weather forecast of a city."""

    city: str = Field(min_length=1, max_length=24)
    unit: Literal["celsius", "fahrenheit"]
    days: int = Field(ge=1, le=14)


class BookTable(Arguments):
    """Book a table in a restaurant."""

    guests: int = Field(ge=1, le=12)
    time: str = Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    outdoor: bool | None
    note: str | None = Field(default=None, max_length=32)


class Customer(Arguments):
    """Who bought."""

    number: int = Field(ge=1, le=999_999)
    country: str = Field(pattern="^[A-Z]{2}$")


class SearchOrders(Arguments):
    """Search the orders of a customer."""

    customer: Customer
    states: list[Literal["new", "paid", "shipped"]] = Field(min_length=1, max_length=3)
    least: float | None = Field(default=None, ge=0, le=10_000)


class Circle(Arguments):
    """A circle."""

    kind: Literal["circle"]
    radius: int = Field(gt=0, le=100)


class Box(Arguments):
    """A rectangle."""

    kind: Literal["box"]
    width: int = Field(gt=0, le=100)
    height: int = Field(gt=0, le=100)


class DrawShapes(Arguments):
    """Draw shapes on a canvas."""

    shapes: list[Circle | Box] = Field(min_length=1, max_length=3)
    colour: Literal["red", "green", "blue"] = "red"


class FileAction(Arguments):
    """Something that is done with a file."""

    action: Literal["open", "read", "write", "close"]
    path: str = Field(pattern="^[a-z]{1,8}\\.txt$")


class RunScript(Arguments):
    """Run file actions one after the other."""

    first: FileAction
    others: dict[Literal["second", "third"], FileAction] = Field(default={}, max_length=2)
    dry: bool = False


TOOLS: dict[str, type[Arguments]] = {
    "get_weather": GetWeather,
    "book_table": BookTable,
    "search_orders": SearchOrders,
    "draw_shapes": DrawShapes,
    "run_script": RunScript,
}
QUESTIONS = {
    "get_weather": "How warm will it be in Bergen this week?",
    "book_table": "I need a table for four tonight, outside if you can.",
    "search_orders": "Which orders of customer 4711 in Norway are paid?",
    "draw_shapes": "Draw me a small circle and a wide box.",
    "run_script": "Read notes.txt and then close it.",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One of the fifty. ``named``: this tool has to be called; else any of them. ``stream``: half of each kind are."""

    number: int
    tool: str
    named: bool
    stream: bool

    @property
    def question(self) -> str:
        """What the user says."""
        return QUESTIONS[self.tool]

    def expect_tools(self, called: list[tuple[str, str | dict[str, Any]]]) -> None:
        """One tool was called, with arguments that parse and that its model accepts as they are."""
        expect_equal(len(called), 1, f"call {self.number}: number of tools called")
        name, arguments = called[0]
        wanted = [self.tool] if self.named else list(TOOLS)
        expect(name in wanted, f"call {self.number}: got {name!r}, wanted one of {wanted}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        try:
            TOOLS[name].model_validate_json(text, strict=True)
        except ValidationError as error:
            expect(False, f"call {self.number}, arguments {text!r} of {name}: {error}")


def calls() -> Iterator[Call]:
    """All fifty: each tool named and not, streamed and not."""
    for number in range(COUNT):
        yield Call(number, list(TOOLS)[number % len(TOOLS)], named=number // 10 % 2 == 0, stream=number // 5 % 2 == 0)


def functions() -> list[dict[str, Any]]:
    """The tools in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": model.__doc__, "parameters": model.model_json_schema()},
        }
        for name, model in TOOLS.items()
    ]
