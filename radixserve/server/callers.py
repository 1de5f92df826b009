"""Who is calling: API keys, and the namespace of the cache that follows from them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.errors import InvalidRequest

_MAX_SALT = 1024
# The empty salt is public: only what the operator registers is filed under it.
PUBLIC_SALT = b""


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's sender.

    ``key_id``: names the API key without telling it; empty where the server has none. ``admin``: whether the whole
    server is theirs to see.
    """

    key_id: str
    admin: bool


class Callers:
    """Tells callers by their keys. ``secret``: of this server; namespaces of two servers are not related."""

    def __init__(self, api_keys: Sequence[str], admin_key: str | None, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._keys = {self._digest(key): key_id(key) for key in api_keys}
        self._admin = None if admin_key is None else self._digest(admin_key)

    @property
    def has_admin(self) -> bool:
        """Whether there is an admin key at all."""
        return self._admin is not None

    def identify(self, authorization: str | None, api_key: str | None = None) -> Caller:
        """The caller behind an ``Authorization`` header, or an ``X-API-Key`` header in its place.

        Raises `InvalidRequest` with code ``invalid_api_key``. Every key is compared in constant time, and all are.
        """
        given = self._given(authorization, api_key)
        digest = None if given is None else self._digest(given)
        found: str | None = None
        for known, name in self._keys.items():
            if digest is not None and hmac.compare_digest(known, digest):
                found = name
        admin = self._admin is not None and digest is not None and hmac.compare_digest(self._admin, digest)
        if admin:
            return Caller("admin", admin=True)
        if found is not None:
            return Caller(found, admin=False)
        if not self._keys:
            # An open server asks for no key, so whatever a client's library sends in its place is welcome.
            return Caller("", admin=False)
        reason = "no API key was given" if given is None else "the API key is not known here"
        raise InvalidRequest(None, f"{reason}; send it as 'Authorization: Bearer KEY'", "invalid_api_key")

    def salt(self, caller: Caller, cache_salt: str | None) -> bytes:
        """The salt of the caller's namespace: ``cache_salt`` can only narrow it, never reach into another's."""
        if cache_salt is not None and not 0 < len(cache_salt) <= _MAX_SALT:
            raise InvalidRequest("cache_salt", f"must have between 1 and {_MAX_SALT} characters")
        narrow = b"" if cache_salt is None else b"salt:" + cache_salt.encode("utf-8", "surrogatepass")
        # The length keeps (key, salt) pairs apart that would be equal when joined.
        message = len(caller.key_id).to_bytes(4, "big") + caller.key_id.encode() + narrow
        return hmac.digest(self._secret, message, "sha256")

    def sign(self, caller: Caller, name: str) -> str:
        """``name`` for the caller to keep, so that nobody else can use it."""
        return f"{name}.{self._signature(caller, name)}"

    def signed(self, caller: Caller, text: str) -> str | None:
        """The name in what `sign` gave to the same caller (an admin: to anybody); None for anything else."""
        name, dot, signature = text.rpartition(".")
        if caller.admin or hmac.compare_digest(
            signature.encode("utf-8", "surrogatepass"), self._signature(caller, name).encode()
        ):
            return name if dot else None
        return None

    def _signature(self, caller: Caller, name: str) -> str:
        message = f"hold:{len(caller.key_id)}:{caller.key_id}{name}"
        return hmac.digest(self._secret, message.encode("utf-8", "surrogatepass"), "sha256").hex()[:32]

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, b"key:" + key.encode("utf-8", "surrogatepass"), "sha256")

    @staticmethod
    def _given(authorization: str | None, api_key: str | None) -> str | None:
        if authorization is not None:
            scheme, _, value = authorization.strip().partition(" ")
            return value.strip() if scheme.lower() == "bearer" and value.strip() else None
        return api_key


def key_id(key: str) -> str:
    """A name for a key that logs and metrics may show."""
    return "key-" + hashlib.sha256(b"radixserve:" + key.encode("utf-8", "surrogatepass")).hexdigest()[:12]
