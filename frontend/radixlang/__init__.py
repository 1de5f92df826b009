"""radixlang, the language frontend of radixserve; this release contains its version only."""

__version__ = "0.1.0"
