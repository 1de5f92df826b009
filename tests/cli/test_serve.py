from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixserve.cli.flags import engine_flags, server_flags
from radixserve.cli.main import build_app
from radixserve.cli.serve import merge
from radixserve.cli.sources import environment_options, file_options
from radixserve.errors import ConfigError
from radixserve.server.options import ServerOptions

FLAGS = [*engine_flags(beside_sampling=False), *server_flags()]


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("port = 1\nblock_size = 32\n[server]\nmax_body_mb = 1\ngrace_s = 3\n")
    environment = {"RADIXSERVE_PORT": "2", "RADIXSERVE_MAX_BODY_MB": "2", "OTHER": "x"}
    engine, server = merge({"port": 3}, environment, path)
    assert engine == {"block_size": 32}
    assert server == ServerOptions(port=3, max_body_mb=2, grace_s=3)


def test_variables_are_read_in_the_type_of_their_option() -> None:
    given = {
        "RADIXSERVE_API_KEY": "one, two",
        "RADIXSERVE_ITL_TARGET_MS": "12.5",
        "RADIXSERVE_NUM_BLOCKS": "77",
        "RADIXSERVE_CHUNKED_PREFILL": "off",
        "RADIXSERVE_POLICY": "fcfs",
        "RADIXSERVE_ISA": "v3",
        "RADIXSERVE_CONFIG": "elsewhere",
    }
    assert environment_options(given, FLAGS) == {
        "api_key": ("one", "two"),
        "itl_target_ms": 12.5,
        "num_blocks": 77,
        "chunked_prefill": False,
        "policy": "fcfs",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("RADIXSERVE_PROT", "1"), ("RADIXSERVE_PORT", "high"), ("RADIXSERVE_CHUNKED_PREFILL", "maybe")],
)
def test_a_wrong_variable_is_named_and_its_value_is_not_shown(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        environment_options({name: value}, FLAGS)
    assert refused.value.field == name and value not in str(refused.value).replace(name, "")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("prot = 1", "prot"),
        ("port = 1\n[server]\nport = 2", "port"),
        ("port =", "config"),
        ("[server.limits]\nmax_boddy_mb = 1", "max_boddy_mb"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        file_options(path, FLAGS)
    assert refused.value.field == field and str(path) in str(refused.value)


def test_lists_in_a_file_are_lists(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('api_key = ["a", "b"]\nserved_model_name = "m"')
    _, server = merge({}, {}, path)
    assert (server.api_key, server.served_model_name) == (("a", "b"), ("m",))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"port": 70000}, "port"),
        ({"host": ""}, "host"),
        ({"api_key": ("",)}, "api_key"),
        ({"api_key": ("a", "a")}, "api_key"),
        ({"api_key": (" a",)}, "api_key"),
        ({"api_key": ("ключ", 1)}, "api_key"),
        ({"admin_key": "ключ"}, "admin_key"),
        ({"api_key": ("a",), "admin_key": "a"}, "api_key"),
        ({"max_queued_requests": 0}, "max_queued_requests"),
        ({"max_body_mb": 0}, "max_body_mb"),
        ({"stored_responses": -1}, "stored_responses"),
        ({"grace_s": -1.0}, "grace_s"),
        ({"grace_s": float("nan")}, "grace_s"),
        ({"keepalive_s": 0.0}, "keepalive_s"),
        ({"served_model_name": ("",)}, "served_model_name"),
        ({"log_level": "loud"}, "log_level"),
        ({"port": "8000"}, "port"),
        ({"log_prompts": 1}, "log_prompts"),
        ({"block_size": 0}, "block_size"),
    ],
)
def test_what_is_out_of_range_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        merge(options, {}, None)
    assert refused.value.field == field
    assert "ключ" not in str(refused.value)


def test_the_command_serves_what_it_is_told_to() -> None:
    calls: list[tuple[dict[str, Any], ServerOptions]] = []

    def serve(engine: dict[str, Any], server: ServerOptions) -> int:
        calls.append((engine, server))
        return 70

    arguments = [
        "serve",
        "model.gguf",
        "--port",
        "9",
        "--api-key",
        "a",
        "--api-key",
        "b",
        "--seed",
        "4",
        "--threads",
        "1",
        "--tp",
        "2",
    ]
    result = CliRunner().invoke(build_app(serve=serve), arguments)
    assert result.exit_code == 70, result.output
    engine = {"model": "model.gguf", "seed": 4, "threads": 1, "tensor_parallel_size": 2}
    assert calls == [(engine, ServerOptions(port=9, api_key=("a", "b")))]


def test_keys_are_not_part_of_what_options_show() -> None:
    assert "secret" not in repr(ServerOptions(api_key=("secret",), admin_key="secret"))


def test_help_is_grouped_by_topic() -> None:
    text = CliRunner().invoke(build_app(), ["serve", "--help"]).output
    for topic in ("Server", "Access", "Limits", "Logs", "Model", "Cache", "Scheduler"):
        assert f"─ {topic} ─" in text
