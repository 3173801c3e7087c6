"""Who sends a request: found in one place, by a JWT, a named token or a trusted gateway; else it is local."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import MCPError
from starlette.datastructures import Headers

from holdfast.access.jwt import JwtVerifier
from holdfast.access.principals import (
    CLIENT_HEADER,
    CLIENT_META_KEY,
    GATEWAY_SECRET_HEADER,
    LOCAL,
    ClientKey,
    HubPrincipals,
    Principal,
    TokenPolicy,
    TokensFile,
    TrustedGateway,
    client_key_in,
)
from holdfast.errors import UsageError
from tests.access.test_guard import endpoint, post
from tests.peers.http_fault import FaultServer, respond
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-18")]

TOKEN, OTHER, SECRET = "token-of-the-build", "token-of-the-deploy", "secret-of-the-gateway"


def entry(name: str, token: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest(), **more}


def holder(file: TokensFile, token: str) -> Principal | None:
    return file.holder(hashlib.sha256(token.encode()).digest())


def written(file: Path, *entries: dict[str, Any]) -> Path:
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"tokens": entries}))
    fresh.chmod(0o600)
    return fresh.replace(file)


class Wall:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_named_token_lets_its_holder_in_until_it_expires(tmp_path: Path) -> None:
    wall = Wall()
    named = entry("build", TOKEN, groups=["ci"], expires="1970-01-12T13:56:40+00:00")  # 1,000,600 s
    file = TokensFile(written(tmp_path / "tokens.json", named), wall=wall)
    found = holder(file, TOKEN)
    assert (found, found and found.groups, holder(file, OTHER)) == (Principal(name="build"), frozenset({"ci"}), None)
    wall.now += 601
    assert holder(file, TOKEN) is None


async def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_old_tokens(tmp_path: Path) -> None:
    wall = Wall()
    path = written(tmp_path / "tokens.json", entry("build", TOKEN))
    file = TokensFile(path, wall=wall)
    written(path, entry("deploy", OTHER))
    wall.now += 2
    assert (holder(file, TOKEN), holder(file, OTHER)) == (None, Principal(name="deploy"))
    path.write_text("no json")
    wall.now += 2
    assert holder(file, OTHER) == Principal(name="deploy")


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry("local", TOKEN)],
        [entry("caller", TOKEN)],
        [entry("issuer#ada", TOKEN)],
        [{"name": "build", "sha256": "abc"}],
        [{"name": "build"}],
        [entry("build", TOKEN), entry("build", OTHER)],
        [entry("build", TOKEN, groups="ci")],
        [entry("build", TOKEN, expires="soon")],
    ],
)
async def test_a_file_that_could_confuse_two_principals_is_refused(tmp_path: Path, entries: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"tokens\.json"):
        TokensFile(written(tmp_path / "tokens.json", *entries))


async def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.json", entry("build", TOKEN))
    os.chmod(path, 0o666)  # noqa: PTH101 - the attack
    with pytest.raises(UsageError, match="other users of this machine can read or write"):
        TokensFile(path)


async def test_a_session_belongs_to_the_holder_of_its_token(tmp_path: Path) -> None:
    file = TokensFile(written(tmp_path / "tokens.json", entry("build", TOKEN), entry("deploy", OTHER)))
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with endpoint(TokenPolicy(file=file)) as http:
        stranger = await post(http, authorization="Bearer nothing")
        opened = await post(http, authorization=f"Bearer {TOKEN}")
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        own = await post(http, body=ping, authorization=f"Bearer {TOKEN}", **session)
        other = await post(http, body=ping, authorization=f"Bearer {OTHER}", **session)
    assert [one.status_code for one in (stranger, opened, own, other)] == [401, 200, 200, 404]


async def test_a_gateways_headers_count_only_with_its_secret() -> None:
    policy = TokenPolicy(gateway=TrustedGateway(secret=SECRET))
    ada = {"x-forwarded-user": "ada", "x-forwarded-groups": "dev, ops"}
    async with endpoint(policy) as http:
        forged = await post(http, **ada)
        guessed = await post(http, **ada, **{GATEWAY_SECRET_HEADER.lower(): "secret-of-nothing"})
        named = await post(http, **ada, **{GATEWAY_SECRET_HEADER.lower(): SECRET})
        unnamed = await post(http, **{GATEWAY_SECRET_HEADER.lower(): SECRET})
    assert [one.status_code for one in (forged, guessed, named, unnamed)] == [401, 401, 200, 401]


async def test_a_gateways_headers_count_over_mutual_tls_and_not_over_plain_tls() -> None:
    policy = TokenPolicy(gateway=TrustedGateway(mtls=True))
    ada = Headers({"x-forwarded-user": "ada", "x-forwarded-groups": "dev,ops"})
    found = await policy.identify(ada, client_verified=True)
    assert (found, found and found.groups) == (Principal(name="gateway#ada"), frozenset({"dev", "ops"}))
    assert await policy.identify(ada) is None
    with pytest.raises(UsageError, match="secret or mTLS"):
        TrustedGateway()


async def test_groups_and_scopes_come_from_the_claims_that_are_named(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    claims = {
        "iss": "i",
        "aud": "hub",
        "sub": "ada",
        "exp": time.time() + 600,
        "roles": ["dev", 7],
        "scp": "read write",
    }
    verify = JwtVerifier(issuer="i", audience="hub", keys=str(pem), groups_claim="roles", scopes_claim="scp")
    found = await verify(jwt.encode(claims, key, algorithm="ES256"))
    assert found is not None
    assert (found.name, found.groups, found.scopes) == ("i#ada", frozenset({"dev"}), frozenset({"read", "write"}))


async def test_another_claim_than_the_subject_may_name_the_user(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    claims = {"iss": "i", "aud": "hub", "sub": "of-this-application", "exp": time.time() + 600}
    verify = JwtVerifier(issuer="i", audience="hub", keys=str(pem), user_claim="oid")
    found = await verify(jwt.encode({**claims, "oid": "ada"}, key, algorithm="ES256"))
    assert found is not None
    assert found.name == "i#ada"
    nameless: list[dict[str, object]] = [
        {},
        {"oid": ""},
        {"oid": ["ada"]},
        {"oid": 7},
        {"oid": "a\nb"},
        {"oid": "\ud800"},
    ]
    for wrong in nameless:
        assert await verify(jwt.encode({**claims, **wrong}, key, algorithm="ES256")) is None


@pytest.mark.parametrize("expires", [[1], float("inf"), {}, None, "soon"])
async def test_a_token_with_a_time_that_is_none_does_not_verify(tmp_path: Path, expires: object) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    verify = JwtVerifier(issuer="i", audience="hub", keys=str(pem))
    claims = {"iss": "i", "aud": "hub", "sub": "ada", "exp": expires}
    signed = jwt.PyJWS().encode(json.dumps(claims).encode(), key, algorithm="ES256")
    assert await verify(signed) is None


@pytest.mark.parametrize(
    "found",
    [
        '{"keys": ["key"]}',
        '{"keys": {"a": 1}}',
        '{"keys": [{"kty": 7}]}',
        "[]",
        '{"keys": [null]}',
        '{"keys": [{"kty": "oct", "k": "AQAB", "kid": ["a"]}]}',
        '{"keys": [{"kty": "oct", "k": "AQAB", "kid": "a", "alg": ["x"]}]}',
    ],
)
async def test_an_issuer_whose_keys_are_none_lets_no_caller_in(found: str, caplog: pytest.LogCaptureFixture) -> None:
    async with FaultServer(respond(200, found)) as issuer:
        verify = JwtVerifier(issuer="i", audience="hub", keys=issuer.origin)
        claims = {"iss": "i", "aud": "hub", "sub": "ada", "exp": time.time() + 600}
        key = ec.generate_private_key(ec.SECP256R1())
        assert await verify(jwt.encode(claims, key, algorithm="ES256", headers={"kid": "a"})) is None
    assert "the issuer's keys could not be fetched" in caplog.text


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("https://127.0.0.1:99999/keys", "OverflowError"),
        ("https://127.0.0.1:x/keys", "its URL cannot be read"),
        ("http://127.0.0.1:{port}/keys", "refused"),
    ],
)
async def test_an_address_of_keys_that_leads_nowhere_lets_no_caller_in_and_the_log_says_why(
    address: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    verify = JwtVerifier(issuer="i", audience="hub", keys=address.format(port=free_port()))
    claims = {"iss": "i", "aud": "hub", "sub": "ada", "exp": time.time() + 600}
    key = ec.generate_private_key(ec.SECP256R1())
    assert await verify(jwt.encode(claims, key, algorithm="ES256", headers={"kid": "a"})) is None
    assert why in caplog.text


KEY_OF_CLIENT = "k" * 16


def key_in(header: str | None = None, meta: dict[str, Any] | None = None) -> ClientKey | None:
    return client_key_in(Headers({CLIENT_HEADER: header} if header is not None else {}), Principal(name="ann"), meta)


def test_a_client_is_known_by_its_key_in_the_header_or_in_the_meta_of_a_request() -> None:
    known = ClientKey("ann", KEY_OF_CLIENT)
    assert key_in(KEY_OF_CLIENT) == key_in(meta={CLIENT_META_KEY: KEY_OF_CLIENT}) == known
    assert key_in(KEY_OF_CLIENT, {CLIENT_META_KEY: KEY_OF_CLIENT}) == known
    assert key_in() is key_in(meta={}) is None
    assert KEY_OF_CLIENT not in repr(known), "another client could use it"


@pytest.mark.parametrize(
    ("header", "meta"),
    [
        ("k" * 15, None),
        ("k" * 129, None),
        ("k" * 15 + " ", None),
        ("", None),
        (KEY_OF_CLIENT, {CLIENT_META_KEY: "another" + KEY_OF_CLIENT}),
        (None, {CLIENT_META_KEY: [KEY_OF_CLIENT]}),
    ],
)
def test_a_key_that_is_short_long_or_not_one_is_refused_and_never_another_client(
    header: str | None, meta: dict[str, Any] | None
) -> None:
    with pytest.raises(MCPError, match="16 to 128"):
        key_in(header, meta)


class Noted:
    """Keeps the tokens of users that were verified."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []

    def wants(self, principal: str, token: str) -> bool:
        return (principal, token) not in self.noted

    def note(self, principal: str, token: str) -> None:
        self.noted.append((principal, token))


