"""Every call that is made of FlashInfer, bound against the installed version. Skipped where it is not installed.

The contract tests would fail as well where an argument is renamed; this says at once which one, and of which call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

flashinfer = pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")

PREFILL = flashinfer.BatchPrefillWithPagedKVCacheWrapper
DECODE = flashinfer.BatchDecodeWithPagedKVCacheWrapper
CASCADE = flashinfer.MultiLevelCascadeAttentionWrapper
COMMON = ("pos_encoding_mode", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type")
GRAPH = ("use_cuda_graph", "paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")

# Call, how many arguments it is given by place (self included), which by name, and the names that those by place must have.
CALLS: list[tuple[Callable[..., Any], int, tuple[str, ...], tuple[str, ...]]] = [
    (PREFILL.__init__, 3, ("backend",), ("self", "float_workspace_buffer", "kv_layout")),
    (
        PREFILL.plan,
        9,
        (*COMMON, "causal", "o_data_type", "non_blocking"),
        ("self", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads", "num_kv_heads",
         "head_dim_qk", "page_size"),
    ),
    (PREFILL.run, 3, ("out",), ("self", "q", "paged_kv_cache")),
    (DECODE.__init__, 3, ("use_tensor_cores", "backend", *GRAPH), ("self", "float_workspace_buffer", "kv_layout")),
    # The public plan takes anything and hands it on.
    (
        DECODE._plan_impl,
        8,
        (*COMMON, "o_data_type", "non_blocking", "disable_split_kv"),
        ("self", "indptr", "indices", "last_page_len", "num_qo_heads", "num_kv_heads", "head_dim", "page_size"),
    ),
    (DECODE.run, 3, ("out",), ("self", "q", "paged_kv_cache")),
    (CASCADE.__init__, 4, (), ("self", "num_levels", "float_workspace_buffer", "kv_layout")),
    (
        CASCADE.plan,
        9,
        (*COMMON, "causal"),
        ("self", "qo_indptr_arr", "paged_kv_indptr_arr", "paged_kv_indices_arr", "paged_kv_last_page_len", "num_qo_heads",
         "num_kv_heads", "head_dim", "page_size"),
    ),
    (CASCADE.run, 3, (), ("self", "q", "paged_kv_cache")),
    (
        flashinfer.append_paged_kv_cache,
        8,
        ("kv_layout",),
        ("append_key", "append_value", "batch_indices", "positions", "paged_kv_cache", "kv_indices", "kv_indptr",
         "kv_last_page_len"),
    ),
    (flashinfer.rmsnorm, 3, (), ("input", "weight", "eps")),
    (flashinfer.fused_add_rmsnorm, 4, (), ("input", "residual", "weight", "eps")),
    (flashinfer.silu_and_mul, 1, (), ("input",)),
    (
        flashinfer.apply_rope_with_cos_sin_cache_inplace,
        5,
        ("is_neox",),
        ("positions", "query", "key", "head_size", "cos_sin_cache"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "places", "names", "by_place"), CALLS, ids=lambda value: getattr(value, "__qualname__", "")
)
def test_the_installed_version_takes_it(
    call: Callable[..., Any], places: int, names: tuple[str, ...], by_place: tuple[str, ...]
) -> None:
    signature = inspect.signature(inspect.unwrap(call))
    told = f"flashinfer-python {version('flashinfer-python')}: {call.__qualname__}{signature}"
    assert len(by_place) == places
    assert tuple(signature.parameters)[:places] == by_place, told
    try:
        bound = signature.bind(*range(places), **dict.fromkeys(names))
    except TypeError as error:
        pytest.fail(f"{error} in {told}")
    # A name that only ``**kwargs`` would swallow is a name that nobody reads.
    assert set(names) <= set(signature.parameters), told
    assert all(not isinstance(value, dict) for value in bound.arguments.values()), told


def test_the_decode_wrapper_hands_its_arguments_on() -> None:
    """`plan` is ``*args, **kwargs``: what it calls is what was bound above."""
    parameters = inspect.signature(inspect.unwrap(DECODE.plan)).parameters
    assert any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert "_plan_impl(" in inspect.getsource(inspect.unwrap(DECODE.plan))


def test_what_a_captured_graph_takes_for_fixed_can_be_seen() -> None:
    """`DecodeAttention.layout` reads these of the wrapper; its source must still set them."""
    source = inspect.getsource(DECODE)
    for name in ("_float_workspace_buffer", "_int_workspace_buffer", "_qo_indptr_buf", "_plan_info", "_paged_kv_indptr_buf",
                 "_paged_kv_indices_buf", "_paged_kv_last_page_len_buf"):  # fmt: skip
        assert f"self.{name}" in source, f"flashinfer-python {version('flashinfer-python')} has no {name}"


def test_a_cascades_passes_can_be_replaced() -> None:
    """`CascadeAttention` does where it is to take one kind of kernels."""
    assert "self._batch_prefill_wrappers" in inspect.getsource(CASCADE.plan)


def test_defaults_that_are_not_ours() -> None:
    """Why nothing is left to them; a version that changes one of these is worth a look."""
    prefill = inspect.signature(inspect.unwrap(PREFILL.plan)).parameters
    decode = inspect.signature(inspect.unwrap(DECODE._plan_impl)).parameters
    assert prefill["causal"].default is False
    assert prefill["q_data_type"].default == decode["q_data_type"].default == "float16"
    assert inspect.signature(inspect.unwrap(PREFILL.run)).parameters["lse_base"].default == "log2"
