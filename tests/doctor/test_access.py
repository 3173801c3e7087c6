"""401 and 403, told apart: no credentials, wrong ones, old ones, another's, too few rights, a policy, an outage."""

from __future__ import annotations

import base64
import json
import time

import jwt
import pytest

from tests.doctor.examination import Examination
from tests.peers.http_fault import Behaviour, FaultServer, Request, Script, closed_port, respond
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-2", "DOC-4", "DOC-8")]


def token(**claims: object) -> str:
    return jwt.encode(claims, "a key that the server alone knows, and long enough", algorithm="HS256")


async def test_a_server_that_wants_a_token_gets_one_by_the_remedy(clinic: Examination) -> None:
    async with McpPeer(auth="Bearer right-token-of-clinic") as peer:
        found = await clinic.found({"url": peer.url})
        assert found.code == "HF-AUTH-NEEDED"
        clinic.matches("auth_needed", found)
        clinic.carry_out(found, SERVER_TOKEN="right-token-of-clinic")
        assert (await clinic.one()).health == "healthy"


@pytest.mark.requirement("DOC-9")
async def test_a_server_that_wants_a_password_gets_it_by_the_remedy_and_no_login(clinic: Examination) -> None:
    password = base64.b64encode(b"ann:secret-of-clinic").decode()
    async with McpPeer() as peer:

        def script(request: Request) -> Behaviour:
            given = request.headers.get("authorization") == f"Basic {password}"
            return peer.healthy if given else respond(401, "", {"www-authenticate": 'Basic realm="clinic"'})

        peer.script = script
        found = await clinic.found({"url": peer.url})
        assert found.code == "HF-AUTH-NEEDED"
        clinic.matches("password_needed", found)
        clinic.carry_out(found, SERVER_CREDENTIALS=password)
        assert (await clinic.one()).health == "healthy"
        wrong = await clinic.found({"url": peer.url, "headers": {"Authorization": "Basic b2xkOm9sZA=="}})
        assert wrong.code == "HF-AUTH-REJECTED"
        clinic.carry_out(wrong, SERVER_CREDENTIALS=password)
        assert (await clinic.one()).health == "healthy"


def guarded(peer: FaultServer, **metadata: object) -> Script:
    """A server that wants a login, and an authorization server that describes itself at the same address."""

    def answer(request: Request) -> Behaviour:
        if "oauth-protected-resource" in request.path:
            described = {"resource": f"{peer.origin}/mcp", "authorization_servers": [peer.origin]}
            return respond(200, json.dumps(described), content_type="application/json")
        if "oauth-authorization-server" in request.path and metadata:
            return respond(200, json.dumps({"issuer": peer.origin, **metadata}), content_type="application/json")
        if ".well-known" in request.path:
            return respond(404, "no")
        where = f"{peer.origin}/.well-known/oauth-protected-resource"
        return respond(401, "", {"www-authenticate": f'Bearer resource_metadata="{where}"'})

    return answer


ENDPOINTS = {
    "token_endpoint": "http://127.0.0.1:1/token",
    "authorization_endpoint": "http://127.0.0.1:1/authorize",
    "code_challenge_methods_supported": ["S256"],
}


async def test_a_server_that_names_its_authorization_server_wants_a_login(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server, **ENDPOINTS, registration_endpoint="http://127.0.0.1:1/register")
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("auth_login", found)


async def test_everything_that_a_login_needs_and_nobody_gives_is_named(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server, **ENDPOINTS)
        found = await clinic.found({"url": f"{server.origin}/mcp"})
        assert found.code == "HF-LOGIN-INPUT"
        clinic.matches("login_client_id", found)
        clinic.carry_out(found)
        assert [one.code for one in (await clinic.one()).findings] == ["HF-AUTH-NEEDED"]
        server.script = guarded(server, token_endpoint="http://127.0.0.1:1/token")
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("login_device", found)


@pytest.mark.requirement("DOC-2", "SEC-12")
async def test_a_client_id_without_its_redirect_uri_is_named(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server, **ENDPOINTS)
        found = await clinic.found({"url": f"{server.origin}/mcp", "oauth": {"clientId": "clinic"}})
        assert found.code == "HF-LOGIN-INPUT"
        clinic.matches("login_redirect", found)
        clinic.carry_out(found)
        assert [one.code for one in (await clinic.one()).findings] == ["HF-AUTH-NEEDED"]