async def verify(token: str, path: str = "") -> Principal | None:
    return Principal(name=f"https://idp#{token}", source="jwt") if token != "bad" else None


@pytest.mark.requirement("AUTH-6")
async def test_the_token_of_a_user_is_noted_once_it_is_verified_and_only_for_its_own_user() -> None:
    subjects = Noted()
    policy = TokenPolicy(tokens={"ci": TOKEN}, verify=verify, gateway=TrustedGateway(secret=SECRET), subjects=subjects)
    for token in ("ann", TOKEN, "bad"):
        await policy.identify({"authorization": f"Bearer {token}"})
    assert subjects.noted == [("https://idp#ann", "ann")]
    named = {GATEWAY_SECRET_HEADER.lower(): SECRET, "x-forwarded-user": "bob"}
    gateway = (await policy.identify(named)) or LOCAL
    for token in ("bob", "bob", "ann", "bad"):
        await policy.identify({**named, "authorization": f"Bearer {token}"})
    assert subjects.noted[1:] == [(gateway.name, "bob")]


async def test_a_static_token_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    file = TokensFile(written(tmp_path / "tokens.json", entry("deploy", OTHER)))
    policy = TokenPolicy(tokens={"ci": TOKEN}, file=file)
    hashed = [hashlib.sha256(one.encode()).digest() for one in (TOKEN, OTHER, "unknown")]
    assert [found.name if (found := policy.holder(one)) else None for one in hashed] == ["ci", "deploy", None]
    assert TokenPolicy(tokens={"ci": TOKEN}).holder(hashed[1]) is None


async def test_a_hub_names_its_principal_or_speaks_for_itself() -> None:
    known = HubPrincipals()
    assert await known.identify({"holdfast-principal": '"ann"'}) == Principal(name="ann", source="hub")
    own = await known.identify({})
    assert own is not None
    assert (own.name, own.source) == (LOCAL.name, "hub")
