"""Own CPU kernels: a C++ library with a plain C ABI, and what is needed to build, load and describe work to it.

The library is optional. `NativeLibrary.load` gives it, or raises `NativeUnavailable` with the reason, and then the torch path serves.
"""