@pytest.mark.requirement("DOC-2")
async def test_an_authorization_server_of_the_definition_needs_its_device_endpoint_too(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server)
        endpoints = {"authorizationUrl": f"{server.origin}/authorize", "tokenUrl": f"{server.origin}/token"}
        url = f"{server.origin}/mcp"
        bare = await clinic.found({"url": url, "oauth": endpoints})
        assert [edit.keys[-1] for edit in bare.remedy.edits] == ["clientId", "redirectUri", "deviceAuthorizationUrl"]
        given = {**endpoints, "clientId": "clinic", "redirectUri": "http://localhost:8765/callback"}
        found = await clinic.found({"url": url, "oauth": given})
        assert found.code == "HF-LOGIN-INPUT"
        clinic.matches("login_device_of_definition", found)
        clinic.carry_out(found)
        assert [one.code for one in (await clinic.one()).findings] == ["HF-AUTH-NEEDED"]


@pytest.mark.requirement("DOC-2", "DOC-8")
async def test_addresses_of_a_login_can_be_pasted(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server, token_endpoint="http://127.0.0.1:1/token")
        found = await clinic.found({"url": f"{server.origin}/mcp"})
        assert not [edit for edit in found.remedy.edits if "***" in edit.paste + edit.value]
        clinic.carry_out(found)
        oauth = clinic.spec().oauth
        assert (oauth.authorization_url, oauth.token_url) == (f"{server.origin}/authorize", "http://127.0.0.1:1/token")


@pytest.mark.requirement("DOC-2")
@pytest.mark.parametrize(
    ("oauth", "missing"),
    [
        ({"clientId": "clinic"}, ["redirectUri"]),
        ({"clientId": "clinic", "redirectUri": "http://localhost:1/"}, []),
        (
            {"tokenUrl": "https://h.example/t"},
            ["clientId", "redirectUri", "authorizationUrl", "deviceAuthorizationUrl"],
        ),
        (
            {"authorizationUrl": "https://h.example/a", "clientId": "clinic", "redirectUri": "http://localhost:1/"},
            ["tokenUrl", "deviceAuthorizationUrl"],
        ),
        ({"tokenUrl": "https://h.example/t", "deviceAuthorizationUrl": "https://h.example/d"}, ["clientId"]),
        ({}, []),
    ],
)
async def test_what_a_definition_lacks_for_a_login_is_named_also_where_the_server_does_not_answer(
    clinic: Examination, oauth: dict[str, object], missing: list[str]
) -> None:
    with closed_port() as port:
        server = await clinic.one({"url": f"http://127.0.0.1:{port}/mcp", "oauth": oauth})
    found = [one for one in server.findings if one.code == "HF-LOGIN-SETTINGS"]
    assert sorted(str(edit.keys[-1]) for one in found for edit in one.remedy.edits) == sorted(missing)
    if missing == ["redirectUri"]:
        clinic.matches("login_settings", found)


async def test_an_authorization_server_that_says_nothing_of_itself_is_told(clinic: Examination) -> None:
    async with FaultServer([]) as server:
        server.script = guarded(server)
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("login_no_metadata", found)


