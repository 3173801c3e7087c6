"""A hub at its issuer: MCP clients find it by the challenge, and people sign in to the status page by their browser.

The hub is a real process, the issuer is ``oidc-provider``, the MCP client is the SDK's with its own OAuth.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
import pytest
from anyio.streams.text import TextReceiveStream
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditRecord
from holdfast.files import replace_file
from tests.auth.issuer import SECRET, Person, issuer_for
from tests.auth.real_servers import NODE_MODULES, NODE_PROGRAMS
from tests.cli.serve_process import Served, run, served
from tests.harness.served_hub import text_of
from tests.harness.waiting import asked
from tests.peers.everything import node
from tests.peers.mcp_http import McpPeer
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-20")]

CONTROL = "the-control-token-of-this-test"

ROLES = {"operate": {"groups": ["sre"]}, "read": {"groups": ["dev"]}}
TOKENS = {"tokens": [{"name": "ci", "sha256": "%s", "groups": ["dev"]}]}
CI = "the-token-of-the-build-0123456789"


@dataclass
class Guarded:
    """A hub that has an issuer, and the server behind it."""

    hub: Served
    base: str
    issuer: str
    peer: McpPeer


def records(folder: Path, event: str) -> list[AuditRecord]:
    """What the audit of a hub that ended has of one kind."""
    return [one for one in AuditReader(folder / "audit", AuditFilter()).read() if one.event == event]


@asynccontextmanager
async def guarded(
    folder: Path,
    *more: str,
    client: str = "holdfast",
    servers: Mapping[str, Any] | None = None,
    access: Mapping[str, Any] | None = None,
    **environ: str,
) -> AsyncIterator[Guarded]:
    """Run a hub whose callers and people are those of an issuer; it may have more servers, and rules."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS) % hashlib.sha256(CI.encode()).hexdigest())
    tokens.chmod(0o600)
    async with McpPeer() as peer:
        with issuer_for(base) as issuer:
            file = folder / "mcp.json"
            defined = {"peer": {"type": "http", "url": peer.url}, **(servers or {})}
            own = {"access": {"roles": ROLES, **(access or {})}, "audit": {"path": str(folder / "audit")}}
            file.write_text(json.dumps({"mcpServers": defined, "holdfast": own}))
            arguments = ["--config", str(file), "--public-url", base, "--tokens-file", str(tokens)]
            arguments += ["--jwt-issuer", issuer, "--jwt-keys", f"{issuer}/jwks", "--oidc-client-id", client]
            if client == "holdfast":
                arguments += ["--oidc-client-secret-file", str(secret)]
            control = {"HOLDFAST_CONTROL_TOKEN": CONTROL, **environ}
            async with served(folder / "home", *arguments, *more, port=str(port), **control) as hub:
                yield Guarded(hub, base, issuer, peer)
                hub.send(signal.SIGTERM)  # so that its audit is whole
                await hub.ended()


class Storage:
    """What an MCP client keeps of its login."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def logging_in(url: str, person: Person, kept: Storage) -> OAuthClientProvider:
    """The SDK's own OAuth client, whose user is this person."""
    ended: list[str] = []
    back = "http://127.0.0.1:1/callback"

    async def open_page(address: str) -> None:
        answer = await person.visit(address, until=back)
        ended.append(answer.headers["location"])

    async def came_back() -> AuthorizationCodeResult:
        found = {name: values[0] for name, values in parse_qs(urlsplit(ended[-1]).query).items()}
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))

    about = OAuthClientMetadata.model_validate(
        {"client_name": "a client", "redirect_uris": [back], "application_type": "native"}
    )
    return OAuthClientProvider(url, about, kept, open_page, came_back)


