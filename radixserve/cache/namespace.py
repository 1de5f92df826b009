"""Who may share prefixes with whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Namespace:
    """Part of every cache key: prefixes are shared inside one namespace only.

    ``model``: fingerprint of weights and tokenizer. ``adapter``: name of an adapter or empty. ``salt``: separates
    tenants; the empty salt is public: prefixes stored under it are seen by every salt of the same model and adapter.
    """

    model: str
    adapter: str = ""
    salt: bytes = b""

    @property
    def tree(self) -> tuple[str, str]:
        """The tree it lives in; salts part a tree further down."""
        return (self.model, self.adapter)
