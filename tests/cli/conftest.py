from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner

from radixserve.cli.main import build_app
from tests.cli.fake_engine import FakeEngine


@dataclass
class Ran:
    code: int
    out: str
    err: str
    engine: FakeEngine | None
    exception: BaseException | None


@dataclass
class CommandLine:
    """Runs the command line over a fake engine whose behaviour is set by ``fake``."""

    fake: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        opened: list[FakeEngine] = []

        def factory(**options: Any) -> FakeEngine:
            opened.append(FakeEngine(**self.fake, **options))
            return opened[-1]

        result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(build_app(factory), arguments, input=stdin)
        unexpected = None if isinstance(result.exception, SystemExit) else result.exception
        return Ran(result.exit_code, result.stdout, result.stderr, opened[-1] if opened else None, unexpected)


@pytest.fixture
def command_line() -> Callable[..., CommandLine]:
    return lambda **fake: CommandLine(fake)
