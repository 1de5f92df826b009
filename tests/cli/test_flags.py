from __future__ import annotations

import dataclasses
from typing import Any

import typer
from typer.testing import CliRunner

from radixserve.cli.flags import (
    EngineOptions,
    SamplingFields,
    constraint_flags,
    engine_flags,
    expand_flags,
    sampling_flags,
)
from radixserve.cli.help_text import ENGINE_HELP, SAMPLING_HELP
from radixserve.config import EngineConfig
from radixserve.messages import SamplingParams


def _option_names() -> set[str]:
    config = EngineConfig()
    names: set[str] = set()
    for part in dataclasses.fields(config):
        value = getattr(config, part.name)
        names |= {item.name for item in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else {part.name}
    return names


def test_every_option_has_a_flag_with_help() -> None:
    assert {flag.option for flag in engine_flags()} == _option_names() == set(ENGINE_HELP)
    assert {flag.option for flag in sampling_flags()} == set(SAMPLING_HELP)
    assert set(SAMPLING_HELP) == set(SamplingParams.__struct_fields__) - {"constraint"}


def test_a_name_that_both_use_is_told_apart() -> None:
    keywords = [flag.keyword for flag in (*engine_flags(), *sampling_flags(), *constraint_flags())]
    assert len(keywords) == len(set(keywords))
    assert [flag.keyword for flag in engine_flags() if flag.keyword != flag.option] == ["engine_seed"]


def test_only_given_flags_are_passed_on() -> None:
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def command(word: str = "w", *, sampling: SamplingFields, options: EngineOptions) -> None:
        calls.append((word, sampling, options))

    nothing = {flag.keyword: None for flag in (*engine_flags(), *sampling_flags(), *constraint_flags())}
    expand_flags(command)(word="x", **nothing)
    expand_flags(command)(word="y", **{**nothing, "n": 2, "seed": 0, "engine_seed": 1, "stop": ["a"]})
    assert calls == [("x", {}, {}), ("y", {"n": 2, "seed": 0, "stop": ("a",)}, {"seed": 1})]


def test_what_has_a_name_elsewhere_goes_by_it_too() -> None:
    given: list[dict[str, Any]] = []

    def command(*, options: EngineOptions) -> None:
        given.append(options)

    app = typer.Typer()
    app.command()(expand_flags(command))
    for flags in (
        ["--tensor-parallel-size", "2", "--watchdog-timeout-s", "5"],
        ["--tp", "2", "--watchdog-timeout", "5"],
    ):
        assert CliRunner().invoke(app, flags).exit_code == 0
    assert given == [{"tensor_parallel_size": 2, "watchdog_timeout_s": 5.0}] * 2
