"""Operations as the kernels take them, one function each: it checks shapes, types and strides once, when the operation is described.

Tensors are bf16 or fp32, on the CPU, contiguous along their last dimension; leading dimensions are capacities: a step with T tokens uses
the first T rows. An `Operation` keeps its tensors alive. Sizes in docstrings: T tokens, W rows whose logits are wanted.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from radixserve.native import abi
from radixserve.native.abi import Format, Kind, Rows, Type
from radixserve.native.kv_layout import SUB_BLOCK, head_elements
from radixserve.native.packing import DENSE_PANEL, PackedWeight

_TYPES = {torch.float32: Type.F32, torch.bfloat16: Type.BF16}
_CACHE_TYPES = {**_TYPES, torch.int8: Type.INT8}


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One entry of a program: its C struct and the tensors that it points to."""

    kind: Kind
    rows: Rows
    params: ctypes.Structure
    tensors: tuple[torch.Tensor | None, ...]


def embedding(table: PackedWeight, out: torch.Tensor) -> Operation:
    """``out[T, width] = table[token_ids]``; ``table`` may be the packed weight of a tied head."""
    _matrix(out, table.in_features)
    params = abi.EmbeddingStruct(
        table=table.data.data_ptr(),
        out=out.data_ptr(),
        format=table.format,
        out_type=_TYPES[out.dtype],
        vocab=table.out_features,
        width=table.in_features,
        out_stride=out.stride(0),
    )
    return Operation(Kind.EMBEDDING, Rows.ALL_TOKENS, params, (table.data, out))


def norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float,
    delta: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    rows: Rows = Rows.ALL_TOKENS,
) -> Operation:
    """``h = x + delta`` (rounded to x's type), ``residual = h``, ``out = h / sqrt(mean(h**2) + eps) * weight``; all [T, width].

    ``weight`` is fp32[width], width a multiple of 16; ``delta`` and ``residual`` have x's type, ``residual`` may be ``x``. With
    ``Rows.WANTED`` row i of ``out`` [W, width] is made from row ``wanted_rows[i]``, and no residual is kept.
    """
    width = weight.numel()
    assert weight.dtype == torch.float32 and weight.is_contiguous() and width % 16 == 0
    assert rows is Rows.ALL_TOKENS or residual is None
    for tensor in (x, out):
        _matrix(tensor, width)
    for given in (delta, residual):
        assert given is None or given.dtype == x.dtype
        if given is not None:
            _matrix(given, width)
    params = abi.NormStruct(
        x=x.data_ptr(),
        delta=_pointer(delta),
        residual=_pointer(residual),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        x_type=_TYPES[x.dtype],
        out_type=_TYPES[out.dtype],
        width=width,
        x_stride=x.stride(0),
        delta_stride=0 if delta is None else delta.stride(0),
        residual_stride=0 if residual is None else residual.stride(0),
        out_stride=out.stride(0),
        eps=eps,
    )
    return Operation(Kind.NORM, rows, params, (x, delta, residual, weight, out))


def linear(
    weight: PackedWeight,
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    rows: Rows = Rows.ALL_TOKENS,
) -> Operation:
    """``out[T or W, out_features] = x[T or W, in_features] @ weight.T + bias``, accumulated in fp32.

    Dense weights want ``x`` of their own type; quantized ones take bf16 or fp32. ``bias`` is fp32[out_features].
    """
    _matrix(out, weight.out_features)
    params = _linear_struct(weight, x, bias)
    params.out, params.out_type, params.out_stride = out.data_ptr(), _TYPES[out.dtype], out.stride(0)
    return Operation(Kind.LINEAR, rows, params, (weight.data, bias, x, out))


