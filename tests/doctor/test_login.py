"""Logins: where they come from, when they end, and what becomes of one that has expired."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

import pytest

from holdfast.auth.token_endpoint import OAuthClient
from holdfast.auth.token_store import Grant, TokenStore
from tests.auth.logins import aged, logged_in
from tests.doctor.examination import Examination
from tests.peers.guarded import PLANTED, guarded
from tests.peers.http_fault import FaultServer, closed_port, respond
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-3", "DOC-4")]

OLD, NEW, REFRESH = "planted-old-access", "planted-new-access", "planted-refresh"


def log_in(server: str, token_endpoint: str, **changes: Any) -> None:
    """Leave a login in the store, as if a user had logged in some time ago."""
    given: dict[str, Any] = {
        "issuer": "http://127.0.0.1:1",
        "resource": server,
        "servers": (server,),
        "client": OAuthClient(id="holdfast"),
        "token_endpoint": token_endpoint,
        "access_token": OLD,
        "refresh_token": REFRESH,
        "expires_at": time.time() - 60,
        "login": "one",
    }
    TokenStore().put(Grant(**{**given, **changes}))


def tokens(status: int = 200, **fields: object) -> FaultServer:
    """An authorization server's token endpoint."""
    body = {"access_token": NEW, "token_type": "Bearer", "expires_in": 3600, **fields}
    return FaultServer(respond(status, json.dumps(body), content_type="application/json"))


def search(report: str) -> None:
    """No token is in it."""
    assert not any(secret in report for secret in (OLD, NEW, REFRESH))


async def test_a_login_that_is_good_is_told_with_its_place_and_its_end(clinic: Examination) -> None:
    async with McpPeer(auth=f"Bearer {OLD}") as peer, tokens() as authority:
        log_in(peer.url, authority.origin, expires_at=time.time() + 3600)
        server = await clinic.one({"url": peer.url})
        assert authority.requests == []
    seen = {result.check: result.seen for result in server.checks}
    assert seen["login"].startswith(f"a login from {TokenStore().file}, good until ")
    assert server.health == "healthy"
    search(server.model_dump_json())


async def test_an_expired_login_is_renewed_and_that_is_told(clinic: Examination) -> None:
    async with McpPeer(auth=f"Bearer {NEW}") as peer, tokens() as authority:
        log_in(peer.url, authority.origin)
        clinic.configure({"server": {"url": peer.url}})
        report = await clinic.all(fix=True)
        assert len(authority.requests) == 1
    (server,) = report.servers
    assert server.health == "healthy"
    clinic.matches("login_renewed", server.findings)
    (repaired,) = report.repairs
    assert (repaired.code, repaired.server, repaired.done) == ("HF-LOGIN-RENEWED", "server", True)
    search(report.model_dump_json())


async def test_an_authorization_server_that_is_away_costs_nobody_the_login(clinic: Examination) -> None:
    async with McpPeer(auth=f"Bearer {NEW}") as peer:
        with closed_port() as port:
            log_in(peer.url, f"http://127.0.0.1:{port}/token")
            found = await clinic.found({"url": peer.url})
        clinic.matches("login_unreachable", found)
        async with tokens() as authority:
            grant = TokenStore().grants()[0]
            assert grant.refresh_token == REFRESH
            log_in(peer.url, authority.origin)
            assert (await clinic.one()).health == "healthy"


@pytest.mark.parametrize("how", ["refused", "without"])
async def test_a_login_that_cannot_be_renewed_wants_a_new_one(clinic: Examination, how: str) -> None:
    async with McpPeer(auth=f"Bearer {NEW}") as peer, tokens(400, error="invalid_grant") as authority:
        log_in(peer.url, authority.origin, refresh_token=REFRESH if how == "refused" else None)
        found = await clinic.found({"url": peer.url})
    clinic.matches(f"login_ended_{how}", found)
    search(found.model_dump_json())


async def test_a_login_that_the_server_does_not_accept_is_told_apart_from_one_that_ended(clinic: Examination) -> None:
    async with McpPeer(auth="Bearer another") as peer, tokens() as authority:
        log_in(peer.url, authority.origin, expires_at=time.time() + 3600, refresh_token=None)
        found = await clinic.found({"url": peer.url})
    clinic.matches("login_rejected", found)


async def test_with_a_real_authorization_server_each_remedy_is_the_cure(clinic: Examination) -> None:
    async with guarded() as peer:
        wanted = await clinic.found(peer.defined())
        assert (wanted.code, wanted.remedy.commands) == ("HF-AUTH-NEEDED", ("holdfast login server",))
        grant, _ = await logged_in(clinic.spec(), TokenStore())
        well = await clinic.one()
        assert (well.health, well.findings) == ("healthy", ())

        aged(TokenStore(), grant)
        renewed = await clinic.one()
        assert (renewed.health, [found.code for found in renewed.findings]) == ("healthy", ["HF-LOGIN-RENEWED"])

        await peer.behave(needs="files:read files:admin")
        (lacking,) = (await clinic.one()).findings
        assert lacking.code == "HF-AUTH-SCOPE"
        (command,) = lacking.remedy.commands
        assert command.startswith("holdfast login server --scope ")
        scope = shlex.split(command)[-1]
        await logged_in(clinic.spec(), TokenStore(), scope=tuple(scope.split()))
        assert (await clinic.one()).health == "healthy"

        await peer.behave(revoke=True)
        (ended,) = (await clinic.one()).findings
        assert (ended.code, ended.remedy.commands) == ("HF-LOGIN-ENDED", ("holdfast login server",))
        await logged_in(clinic.spec(), TokenStore(), scope=tuple(scope.split()))
        report = await clinic.all()
    assert report.ok
    assert PLANTED not in report.model_dump_json()


async def test_an_authorization_server_that_registers_nobody_wants_a_client_id(clinic: Examination) -> None:
    async with guarded() as peer:
        await peer.behave(registers=False)
        found = await clinic.found(peer.defined())
    assert found.code == "HF-LOGIN-INPUT"
    assert [edit.key for edit in found.remedy.edits] == [
        "mcpServers.server.oauth.clientId",
        "mcpServers.server.oauth.redirectUri",
    ]
