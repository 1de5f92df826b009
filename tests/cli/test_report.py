from __future__ import annotations

import pytest

from radixserve.cli import report
from radixserve.cli.report import summary, tokens_per_second, write_text
from radixserve.messages import FinishReason, SampleOutput, Timings
from tests.cli.fake_engine import FakeOutput


def _output(tokens: int, first: float | None, total: float, samples: int = 0) -> FakeOutput:
    return FakeOutput(
        text="",
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=5,
        cached_tokens=4,
        completion_tokens=tokens,
        timings=Timings(first_token_s=first, total_s=total),
        samples=[SampleOutput(index=index) for index in range(samples)],
    )


@pytest.mark.parametrize(
    ("output", "speed"),
    [
        (_output(11, 1.0, 3.0), 5.0),
        (_output(12, 1.0, 3.0, samples=2), 5.0),
        (_output(1, 1.0, 1.0), None),
        (_output(0, None, 1.0), None),
        (_output(5, 1.0, 1.0), None),
    ],
)
def test_speed_counts_what_came_after_the_first_token(output: FakeOutput, speed: float | None) -> None:
    assert tokens_per_second(output) == speed


def test_summary_leaves_out_what_there_is_not() -> None:
    assert summary(_output(0, None, 1.0)) == "5 prompt tokens (4 cached), 0 new, ended by length"


@pytest.mark.parametrize(("terminal", "written"), [(True, "a[31mb\n\tc"), (False, "a\x1b[31mb\n\t\x07c")])
def test_a_model_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, written: str
) -> None:
    monkeypatch.setattr(report, "_is_terminal", lambda: terminal)
    write_text("a\x1b[31mb\n\t\x07c")
    assert capsys.readouterr().out == written