def gated_linear(
    weight: PackedWeight, x: torch.Tensor, out: torch.Tensor, *, bias: torch.Tensor | None = None
) -> Operation:
    """``out = silu(gate) * up`` with ``gate, up`` the halves of what `linear` would give, in one pass and never rounded.

    ``weight`` has gone through `alternate_panels`, ``bias`` is in order: that of the gate, then the other. ``out`` is [T, width] and
    may not be ``x``.
    """
    width = weight.out_features // 2
    assert weight.out_features % (2 * DENSE_PANEL) == 0 and out.data_ptr() != x.data_ptr()
    _matrix(out, width)
    params = _linear_struct(weight, x, bias)
    params.out, params.out_type, params.out_stride = out.data_ptr(), _TYPES[out.dtype], out.stride(0)
    params.out_features, params.gated = width, 1
    return Operation(Kind.LINEAR, Rows.ALL_TOKENS, params, (weight.data, bias, x, out))


def rope_append(
    qkv: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> Operation:
    """Rotate q and k of ``qkv`` [T, (heads + 2 kv_heads) head_dim] by halves; q goes to ``q_out`` [T, heads head_dim],
    k and v to their slots of one layer's caches (`radixserve.native.kv_layout`), which are of ``q_out``'s type or int8.

    ``cos``, ``sin``: fp32[positions, head_dim / 2], position by position. ``q_norm``, ``k_norm``: fp32[head_dim], RMSNorm
    over each head before the rotation.
    """
    _matrix(qkv, (heads + 2 * kv_heads) * head_dim)
    _matrix(q_out, heads * head_dim)
    _caches(k_cache, v_cache, q_out.dtype, kv_heads, head_dim)
    for table in (cos, sin):
        assert table.dtype == torch.float32 and table.is_contiguous() and table.shape[1] == head_dim // 2
    for weight in (q_norm, k_norm):
        assert weight is None or (
            weight.dtype == torch.float32 and weight.shape == (head_dim,) and weight.is_contiguous()
        )
    params = abi.RopeAppendStruct(
        qkv=qkv.data_ptr(),
        q_out=q_out.data_ptr(),
        k_cache=k_cache.data_ptr(),
        v_cache=v_cache.data_ptr(),
        cos_table=cos.data_ptr(),
        sin_table=sin.data_ptr(),
        q_norm=_pointer(q_norm),
        k_norm=_pointer(k_norm),
        qkv_type=_TYPES[qkv.dtype],
        q_type=_TYPES[q_out.dtype],
        kv_type=_CACHE_TYPES[k_cache.dtype],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=eps,
        qkv_stride=qkv.stride(0),
        q_stride=q_out.stride(0),
    )
    return Operation(
        Kind.ROPE_APPEND, Rows.ALL_TOKENS, params, (qkv, q_out, k_cache, v_cache, cos, sin, q_norm, k_norm)
    )


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
) -> Operation:
    """``out = softmax(scale q kᵀ) v`` over each token's own paged past, itself included; q and out [T, heads head_dim] of one type,
    which is that of the caches where these are not int8.

    ``window``: a query at position p sees (p - window, p]. ``softcap``: scores become ``softcap * tanh(score / softcap)``; 0 is off.
    """
    assert heads % kv_heads == 0 and block_size % 16 == 0 and out.dtype == q.dtype
    _matrix(q, heads * head_dim)
    _matrix(out, heads * head_dim)
    _caches(k_cache, v_cache, q.dtype, kv_heads, head_dim)
    params = abi.AttentionStruct(
        q=q.data_ptr(),
        k_cache=k_cache.data_ptr(),
        v_cache=v_cache.data_ptr(),
        out=out.data_ptr(),
        q_type=_TYPES[q.dtype],
        kv_type=_CACHE_TYPES[k_cache.dtype],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        window=window or 0,
        scale=scale,
        softcap=softcap,
        q_stride=q.stride(0),
        out_stride=out.stride(0),
    )
    return Operation(Kind.ATTENTION, Rows.ALL_TOKENS, params, (q, k_cache, v_cache, out))