async def test_a_wrong_token_is_told_apart_from_none_and_replacing_it_is_the_cure(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINIC_TOKEN", "wrong-token-of-clinic")
    async with McpPeer(auth="Bearer right-token-of-clinic") as peer:
        definition = {"url": peer.url, "headers": {"Authorization": "Bearer ${CLINIC_TOKEN}"}}
        found = await clinic.found(definition)
        clinic.matches("auth_rejected", found)
        clinic.carry_out(found, CLINIC_TOKEN="right-token-of-clinic")
        assert (await clinic.one()).health == "healthy"


async def test_an_expired_token_says_when_it_expired(clinic: Examination) -> None:
    async with McpPeer(auth="Bearer another") as peer:
        old = token(exp=int(time.time()) - 7200)
        found = await clinic.found({"url": peer.url, "headers": {"Authorization": f"Bearer {old}"}})
    assert old not in found.model_dump_json()
    clinic.matches("auth_expired", found)


async def test_a_token_for_another_server_says_for_whom_it_is(clinic: Examination) -> None:
    async with McpPeer(auth="Bearer another") as peer:
        other = token(aud="https://elsewhere.example/mcp", exp=int(time.time()) + 7200)
        found = await clinic.found({"url": peer.url, "headers": {"Authorization": f"Bearer {other}"}})
        mine = token(aud=peer.url, exp=int(time.time()) + 7200)
        good = await clinic.found({"url": peer.url, "headers": {"Authorization": f"Bearer {mine}"}})
    clinic.matches("auth_audience", found)
    assert good.code == "HF-AUTH-REJECTED"


@pytest.mark.requirement("DOC-7")
@pytest.mark.parametrize("claims", [{"aud": "https://[no-address"}, {"exp": 1e300, "aud": "https://elsewhere.example"}])
async def test_odd_claims_of_a_token_end_no_check(clinic: Examination, claims: dict[str, object]) -> None:
    async with McpPeer(auth="Bearer another") as peer:
        headers = {"Authorization": f"Bearer {token(**claims)}"}
        found = await clinic.found({"url": peer.url, "headers": headers})
    assert found.code == ("HF-AUTH-AUDIENCE" if "exp" in claims else "HF-AUTH-REJECTED")


@pytest.mark.parametrize(
    ("said", "code"), [("The access token expired", "HF-AUTH-EXPIRED"), ("wrong audience", "HF-AUTH-AUDIENCE")]
)
async def test_what_the_server_says_of_a_token_that_cannot_be_read_is_believed(
    clinic: Examination, said: str, code: str
) -> None:
    challenge = f'Bearer error="invalid_token", error_description="{said}"'
    async with FaultServer(respond(401, "", {"www-authenticate": challenge})) as server:
        definition = {"url": f"{server.origin}/mcp", "headers": {"Authorization": "Bearer opaque-one"}}
        assert (await clinic.found(definition)).code == code


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("own", [True, False], ids=["header", "login"])
async def test_a_scope_that_is_missing_is_named(clinic: Examination, status: int, own: bool) -> None:
    challenge = 'Bearer error="insufficient_scope", scope="files:write admin"'
    async with FaultServer(respond(status, "", {"www-authenticate": challenge})) as server:
        headers = {"headers": {"Authorization": "Bearer opaque-one"}} if own else {}
        found = await clinic.found({"url": f"{server.origin}/mcp", **headers})
    assert found.code == "HF-AUTH-SCOPE"
    clinic.matches("auth_scope_header" if own else f"auth_scope_login_{status}", found)


async def test_a_denial_is_told_with_its_reason(clinic: Examination) -> None:
    async with FaultServer(respond(403, "team red may not use this")) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("denied", found)


@pytest.mark.parametrize(
    ("status", "body"), [(403, "Access is only allowed at localhost:8931"), (421, "Invalid Host header")]
)
async def test_a_server_that_refuses_the_host_in_its_url_is_told_apart_from_a_denial(
    clinic: Examination, status: int, body: str
) -> None:
    async with FaultServer(respond(status, body)) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    assert found.code == "HF-DENIED-HOST"
    clinic.matches(f"denied_host_{status}", found)


@pytest.mark.parametrize(("name", "body"), [("envoy", ""), ("agentgateway", "external authorization failed")])
async def test_a_403_that_may_hide_an_outage_names_the_switch_that_tells_them_apart(
    clinic: Examination, name: str, body: str
) -> None:
    async with FaultServer(respond(403, body)) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    assert found.code == "HF-DENIED-UNCLEAR"
    clinic.matches(f"unclear_{name}", found)


@pytest.mark.parametrize(("status", "headers"), [(403, {}), (503, {}), (403, {"server": "envoy"})])
async def test_an_outage_of_authorization_names_the_timeout_to_raise(
    clinic: Examination, status: int, headers: dict[str, str]
) -> None:
    async with FaultServer(respond(status, "Authorization service unavailable", headers)) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    assert found.code == "HF-AUTH-OUTAGE"
    clinic.matches("outage_" + headers.get("server", str(status)), found)
