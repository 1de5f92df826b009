"""The package from outside: what importing it costs, and what it offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import radixlang

PACKAGE = Path(radixlang.__file__).parent


def test_importing_it_loads_little() -> None:
    program = (
        "import sys; before = set(sys.modules); import radixlang\n"
        "heavy = {'torch', 'numpy', 'httpx', 'radixserve', 'transformers', 'pydantic'} & (set(sys.modules) - before)\n"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.strip()) == (0, "")


def test_the_version_can_be_read_without_importing_it() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    versions = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__version__"
    ]
    assert versions == [radixlang.__version__]


def test_all_names_are_there() -> None:
    assert sorted(radixlang.__all__) == radixlang.__all__
    for name in radixlang.__all__:
        assert getattr(radixlang, name) is not None
    with pytest.raises(AttributeError, match=r"radixlang.*'image'"):
        radixlang.image  # noqa: B018


def test_the_names_that_users_of_sglang_know() -> None:
    known = (
        "Runtime RuntimeEndpoint OpenAI set_default_backend flush_cache get_server_info function gen gen_int gen_string select "
        "system user assistant system_begin system_end user_begin user_end assistant_begin assistant_end "
        "token_length_normalized greedy_token_selection unconditional_likelihood_normalized"
    )
    assert set(known.split()) <= set(radixlang.__all__)
    state = "text messages sync get_var set_var get_meta_info error fork copy var_scope text_iter text_async_iter system user assistant"
    assert set(state.split()) <= set(dir(radixlang.ProgramState))
    assert {"run", "run_batch", "bind", "__call__"} <= set(dir(radixlang.Program))