def silu_mul(x: torch.Tensor, out: torch.Tensor) -> Operation:
    """``out = silu(gate) * up`` with ``x`` [T, 2 width] = gate then up, width a multiple of 16.

    ``out`` may be the gate itself, where both are of one type.
    """
    width = out.shape[1]
    assert width % 16 == 0
    _matrix(x, 2 * width)
    _matrix(out, width)
    params = abi.SiluMulStruct(
        x=x.data_ptr(),
        out=out.data_ptr(),
        x_type=_TYPES[x.dtype],
        out_type=_TYPES[out.dtype],
        width=width,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
    )
    return Operation(Kind.SILU_MUL, Rows.ALL_TOKENS, params, (x, out))


def top_k(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> Operation:
    """The k largest of each of W rows of fp32 logits, largest first, ties by the lowest id; ``ids`` int32[W, k], ``values`` fp32[W, k].

    A row that holds NaN or +inf gives id -1 and NaN everywhere; -inf (a masked token) is a value like others. k is at most the vocabulary.
    """
    assert logits.dtype == values.dtype == torch.float32 and ids.dtype == torch.int32
    assert ids.is_contiguous() and values.is_contiguous() and ids.shape == values.shape
    assert logits.stride(1) == 1 and len(ids) >= len(logits) and 1 <= ids.shape[1] <= logits.shape[1]
    params = abi.TopKStruct(
        logits=logits.data_ptr(),
        ids=ids.data_ptr(),
        values=values.data_ptr(),
        vocab=logits.shape[1],
        k=ids.shape[1],
        stride=logits.stride(0),
    )
    return Operation(Kind.TOP_K, Rows.WANTED, params, (logits, ids, values))


def linear_top_k(
    weight: PackedWeight,
    x: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    rows: Rows = Rows.WANTED,
) -> Operation:
    """The k largest outputs of each row of the `linear` of these arguments, bit for bit, without writing the others to memory.

    ``ids`` int32[W, k] and ``values`` fp32[W, k]: largest first, ties by the lowest feature. Infinities are values like others; a row
    that holds a NaN gives id -1 and NaN everywhere. k is at most out_features.
    """
    assert ids.dtype == torch.int32 and values.dtype == torch.float32 and ids.shape == values.shape
    assert ids.is_contiguous() and values.is_contiguous() and 1 <= ids.shape[1] <= weight.out_features
    params = abi.LinearTopKStruct(
        linear=_linear_struct(weight, x, bias), ids=ids.data_ptr(), values=values.data_ptr(), k=ids.shape[1]
    )
    return Operation(Kind.LINEAR_TOP_K, rows, params, (weight.data, bias, x, ids, values))


def _linear_struct(weight: PackedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> abi.LinearStruct:
    """All of a linear but where its outputs go."""
    _matrix(x, weight.in_features)
    if weight.format is Format.DENSE_F32:
        assert x.dtype == torch.float32
    if weight.format is Format.DENSE_BF16:
        assert x.dtype == torch.bfloat16
    assert bias is None or (
        bias.dtype == torch.float32 and bias.shape == (weight.out_features,) and bias.is_contiguous()
    )
    return abi.LinearStruct(
        weight=weight.data.data_ptr(),
        bias=_pointer(bias),
        x=x.data_ptr(),
        format=weight.format,
        x_type=_TYPES[x.dtype],
        in_features=weight.in_features,
        out_features=weight.out_features,
        x_stride=x.stride(0),
    )


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _matrix(tensor: torch.Tensor, width: int) -> None:
    assert tensor.dtype in _TYPES and tensor.device.type == "cpu", (tensor.dtype, tensor.device)
    assert tensor.dim() == 2 and tensor.shape[1] == width and tensor.stride(1) == 1, (tensor.shape, width)


def _caches(k_cache: torch.Tensor, v_cache: torch.Tensor, dtype: torch.dtype, kv_heads: int, head_dim: int) -> None:
    assert head_dim % 16 == 0 and head_dim <= 256, head_dim
    assert k_cache.dtype == v_cache.dtype and k_cache.dtype in (dtype, torch.int8)
    for cache in (k_cache, v_cache):
        assert cache.is_contiguous()
        assert cache.numel() % (SUB_BLOCK * kv_heads * head_elements(head_dim, cache.dtype)) == 0
