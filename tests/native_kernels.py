"""Whether this machine can have the native kernels: a compiler, or a library built before."""

from __future__ import annotations

import pytest

from radixserve.errors import NativeUnavailable
from radixserve.native.library import NativeLibrary


def _why_not() -> str:
    try:
        NativeLibrary.load()
    except NativeUnavailable as error:
        return str(error)
    return ""


WHY_NOT = _why_not()
needs_native = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "native kernels")
