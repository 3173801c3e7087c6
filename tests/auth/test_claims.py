"""What a token says of itself, read without verifying it."""

from __future__ import annotations

import base64
import json

import jwt
import pytest

from holdfast.auth.person_login import audience_of, check_audience, unverified_claims
from holdfast.errors import LoginFailed

KEY = "a-key-that-only-the-issuer-has-32-bytes"


def token(**claims: object) -> str:
    return jwt.encode(claims, KEY, algorithm="HS256")


def raw_token(payload: bytes) -> str:
    parts = (b'{"alg":"HS256"}', payload, b"signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def test_the_claims_of_a_jwt_are_read_without_its_key_even_if_it_has_expired() -> None:
    claims = unverified_claims(token(exp=1, nbf=10**10, aud=["a", "b"], iss="somebody", scope="read"))
    assert claims is not None
    assert (claims["exp"], claims["scope"], audience_of(claims)) == (1, "read", ("a", "b"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "opaque",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "ü.ü.ü",
        raw_token(b"[1]"),
        raw_token(b"no json"),
        raw_token(b"\xff"),
        raw_token(b"[" * 100_000),
        raw_token(json.dumps("text").encode()),
    ],
)
def test_a_token_that_is_no_jwt_says_nothing(text: str) -> None:
    assert unverified_claims(text) is None


def test_only_texts_count_as_an_audience() -> None:
    assert audience_of({"aud": "one"}) == ("one",)
    assert audience_of({"aud": [1, "two", None]}) == ("two",)
    assert audience_of({"aud": 3}) == audience_of({}) == ()


@pytest.mark.requirement("SEC-6")
def test_a_token_for_another_address_is_refused_and_any_other_is_left_to_the_server() -> None:
    check_audience("opaque", "https://here.example/mcp")
    check_audience(token(aud="a-word"), "https://here.example/mcp")
    check_audience(token(aud="https://here.example"), "https://here.example/mcp")
    with pytest.raises(LoginFailed, match=r"for another server: https://there\.example"):
        check_audience(token(aud="https://there.example"), "https://here.example/mcp")
