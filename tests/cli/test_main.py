from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable

import radixlang
from tests.cli.conftest import CommandLine


def test_version(command_line: Callable[..., CommandLine]) -> None:
    ran = command_line()("--version")
    assert (ran.code, ran.out) == (0, f"radixserve {radixlang.__version__}\n")
    assert importlib.metadata.version("radixserve") == radixlang.__version__


def test_no_command_shows_the_commands(command_line: Callable[..., CommandLine]) -> None:
    ran = command_line()()
    assert ran.code == 2
    assert "generate" in ran.out + ran.err
    assert "chat" in ran.out + ran.err


def test_help_lists_options_with_defaults_and_does_not_load_torch() -> None:
    script = (
        "import sys; from radixserve.cli.main import build_app\n"
        "try: build_app()(['generate', '--help'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={"COLUMNS": "200"})
    assert ran.returncode == 0, ran.stderr
    assert "--max-batch-tokens" in ran.stdout
    assert "512" in ran.stdout
    assert "lpm|fcfs|dfs-weight|priority" in ran.stdout
