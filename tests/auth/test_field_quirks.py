"""What authorization servers of the field do otherwise than the standards say, one at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast.auth.credentials import Logins
from holdfast.auth.discovery import DEVICE_GRANT, AuthorizationServer, identify, known_client
from holdfast.auth.person_login import LoginMethod
from holdfast.auth.token_endpoint import OAuthClient, as_client, configured_key, new_key, public_key, signing_algorithm
from holdfast.auth.token_store import TokenStore
from holdfast.config.spec import OAuthSettings
from holdfast.errors import LoginFailed
from tests.auth.logins import aged, logged_in, renewal
from tests.peers.guarded import PLANTED, Guarded
from tests.peers.http_fault import FaultServer, respond

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-9")]

ODD_SECRET = f"{PLANTED}a+b/c:d%e f"
BOTH = ["client_secret_basic", "client_secret_post"]


@pytest.mark.parametrize("how", ["browser", "device"])
async def test_the_form_names_the_client_with_http_basic_too(
    how: LoginMethod, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(methods=["client_secret_basic"], device_pending=0)
    kept, _ = await logged_in(peer.spec(), store, how=how)
    assert await renewal(peer.spec(), store) == "renewed"
    seen = await peer.seen("token")
    assert len(seen) == 2
    assert {(one["basic"], one["client_id"]) for one in seen} == {(True, kept.client.id)}


@pytest.mark.parametrize("accepts", [*BOTH, "plain_basic"])
async def test_a_configured_secret_is_proven_in_the_way_that_the_server_accepts(
    accepts: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(methods=BOTH, accepts=accepts, secret=ODD_SECRET, registers=False)
    spec = peer.spec(oauth={"clientId": "mine +", "clientSecret": ODD_SECRET, "issuer": peer.address})
    kept, _ = await logged_in(spec, store)
    assert kept.client.method == ("client_secret_basic" if accepts == "plain_basic" else accepts)
    assert kept.client.reads_plain == (accepts == "plain_basic")
    tried = len(await peer.seen("token"))
    assert await renewal(spec, store) == "renewed"
    assert len(await peer.seen("token")) == tried + 1, "what was accepted is remembered"


async def test_a_wrong_secret_is_told_as_that_after_each_way_was_tried(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(methods=BOTH, accepts="client_secret_post", registers=False)
    spec = peer.spec(oauth={"clientId": "mine", "clientSecret": "hf-planted-wrong", "issuer": peer.address})
    with pytest.raises(LoginFailed, match="invalid_client") as failed:
        await logged_in(spec, store)
    assert "oauth.clientSecret" in failed.value.hint
    assert len(await peer.seen("token")) == 2


@pytest.mark.parametrize("method", BOTH)
async def test_a_registration_whose_server_accepts_another_method_than_it_says_still_logs_in(
    method: str, peer: Guarded, store: TokenStore
) -> None:
    other = next(one for one in BOTH if one != method)
    await peer.behave(methods=[method, other] if method != BOTH[1] else BOTH, accepts=BOTH[0])
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.client.method == BOTH[0]


@pytest.mark.parametrize(
    ("oauth", "words", "hint"),
    [
        (
            {},
            "accepts only this client authentication: tls_client_auth",
            "Holdfast has these: none, client_secret_basic",
        ),
        (
            {"clientSecret": "hf-planted-s"},
            "accepts only this client authentication: tls_client_auth",
            "Ask the server",
        ),
    ],
)
async def test_a_server_that_takes_none_of_our_methods_is_told_by_its_own(
    oauth: dict[str, str], words: str, hint: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(methods=["tls_client_auth"])
    whole = {"clientId": "mine", "issuer": peer.address, **oauth} if oauth else {}
    with pytest.raises(LoginFailed, match=words) as failed:
        await logged_in(peer.spec(oauth=whole), store)
    assert hint in failed.value.hint
    assert await peer.seen("register") == []


async def test_a_secret_is_of_no_use_where_a_key_is_asked_for(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(methods=["private_key_jwt"])
    oauth = {"clientId": "mine", "clientSecret": "hf-planted-s", "issuer": peer.address}
    with pytest.raises(LoginFailed, match="accepts only this client authentication: private_key_jwt") as failed:
        await logged_in(peer.spec(oauth=oauth), store)
    assert "`oauth.privateKey`" in failed.value.hint


@pytest.mark.parametrize(
    "answers",
    [
        {"token_type": "bearer"},
        {"token_type": "BEARER"},
        {"token_type": None},
        {"token_type": "user"},
        {"expires_in": "3600"},
        {"expires_in": 3600.0},
        {"expires_in": None},
        {"expires_in": 0},
        {"expires_in": "soon"},
        pytest.param({"expires_in": 10**400}, id="no float holds it"),
        {"scope": ["files:read"]},
        {"scope": None},
        {"error": None},
        {"error": ""},
        {"id_token": "x.y.z", "ok": True, "authed_user": {"id": 1}},
        {"refresh_token": None},
    ],
    ids=str,
)
async def test_a_login_takes_each_form_in_which_servers_answer(
    answers: dict[str, Any], peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(answers=answers)
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.scope == "files:read"
    assert (kept.expires_at is not None) == (answers.get("expires_in", 1) in (1, "3600", 3600.0))
    assert (kept.refresh_token is None) == ("refresh_token" in answers)


@pytest.mark.parametrize(
    ("ends", "read"), [(2_000_000_000, 2e9), (0, None), (None, None), pytest.param(10**400, None, id="no float")]
)
async def test_a_registration_ends_when_its_server_says_so(ends: object, read: float | None) -> None:
    said = {"client_id": "x", "client_secret_expires_at": ends}
    async with FaultServer(respond(201, json.dumps(said))) as place:
        server = AuthorizationServer(
            issuer=place.origin, token_endpoint=place.origin, registration_endpoint=place.origin
        )
        client = await identify(server, redirect_uri="http://127.0.0.1:1/callback", scope="")
    assert client.expires_at == read


@pytest.mark.parametrize("kind", ["DPoP", "mac"])
async def test_a_token_that_needs_a_proof_is_not_taken_for_a_bearer_token(
    kind: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(answers={"token_type": kind})
    with pytest.raises(LoginFailed, match=f"it issues {kind} tokens"):
        await logged_in(peer.spec(), store)


async def test_scopes_that_come_back_with_commas_are_those_that_were_asked_for(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(answers={"scope": "files:read,files:write"})
    kept, _ = await logged_in(peer.spec(), store, scope=("files:write",))
    assert kept.scope == "files:read files:write"
    await peer.behave(answers={"scope": "with,comma"})
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.scope == "with,comma", "a scope may contain one"


async def test_tokens_in_a_form_are_tokens(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(format="form")
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.refresh_token


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"token_status": 200, "token_error": "bad_verification_code"}, r"issued no token \(`bad_verification_code`\)"),
        (
            {"token_status": 400, "token_error": "invalid_grant", "format": "form"},
            r"issued no token \(`invalid_grant`\)",
        ),
        ({"token_status": 400, "token_error": "invalid_grant", "format": "nested"}, '`invalid_grant`: "refused"'),
        ({"token_status": 400, "format": "html"}, "issued no token: the authorization server answered HTTP 400"),
        ({"token_status": 200, "format": "html"}, "issued no token: the authorization server answered HTTP 200"),
    ],
)
async def test_a_refusal_is_read_in_each_form(
    how: dict[str, Any], words: str, peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(**how)
    with pytest.raises(LoginFailed, match=words):
        await logged_in(peer.spec(), store)


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({"token_status": 200, "token_error": "invalid_grant"}, "refused"),
        ({"token_status": 200, "token_error": "bad_refresh_token"}, "refused"),
        ({"token_status": 400, "token_error": "invalid_grant", "format": "form"}, "refused"),
        ({"token_status": 400, "token_error": "invalid_grant", "format": "nested"}, "refused"),
        ({"token_status": 200, "token_error": "server_error"}, "unreachable"),
        ({"token_status": 401, "format": "html"}, "unreachable"),
        ({"token_status": 200, "format": "html"}, "unreachable"),
    ],
)
async def test_a_renewal_that_is_refused_in_another_form_ends_the_login_and_nothing_else_does(
    how: dict[str, Any], outcome: str, peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    await peer.behave(**how)
    assert await renewal(peer.spec(), store) == outcome


async def test_a_token_that_lives_for_seconds_is_not_renewed_for_each_request(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(expires_in=20)
    await logged_in(peer.spec(), store)
    bearer = Logins(store).authorize(peer.spec())
    assert bearer is not None
    assert len({await bearer.token() for _ in range(5)}) == 1
    assert await peer.renewals() == 1


@pytest.mark.parametrize("method", [None, "paste", "device"])
async def test_a_client_that_the_server_forgot_is_registered_again_before_a_page_opens(
    method: LoginMethod | None, peer: Guarded, store: TokenStore
) -> None:
    first, _ = await logged_in(peer.spec(), store, how=method or "browser")
    await peer.behave(restart=True, device_pending=0)
    second, browser = await logged_in(peer.spec(), store, how=method or "browser")
    assert second.client.id != first.client.id
    assert len(browser.visited) + len(browser.codes) == 1


async def test_a_scope_that_the_registration_lacks_is_registered_first(peer: Guarded, store: TokenStore) -> None:
    first, _ = await logged_in(peer.spec(), store)
    wider, _ = await logged_in(peer.spec(), store, scope=("files:write",))
    again, _ = await logged_in(peer.spec(), store)
    assert [one["scope"] for one in await peer.seen("register")] == ["files:read", "files:read files:write"]
    assert first.client.id != wider.client.id == again.client.id


async def test_a_registration_of_an_older_version_is_for_what_its_login_was_granted(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    store.put(replace(kept, client=replace(kept.client, scope=None)))
    again, _ = await logged_in(peer.spec(), store)
    assert again.client.id == kept.client.id
    wider, _ = await logged_in(peer.spec(), store, scope=("files:write",))
    assert wider.client.id != kept.client.id


async def test_a_registration_is_repeated_without_the_scope_that_the_server_refuses_there(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(refuses_scope_of_clients=True)
    kept, browser = await logged_in(peer.spec(), store)
    assert kept.scope == "files:read"
    assert "scope" not in (await peer.seen("register"))[-1]
    assert dict(parse_qsl(urlsplit(browser.visited[0]).query))["scope"] == "files:read"
    await logged_in(peer.spec(), store, scope=("files:write",))
    assert len(await peer.seen("register")) == 2, "a registration without a scope is for every scope"


async def test_a_server_that_knows_this_machine_by_name_alone_gets_the_name(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(refuses_numbers=True)
    for _ in range(2):
        kept, browser = await logged_in(peer.spec(), store)
        asked = dict(parse_qsl(urlsplit(browser.visited[0]).query))
        assert asked["redirect_uri"] == kept.client.redirect_uri
        assert urlsplit(kept.client.redirect_uri).hostname == "localhost"
    assert [one["scope"] for one in await peer.seen("register")] == ["files:read", "files:read"], "one was refused"


async def test_a_scope_that_the_server_does_not_know_is_told_with_what_to_write(
    peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(denies=True, denial="invalid_scope")
    with pytest.raises(LoginFailed, match="answered `invalid_scope`") as failed:
        await logged_in(peer.spec(), store)
    assert "`oauth.scope`" in failed.value.hint


@pytest.mark.parametrize(("path", "slash"), [("", "/"), ("/", ""), ("/tenant", "/"), ("/tenant/", "")])
async def test_a_slash_at_the_end_makes_no_other_issuer(
    path: str, slash: str, peer: Guarded, store: TokenStore
) -> None:
    named = f"{peer.address}{path}"
    await peer.behave(issuer=named.rstrip("/") + slash, authorization_server=named, iss=named.rstrip("/") + slash)
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.issuer == named.rstrip("/") + slash


async def test_a_registration_asks_for_no_grant_that_the_server_does_not_have(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    await peer.behave(grant_types=["authorization_code", "implicit"], restart=True)
    await logged_in(peer.spec(), store)
    first, second = await peer.seen("register")
    assert first["grant_types"] == ["authorization_code", "refresh_token", DEVICE_GRANT]
    assert second["grant_types"] == ["authorization_code"]


@pytest.mark.parametrize(
    "how",
    [
        {"breaks_at": "/.well-known/oauth-protected-resource/mcp"},
        {"breaks_at": "/.well-known/oauth-authorization-server"},
        {"names_authorization_server": False},
    ],
    ids=str,
)
async def test_metadata_is_found_where_another_address_fails(
    how: dict[str, Any], peer: Guarded, store: TokenStore
) -> None:
    await peer.behave(**how)
    kept, _ = await logged_in(peer.spec(), store)
    assert kept.issuer == peer.address


async def test_metadata_that_no_address_has_for_an_outage_is_an_outage(peer: Guarded, store: TokenStore) -> None:
    await peer.behave(breaks_at="/.well-known/")
    with pytest.raises(LoginFailed, match="it answered HTTP 500"):
        await logged_in(peer.spec(), store)


@pytest.mark.parametrize(("resource", "sent"), [(False, None), ("api://files", "api://files")])
async def test_the_resource_that_requests_name_can_be_written_or_left_out(
    resource: object, sent: str | None, peer: Guarded, store: TokenStore
) -> None:
    spec = peer.spec(oauth={"resource": resource})
    kept, browser = await logged_in(spec, store)
    assert dict(parse_qsl(urlsplit(browser.visited[0]).query)).get("resource") == sent
    aged(store, kept)
    assert await renewal(spec, store) == "renewed"
    assert [one["resource"] for one in await peer.seen("token")] == [sent, sent]
    assert kept.resource == peer.url, "it is still the login of this server"


# Keys


def pem(key: Any) -> str:
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


@pytest.mark.parametrize(
    ("key", "offered", "algorithm"),
    [
        (new_key([])[0], [], "ES256"),
        (new_key(["RS256", "PS256"])[0], ["PS256"], "PS256"),
        (pem(ec.generate_private_key(ec.SECP384R1())), [], "ES384"),
        (pem(ed25519.Ed25519PrivateKey.generate()), ["EdDSA"], "EdDSA"),
        (pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)), [], "RS256"),
    ],
    ids=["ec", "rsa-jwk", "p384", "ed25519", "rsa"],
)
def test_an_assertion_is_signed_as_its_key_and_the_server_demand(key: str, offered: list[str], algorithm: str) -> None:
    assert signing_algorithm(key, offered) == algorithm
    client = OAuthClient(id="mine", key=key, method="private_key_jwt", audience="https://auth.example")
    form, headers = as_client(replace(client, algorithm=algorithm), {"token": "x"})
    head = jwt.get_unverified_header(form["client_assertion"])
    claims = jwt.decode(form["client_assertion"], options={"verify_signature": False})
    assert (head["alg"], head.get("kid")) == (algorithm, json.loads(key)["kid"] if key.startswith("{") else None)
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("mine", "mine", "https://auth.example")
    assert 0 < claims["exp"] - claims["iat"] <= 60
    assert headers == {}
    assert form["client_id"] == "mine"


def test_a_registration_publishes_no_private_part_of_a_key() -> None:
    for offered in (["ES256"], ["RS256"]):
        key = new_key(offered)[0]
        assert {*public_key(key)} & {"d", "p", "q", "dp", "dq", "qi", "k"} == set()


def test_a_key_of_the_definition_is_a_file_or_the_key_itself(tmp_path: Path) -> None:
    key = pem(ed25519.Ed25519PrivateKey.generate())
    (tmp_path / "key.pem").write_text(key)
    assert configured_key(str(tmp_path / "key.pem")) == key
    assert configured_key(key) == key
    assert configured_key(key.replace("\n", "\\n")) == key
    with pytest.raises(LoginFailed, match="No such file"):
        configured_key(str(tmp_path / "other.pem"))


def test_a_text_that_is_no_key_is_told_as_that_before_a_page_opens() -> None:
    server = AuthorizationServer(issuer="https://auth.example", token_endpoint="https://auth.example/token")
    for text in ('{"kty": "oct", "k": "AAAA"}', "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"):
        with pytest.raises(LoginFailed, match="not a private key that Holdfast can sign with"):
            known_client(OAuthSettings(client_id="mine", private_key=text), server, (), 0.0)
