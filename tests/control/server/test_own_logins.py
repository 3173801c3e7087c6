"""A user's own logins over the control API: she sees, begins and ends hers, and learns of no other user's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.access.principals import Principal
from holdfast.auth.user_tokens import UserTokens
from holdfast.control.server.server_logins import PrincipalLogins
from holdfast.endpoint.user_login import LoginLinks
from holdfast.errors import LoginFailed
from tests.access.test_audit import KEY
from tests.control.server.controlled_hub import Steered, steered
from tests.harness.served_hub import Person
from tests.harness.users import KEYS, TOKENS, client_of, logs_in, names, peer, per_user, tokens
from tests.peers.guarded import PLANTED, Guarded

__all__ = ["peer", "tokens"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-13", "AUTH-7")]

EXCHANGE = {"exchange": {"tokenUrl": "https://login.example/token", "clientId": "hub"}}


@asynccontextmanager
async def hub_of(servers: dict[str, Any], tokens: UserTokens, **more: Any) -> AsyncIterator[Steered]:
    own = {"user_tokens": UserTokens(tokens.folder, keys=KEYS, keeps=True), "has_local": False}
    async with steered(servers, tokens=TOKENS, made_with=own, **more) as hub:
        yield hub


async def states(hub: Steered, name: str) -> dict[str, str]:
    answer = await hub.ask("/api/logins", token=f"token-of-{name}")
    assert answer.status_code == 200, answer.text
    assert PLANTED not in answer.text
    assert answer.json()["principal"] == name
    return {one["server"]: one["state"] for one in answer.json()["logins"]}


async def test_a_user_sees_her_own_logins_and_no_other_user_s(peer: Guarded, tokens: UserTokens) -> None:
    servers = per_user(peer) | {"shared": peer.defined(), "command": {"command": "no-such", "sharing": "per-user"}}
    async with hub_of(servers, tokens) as hub:
        assert await states(hub, "ada") == {"files": "missing"}
        await logs_in("ada", peer, tokens)
        assert await states(hub, "ada") == {"files": "valid"}
        (login,) = (await hub.ask("/api/logins", token="token-of-ada")).json()["logins"]
        assert (login["issuer"], login["scope"]) == (peer.address, "files:read")
        assert await states(hub, "bob") == {"files": "missing"}
        assert peer.address not in (await hub.ask("/api/logins", token="token-of-bob")).text


async def test_a_login_that_was_refused_has_ended(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens) as hub:
        await logs_in("ada", peer, tokens)
        (grant,) = tokens.of("ada").grants()
        tokens.of("ada").put(replace(grant, refused="invalid_grant"))
        assert await states(hub, "ada") == {"files": "ended"}


async def test_a_server_that_the_rules_hide_is_as_one_that_does_not_exist(peer: Guarded, tokens: UserTokens) -> None:
    rules = [{"effect": "deny", "servers": ["files"], "principals": ["ada"]}]
    async with hub_of(per_user(peer), tokens, access={"rules": rules, "default": "allow"}) as hub:
        await logs_in("ada", peer, tokens)
        assert await states(hub, "ada") == {}
        assert await states(hub, "bob") == {"files": "missing"}
        for verb in ("link", "end"):
            hidden, unknown = [
                await hub.ask(f"/api/logins/{server}/{verb}", method="POST", token="token-of-ada")
                for server in ("files", "other")
            ]
            assert (hidden.status_code, unknown.status_code) == (404, 404)
            assert hidden.text == unknown.text.replace("other", "files")
        assert tokens.of("ada").grants(), "nothing was ended"


async def test_the_link_is_hers_and_shows_no_name(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens) as hub:
        answer = await hub.ask("/api/logins/files/link", method="POST", token="token-of-ada")
        address = answer.json()["address"]
        assert "/connect?ticket=" in address
        assert "ada" not in address.partition("ticket=")[0]


async def test_who_ends_a_login_ends_her_own_alone(peer: Guarded, tokens: UserTokens, tmp_path: Path) -> None:
    ada, folder = Person("ada"), tmp_path / "audit"
    with closing(AuditTrail(AuditFiles(folder, KEY), KEY)) as audit:
        audit.start()
        async with hub_of(per_user(peer), tokens, audit=audit) as hub:
            for name in ("ada", "bob"):
                await logs_in(name, peer, tokens)
            async with client_of(ada, f"{hub.base}/mcp") as client:
                with anyio.fail_after(30):
                    assert "files__of_ada" in await names(client)
                    answer = await hub.ask("/api/logins/files/end", method="POST", token="token-of-ada")
                    assert answer.json() == {"server": "files", "revoked": True, "also": []}
                    while "holdfast_login" not in await names(client):
                        await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)
                        ada.notices.clear()
            assert len(await peer.seen("revoke")) == 1
            assert await states(hub, "ada") == {"files": "missing"}
            assert await states(hub, "bob") == {"files": "valid"}
            again = await hub.ask("/api/logins/files/end", method="POST", token="token-of-ada")
            assert again.status_code == 409
    found = [one for one in AuditReader(folder, AuditFilter()).read() if one.event == "logout"]
    assert [(one.principal, one.server, one.outcome) for one in found] == [
        ("ada", "files", "done"),
        ("ada", "files", "refused"),
    ]


async def test_the_control_token_is_no_user_and_has_no_logins(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens) as hub:
        await logs_in("ada", peer, tokens)
        assert (await hub.ask("/api/logins")).json() == {"principal": "", "logins": []}
        for verb in ("link", "end"):
            assert (await hub.ask(f"/api/logins/files/{verb}", method="POST")).status_code == 403


async def test_a_user_whom_no_browser_can_be_known_for_is_told_the_command(peer: Guarded, tokens: UserTokens) -> None:
    eve = Principal(name="https://issuer.example#eve", source="jwt")
    async with hub_of(per_user(peer) | {"other": per_user(peer, credentials=EXCHANGE)["files"]}, tokens) as hub:
        logins = PrincipalLogins(hub.hub, LoginLinks(hub.base, lambda: KEYS, by_issuer=False))
        shown = {one.server: one for one in (await logins.shown(eve)).logins}
        assert shown["files"].state == "missing"
        assert shown["files"].command.endswith("login files --user 'https://issuer.example#eve'")
        assert shown["other"].state == "not_needed", "her token is exchanged there"
        with pytest.raises(LoginFailed, match="cannot know a browser"):
            logins.link(eve, "files")


@pytest.mark.requirement("SEC-6")
async def test_the_hub_says_at_which_servers_it_does_not_act_as_one_identity(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer) | {"shared": peer.defined()}, tokens) as hub:
        said = (await hub.ask("/api/hub")).json()["identity"]
        assert said.startswith("Each user acts as herself, with her own credentials, at: files. Calls to all others")
    async with steered(per_user(peer)) as hub:
        assert "acts as herself" not in (await hub.ask("/api/hub")).json()["identity"], "`local` is its one user"


async def test_a_store_that_cannot_be_read_names_no_path_to_a_user(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens) as hub:
        tokens.file.mkdir()  # no file can be opened there
        answer = await hub.ask("/api/logins", token="token-of-ada")
        assert answer.status_code == 502
        assert str(tokens.folder) not in answer.text