@pytest.mark.parametrize("path", ["/mcp", "/mcp?tools=find", "/servers/peer/mcp"])
async def test_an_sdk_client_finds_the_issuer_by_the_challenge_logs_in_and_calls(path: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub:
        url, kept, ada = f"{hub.base}{path}", Storage(), Person("ada")
        with anyio.fail_after(60):
            async with (
                httpx2.AsyncClient(auth=logging_in(url, ada, kept), trust_env=False) as http,
                Client(streamable_http_client(url, http_client=http), cache=None) as client,
            ):
                if "find" in path:
                    said = await client.call_tool("call_tool", {"name": "peer__echo", "arguments": {"text": "hi"}})
                else:
                    tools = [one.name for one in (await client.list_tools()).tools]
                    name = next(one for one in tools if one.endswith("echo"))
                    said = await client.call_tool(name, {"text": "hi"})
        assert "hi" in text_of(said)
        assert kept.tokens is not None
        # The server gets nothing of the caller's token.
        seen = " ".join(str(request.headers) for request in hub.peer.requests)
        assert kept.tokens.access_token not in seen
        assert "Bearer" not in seen
        # Its audience is this endpoint: no other one takes it.
        other = "/servers/other/mcp" if path != "/servers/peer/mcp" else "/mcp"
        headers = {"authorization": f"Bearer {kept.tokens.access_token}", "accept": "application/json"}
        async with httpx2.AsyncClient(trust_env=False, headers=headers) as http:
            assert (await http.post(f"{hub.base}{other}", json={})).status_code == 401
    called = [one.principal for one in records(tmp_path, "call") if one.tool == "echo"]
    assert called == [f"{hub.issuer}#ada"]


async def test_a_client_on_the_typescript_sdk_logs_in_the_same_way(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub:
        environment = {"URL": f"{hub.base}/mcp", "TOOL": "peer__echo", "PATH": os.environ["PATH"]}
        program = NODE_PROGRAMS / "mcp_client.cjs"
        with anyio.fail_after(60):
            async with await anyio.open_process(
                [str(node()), str(program)], env={**environment, "NODE_PATH": str(NODE_MODULES)}
            ) as client:
                assert client.stdin is not None
                assert client.stdout is not None
                said = TextReceiveStream(client.stdout)
                visit = json.loads(await said.receive())["visit"]
                answer = await Person("ada").visit(visit, until="http://127.0.0.1:1/callback")
                assert "error" not in answer.headers["location"], (visit, answer.headers["location"])
                await client.stdin.send(f"{answer.headers['location']}\n".encode())
                assert json.loads(await said.receive()) == {"result": "hi"}
    called = [one.principal for one in records(tmp_path, "call") if one.tool == "echo"]
    assert called == [f"{hub.issuer}#ada"]


async def test_a_gateway_names_the_person_at_the_browser(tmp_path: Path) -> None:
    secret = tmp_path / "gateway"
    secret.write_text("secret-of-the-gateway-0123456789")
    secret.chmod(0o600)
    async with guarded(tmp_path, "--gateway-secret-file", str(secret)) as hub:
        named = {"x-forwarded-user": "eve", "x-forwarded-groups": "dev"}
        async with httpx2.AsyncClient(base_url=hub.base, trust_env=False, headers=named) as http:
            assert (await http.get("/api/me")).status_code == 401
            http.headers["holdfast-gateway-secret"] = "secret-of-the-gateway-0123456789"
            me = (await http.get("/api/me")).json()
            assert (me["principal"], me["roles"], me["signed_in"]) == ("gateway#eve", ["read"], False)
            assert b'data-known="yes"' in (await http.get("/")).content


async def test_a_command_works_with_the_own_token_of_a_principal_and_names_the_missing_role(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub:
        own = partial(run, home=tmp_path / "elsewhere", HOLDFAST_CONTROL_TOKEN=CI)
        shown = await anyio.to_thread.run_sync(partial(own, "status", "--url", hub.base))
        assert (shown.returncode, "peer" in shown.stdout) == (0, True), shown.stderr
        refused = await anyio.to_thread.run_sync(partial(own, "disable", "peer", "--url", hub.base))
        assert refused.returncode != 0
        assert "this needs the role `operate`, which ci does not have" in refused.stderr


async def test_a_stranger_learns_the_issuer_and_nothing_about_the_servers(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub, httpx2.AsyncClient(base_url=hub.base, trust_env=False) as http:
        known = await http.post("/servers/peer/mcp", json={})
        unknown = await http.post("/servers/none/mcp", json={})
        for answer, name in ((known, "peer"), (unknown, "none")):
            assert answer.status_code == 401
            where = f"{hub.base}/.well-known/oauth-protected-resource/servers/{name}/mcp"
            assert answer.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
            about = (await http.get(where)).json()
            assert about["resource"] == f"{hub.base}/servers/{name}/mcp"
            assert about["authorization_servers"] == [hub.issuer]
        assert known.json() == unknown.json()
        wrong = await http.post("/mcp", json={}, headers={"authorization": "Bearer nonsense"})
        assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
        assert (await http.get("/.well-known/oauth-protected-resource")).json()["resource"] == hub.base
        assert (await http.get("/.well-known/oauth-protected-resource/elsewhere")).status_code == 404


@pytest.mark.parametrize("client", ["holdfast", "holdfast-public"])
async def test_a_person_signs_in_at_the_issuer_and_has_her_roles_and_leaves(client: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, client=client) as hub:
        ada = Person("ada")
        assert (await ada.http.get(f"{hub.base}/api/me")).status_code == 401
        page = await ada.visit(f"{hub.base}/signin?to=/%23activity")
        assert (page.status_code, str(page.url)) == (200, f"{hub.base}/#activity")
        me = (await ada.http.get(f"{hub.base}/api/me")).json()
        assert (me["principal"], me["roles"], me["signed_in"]) == (f"{hub.issuer}#ada", ["operate", "read"], True)
        assert 0 < me["expires_in"] <= 12 * 3600
        # A page of another site cannot act for her: its requests name no origin of this hub.
        off = f"{hub.base}/api/servers/peer/disable"
        assert (await ada.http.post(off)).status_code == 403
        assert (await ada.http.post(off, headers={"origin": "https://evil.example"})).status_code == 403
        assert (await ada.http.post(off, headers={"origin": hub.base})).status_code == 200
        lacking = await ada.http.post(f"{hub.base}/api/servers/peer/approve", json={}, headers={"origin": hub.base})
        assert (lacking.status_code, "role `approve`" in lacking.json()["error"]) == (403, True)
        (cookie,) = [one for one in ada.http.cookies.jar if one.name.endswith("-session")]
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "lax"
        stolen = {cookie.name: str(cookie.value)}
        assert (await ada.http.post(f"{hub.base}/signout", headers={"origin": hub.base})).status_code == 200
        assert (await ada.http.get(f"{hub.base}/api/me")).status_code == 401
        async with httpx2.AsyncClient(trust_env=False, cookies=stolen) as thief:
            assert (await thief.get(f"{hub.base}/api/me")).status_code == 401
    name = f"{hub.issuer}#ada"
    signs = [(one.principal, one.method, one.outcome) for one in records(tmp_path, "sign-in")]
    assert signs == [(name, "oidc", "done"), (name, "sign-out", "done")]
    switched = [(one.principal, one.method, one.outcome) for one in records(tmp_path, "switch")]
    assert switched == [(name, "disable", "done")]
    assert [(one.principal, one.outcome) for one in records(tmp_path, "approval")] == [(name, "refused")]


async def test_an_answer_of_the_issuer_signs_in_only_the_browser_that_asked_for_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub:
        ada, bob = Person("ada"), Person("bob")
        answer = await ada.visit(f"{hub.base}/signin?to=//evil.example/x", until=f"{hub.base}/signin/callback")
        address = str(answer.url.join(answer.headers["location"]))
        # Another browser gets nothing of her answer, with or without a sign-in of its own.
        assert "did not begin a sign-in" in (await bob.http.get(address)).text
        await bob.visit(f"{hub.base}/signin", until=f"{hub.base}/signin/callback")
        assert "answer to another request" in (await bob.http.get(address)).text
        assert (await bob.http.get(f"{hub.base}/api/me")).status_code == 401
        other = await ada.http.get(address.replace("iss=", "iss=https%3A%2F%2Fevil.example&was="))
        assert "was asked (its `iss` is wrong)" in other.text.replace("&#x27;", "'")
        # Her own browser is signed in by it, once, and stays at this hub.
        landed = await ada.http.get(address)
        assert (landed.status_code, landed.headers["location"]) == (303, f"{hub.base}/")
        assert (await ada.http.get(address)).status_code == 401
        assert (await ada.http.get(f"{hub.base}/api/me")).json()["principal"] == f"{hub.issuer}#ada"


async def test_too_many_groups_for_a_cookie_are_refused_with_the_remedy(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub:
        answer = await Person("crowd").visit(f"{hub.base}/signin")
        assert answer.status_code == 401
        assert "too many groups" in answer.text


async def test_the_claim_that_names_callers_names_people_too(tmp_path: Path) -> None:
    async with guarded(tmp_path, "--jwt-user-claim", "oid") as hub:
        bob = Person("bob")
        await bob.visit(f"{hub.base}/signin")
        me = (await bob.http.get(f"{hub.base}/api/me")).json()
        assert (me["principal"], me["roles"]) == (f"{hub.issuer}#oid-bob", ["read"])


async def test_a_token_that_is_typed_in_is_the_same_principal_until_it_is_removed(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub, httpx2.AsyncClient(base_url=hub.base, trust_env=False) as http:
        form = {"token": CI, "to": "/?q=1"}
        assert (await http.post("/signin/token", data=form)).status_code == 403
        own = {"origin": hub.base}
        wrong = await http.post("/signin/token", data={**form, "token": "wrong-0123456789abcdef"}, headers=own)
        assert wrong.status_code == 401
        answer = await http.post("/signin/token", data=form, headers=own)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{hub.base}/?q=1")
        me = (await http.get("/api/me")).json()
        assert (me["principal"], me["groups"], me["roles"]) == ("ci", ["dev"], ["read"])
        replace_file(tmp_path / "tokens.json", json.dumps(TOKENS) % hashlib.sha256(b"another").hexdigest())
        await asked(partial(is_out, http))


async def is_out(http: httpx2.AsyncClient) -> bool:
    return (await http.get("/api/me")).status_code == 401
