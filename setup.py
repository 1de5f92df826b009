"""What `pyproject.toml` cannot say: the CPU kernels are compiled into the package where there is a compiler.

Without one the package is complete all the same: the kernels are compiled at first use where a compiler turns up later,
and torch serves until then.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PACKAGE = Path(__file__).parent / "radixserve"


def _native_build() -> types.ModuleType:
    """`radixserve.native.build`, loaded without the package around it, whose dependencies need not be installed yet."""
    package = types.ModuleType(PACKAGE.name)
    package.__path__ = [str(PACKAGE)]
    sys.modules[PACKAGE.name] = package
    return importlib.import_module("radixserve.native.build")


native = _native_build()


class BuildWithKernels(build_py):
    """Copies the package, then compiles the kernels beside their binding; an editable install has them made at first use."""

    def run(self) -> None:
        """Run the command; a failing compilation is told and not fatal."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "radixserve" / "native"
        for stale in target.glob("libradixserve-*.so"):
            stale.unlink()
        try:
            native.compile_library(target)
        except native.NativeUnavailable as error:
            self.warn(f"the CPU kernels are left out: {error}")


class KernelDistribution(Distribution):
    """A distribution that belongs to one platform where kernels are compiled into it."""

    def has_ext_modules(self) -> bool:
        """Whether there is a compiler."""
        return native.find_compiler() is not None


class KernelWheel(bdist_wheel):
    """A wheel for any Python 3: the library has a plain C interface and no Python headers."""

    def get_tag(self) -> tuple[str, str, str]:
        """The platform's tag without a Python version or ABI."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    distclass=KernelDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": KernelWheel},
)
