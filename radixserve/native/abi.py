"""The structs of ``src/abi.h`` as ctypes; field meanings are documented there."""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p

ABI_VERSION = 5


class Type(enum.IntEnum):
    """Element types."""

    F32 = 0
    BF16 = 1
    INT8 = 2


class Format(enum.IntEnum):
    """How a weight matrix is stored."""

    DENSE_F32 = 0
    DENSE_BF16 = 1
    Q8_0 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q4_K = 5
    Q6_K = 6


class Kind(enum.IntEnum):
    """Operations."""

    EMBEDDING = 0
    NORM = 1
    LINEAR = 2
    ROPE_APPEND = 3
    ATTENTION = 4
    SILU_MUL = 5
    TOP_K = 6
    LINEAR_TOP_K = 7


class Rows(enum.IntEnum):
    """Which rows of the batch an operation works on."""

    ALL_TOKENS = 0
    WANTED = 1


class Status(enum.IntEnum):
    """What ``rs_run`` returns."""

    OK = 0
    NO_MEMORY = 1
    BAD_OPERATION = 2


class BatchStruct(ctypes.Structure):
    """``RsBatch``."""

    _fields_ = [
        ("tokens", c_int64),
        ("requests", c_int64),
        ("wanted", c_int64),
        ("table_stride", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("tables", c_void_p),
        ("wanted_rows", c_void_p),
    ]


class OpStruct(ctypes.Structure):
    """``RsOp``."""

    _fields_ = [("kind", c_int32), ("rows", c_int32), ("params", c_void_p)]


class EmbeddingStruct(ctypes.Structure):
    """``RsEmbedding``."""

    _fields_ = [
        ("table", c_void_p),
        ("out", c_void_p),
        ("format", c_int32),
        ("out_type", c_int32),
        ("vocab", c_int64),
        ("width", c_int64),
        ("out_stride", c_int64),
    ]


class NormStruct(ctypes.Structure):
    """``RsNorm``."""

    _fields_ = [
        ("x", c_void_p),
        ("delta", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("x_type", c_int32),
        ("out_type", c_int32),
        ("width", c_int64),
        ("x_stride", c_int64),
        ("delta_stride", c_int64),
        ("residual_stride", c_int64),
        ("out_stride", c_int64),
        ("eps", c_float),
    ]


class LinearStruct(ctypes.Structure):
    """``RsLinear``."""

    _fields_ = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("x", c_void_p),
        ("out", c_void_p),
        ("format", c_int32),
        ("x_type", c_int32),
        ("out_type", c_int32),
        ("gated", c_int32),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
    ]


class RopeAppendStruct(ctypes.Structure):
    """``RsRopeAppend``."""

    _fields_ = [
        ("qkv", c_void_p),
        ("q_out", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("cos_table", c_void_p),
        ("sin_table", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv_type", c_int32),
        ("q_type", c_int32),
        ("kv_type", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
        ("reserved", c_int32),
        ("qkv_stride", c_int64),
        ("q_stride", c_int64),
    ]


class AttentionStruct(ctypes.Structure):
    """``RsAttention``."""

    _fields_ = [
        ("q", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("out", c_void_p),
        ("q_type", c_int32),
        ("kv_type", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("reserved", c_int32),
        ("q_stride", c_int64),
        ("out_stride", c_int64),
    ]


class SiluMulStruct(ctypes.Structure):
    """``RsSiluMul``."""

    _fields_ = [
        ("x", c_void_p),
        ("out", c_void_p),
        ("x_type", c_int32),
        ("out_type", c_int32),
        ("width", c_int64),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
    ]


class TopKStruct(ctypes.Structure):
    """``RsTopK``."""

    _fields_ = [
        ("logits", c_void_p),
        ("ids", c_void_p),
        ("values", c_void_p),
        ("vocab", c_int64),
        ("k", c_int64),
        ("stride", c_int64),
    ]


class LinearTopKStruct(ctypes.Structure):
    """``RsLinearTopK``."""

    _fields_ = [("linear", LinearStruct), ("ids", c_void_p), ("values", c_void_p), ("k", c_int64)]


class CountersStruct(ctypes.Structure):
    """``RsCounters``."""

    _fields_ = [
        ("kv_bytes_read", c_int64),
        ("kv_bytes_asked", c_int64),
        ("attention_tasks", c_int64),
        ("operations_by_rows", c_int64),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Give the library's functions their types."""
    signatures: dict[str, tuple[object, list[object]]] = {
        "rs_abi_version": (c_int32, []),
        "rs_set_isa": (c_char_p, [c_char_p]),
        "rs_isa": (c_char_p, []),
        "rs_set_threads": (c_int32, [c_int32]),
        "rs_threads": (c_int32, []),
        "rs_run": (c_int32, [ctypes.POINTER(OpStruct), c_int64, ctypes.POINTER(BatchStruct)]),
        "rs_counters": (None, [ctypes.POINTER(CountersStruct)]),
        "rs_reset_counters": (None, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
