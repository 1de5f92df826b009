from __future__ import annotations

import itertools

import pytest

from radixserve.errors import InvalidRequest
from radixserve.server.callers import PUBLIC_SALT, Caller, Callers, key_id


def test_a_known_key_is_told_by_its_name() -> None:
    callers = Callers(["alpha", "beta"], "root")
    assert callers.identify("Bearer alpha") == Caller(key_id("alpha"), admin=False)
    assert callers.identify("bearer   beta ") == Caller(key_id("beta"), admin=False)
    assert callers.identify(None, "beta") == Caller(key_id("beta"), admin=False)
    assert callers.identify("Bearer root").admin


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Bearer gamma", "Basic alpha", "alpha", "Bearer alphaa"]
)
def test_any_other_is_refused(given: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Callers(["alpha"], None).identify(given)
    assert refused.value.code == "invalid_api_key"
    assert "alpha" not in str(refused.value)


def test_a_server_without_keys_is_open_to_all_and_nobody_is_admin() -> None:
    callers = Callers([], None)
    assert callers.identify(None) == callers.identify("Bearer whatever") == Caller("", admin=False)


def test_an_open_server_still_knows_its_admin() -> None:
    callers = Callers([], "root")
    assert callers.identify("Bearer root").admin
    assert not callers.identify("Bearer toor").admin
    assert not callers.identify(None).admin


def test_namespaces_are_apart() -> None:
    callers = Callers(["a", "b"], None, b"secret")
    people = [Caller(key_id("a"), admin=False), Caller(key_id("b"), admin=False), Caller("", admin=False)]
    salts = [callers.salt(caller, salt) for caller in people for salt in (None, "x", "y", "xy")]
    for one, other in itertools.combinations(salts, 2):
        assert one != other
    assert PUBLIC_SALT not in salts
    assert callers.salt(people[0], "x") == salts[1]


def test_a_namespace_cannot_be_guessed_from_another_server() -> None:
    caller = Caller("", admin=False)
    assert Callers([], None).salt(caller, None) != Callers([], None).salt(caller, None)


@pytest.mark.parametrize("salt", ["", "s" * 1025])
def test_a_salt_has_bounds(salt: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Callers([], None).salt(Caller("", admin=False), salt)
    assert refused.value.param == "cache_salt"
