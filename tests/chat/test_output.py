"""The whole parser: names of special tokens, reasoning, calls and stop strings together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixserve.chat.call_parser import CallParser
from radixserve.chat.events import ContentDelta, Event, ParsedMessage, ReasoningDelta, ToolCall, ToolCallDelta
from radixserve.chat.hermes_syntax import HermesSyntax
from radixserve.chat.output import OutputParser
from radixserve.chat.reasoning import ReasoningSplitter
from radixserve.chat.special_names import SpecialNames
from radixserve.engine.stop_strings import StopMatcher
from tests.chat.pieces import CUTS, counted_ids, cut, joined, run

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<|end|>STOP"}}\n</tool_call>'


def parser(*stops: str, include_stop: bool = False) -> OutputParser:
    return OutputParser(
        special=SpecialNames(["<|end|>", "<|end|>>", "<s>"]),
        reasoning=ReasoningSplitter(),
        calls=CallParser(HermesSyntax().patterns, ["f"], new_id=counted_ids()),
        stops=StopMatcher(stops) if stops else None,
        include_stop=include_stop,
    )


def test_all_together() -> None:
    text = f"<think>\nhm<s>\n</think>\n\nLook:\n{CALL}<|end|>"
    assert parser().parse(text) == ParsedMessage("Look:", "hm", (ToolCall("call_0", "f", '{"a": "STOP"}'),))
    stream = parser()
    events = joined(run(stream, text))
    assert events == [ReasoningDelta("hm"), ContentDelta("Look:"), ToolCallDelta(0, "call_0", "f", '{"a": "STOP"}')]
    assert stream.calls == 1 and stream.finish() == []
    assert OutputParser().parse("<think>as it is") == ParsedMessage("<think>as it is")
    assert OutputParser().parse("") == ParsedMessage("")


PARTS = [
    "<think>",
    "</think>",
    "\n",
    "hm",
    CALL,
    "<tool_call>",
    "<|end|>",
    "<|en",
    "d|>",
    ">",
    "STOP",
    "ST",
    "<s>",
    " ",
]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=8), cuts=CUTS, stops=st.sampled_from([(), ("STOP", "m\n")]))
def test_pieces_do_not_matter(parts: list[str], cuts: list[int], stops: tuple[str, ...]) -> None:
    text = "".join(parts)
    outcomes = []
    for pieces in ([text], cut(text, cuts), list(text)):
        stream = parser(*stops)
        outcomes.append((joined(run(stream, pieces)), stream.stopped, stream.calls))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_stop_strings_are_for_content_only() -> None:
    stream = parser("STOP")
    events = run(stream, ["<think>never STOP", " here</think>\n", "go on ST", "OP and on", CALL])
    assert joined(events) == [ReasoningDelta("never STOP here"), ContentDelta("go on ")]
    assert (stream.stopped, stream.calls) == ("STOP", 0)
    kept = parser("STOP", include_stop=True)
    assert joined(run(kept, ["a ST", "OP b"])) == [ContentDelta("a STOP")]
    held = parser("STOP")
    assert joined(run(held, ["a STO"])) == [ContentDelta("a STO")], "what was held back is released at the end"
    assert held.stopped is None
    inside = parser("</tool_call>")
    assert joined(run(inside, [CALL])) == [ToolCallDelta(0, "call_0", "f", '{"a": "STOP"}')]
    assert inside.stopped == "</tool_call>"


def test_an_answer_cut_inside_a_call_does_not_ask_for_it() -> None:
    whole = parser()
    run(whole, ["text ", CALL])
    assert whole.asks_for_calls
    none = parser()
    run(none, ["text"])
    assert not none.asks_for_calls
    for stop, calls in (("STOP", 1), ("arguments", 0)):
        stopped = parser(stop)
        run(stopped, [CALL])
        assert (stopped.stopped, stopped.calls, stopped.asks_for_calls) == (stop, calls, False)
    second = parser("STOP")
    run(second, [CALL.replace("STOP", ""), "\n", CALL])
    assert second.calls == 2 and not second.asks_for_calls


NAMES = ["<|end|>", "<|end|>>", "<s>", "<|e"]


@given(parts=st.lists(st.sampled_from([*NAMES, "<", "|", "en", "d|>", "x", "s>"]), max_size=10), cuts=CUTS)
def test_names_are_taken_out(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    expected, position = "", 0
    while position < len(text):
        name = max((name for name in NAMES if text.startswith(name, position)), key=len, default="")
        expected += "" if name else text[position]
        position += len(name) or 1
    stripper = SpecialNames(NAMES)
    assert "".join([*map(stripper.push, cut(text, cuts)), stripper.finish()]) == expected


def test_only_what_could_be_a_name_is_held_back() -> None:
    stripper = SpecialNames(["<|end|>"])
    assert [stripper.push(piece) for piece in ("a <", "b <|", "end", "|> c")] == ["a ", "<b ", "", " c"]
    assert stripper.push("<|") == "" and stripper.finish() == "<|"
    assert SpecialNames([]).push("<|") == "<|"


def test_events_are_never_empty() -> None:
    stream = parser()
    events: list[Event] = run(stream, ["", "<s>", "", "a", ""])
    assert events == [ContentDelta("a")]
