"""Assertions of the hub about its callers: short-lived, for one server, and verified by the key set."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from holdfast.access.jwt import IdentityAssertions
from holdfast.keys import KeyRing

pytestmark = pytest.mark.requirement("SEC-20")

ISSUER, SECRET, UP = "https://hub.example", b"s" * 32, "https://up.example"


def verified(assertion: str, keys: dict[str, Any], audience: str) -> dict[str, Any]:
    """What a server makes of an assertion, by the key set that the hub publishes."""
    key = jwt.PyJWKSet.from_dict(keys)[jwt.get_unverified_header(assertion)["kid"]]
    claims: dict[str, Any] = jwt.decode(
        assertion, key, algorithms=["ES256"], audience=audience, issuer=ISSUER, options={"verify_exp": False}
    )
    return claims


def test_a_new_secret_signs_at_once_and_the_key_of_the_old_one_stays_in_the_set() -> None:
    rings = [KeyRing([SECRET])]
    signs = IdentityAssertions(ISSUER, lambda: rings[0], wall=lambda: 1000.0)
    first, before = signs("ada", UP), signs.key_set()
    rings[0] = KeyRing([b"n" * 32, SECRET])
    renewed = signs("ada", UP)
    assert jwt.get_unverified_header(renewed)["kid"] == signs.key_set()["keys"][0]["kid"]
    assert signs.key_set()["keys"][1:] == before["keys"]
    assert verified(first, signs.key_set(), UP)["sub"] == "ada"
    assert repr(signs) == f"<IdentityAssertions of {ISSUER}>"


def test_every_replica_with_the_secret_verifies_an_assertion_and_another_server_does_not() -> None:
    ring = KeyRing([SECRET])
    here, there = (IdentityAssertions(ISSUER, lambda: ring, wall=lambda: 1000.0) for _ in range(2))
    assertion = here("ada", UP)
    assert here.key_set() == there.key_set() == here.key_set(), "a key is made once, and is the same everywhere"
    claims = verified(assertion, there.key_set(), UP)
    assert (claims["sub"], claims["iat"], claims["exp"]) == ("ada", 1000, 1060)
    with pytest.raises(jwt.InvalidAudienceError):
        verified(assertion, there.key_set(), "https://other.example")
    with pytest.raises(KeyError):
        verified(assertion, IdentityAssertions(ISSUER, lambda: KeyRing([b"o" * 32])).key_set(), UP)


def test_a_clock_that_is_set_back_makes_no_assertion_live_longer() -> None:
    now = [1000.0]
    signs = IdentityAssertions(ISSUER, lambda: KeyRing([SECRET]), wall=lambda: now[0])
    signs("ada", UP)
    now[0] -= 500
    assert verified(signs("ada", UP), signs.key_set(), UP)["exp"] == 560
