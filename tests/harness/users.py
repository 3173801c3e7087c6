"""Hubs whose callers are users with logins of their own: known by their tokens, at a server that is per user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.access.audit_writer import AuditTrail
from holdfast.access.principals import TokenPolicy
from holdfast.auth.credentials import Logins
from holdfast.auth.token_store import TokenStore
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.server_logins import ConnectPage
from holdfast.endpoint.user_login import LoginLinks
from holdfast.front.app import create_app
from holdfast.front.session_id import SessionIds
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from tests.auth.logins import logged_in
from tests.harness.served_hub import Person, Served
from tests.harness.web import serving
from tests.peers.guarded import Guarded, guarded
from tests.peers.ports import free_port

KEYS = KeyRing([b"the key of the users' tokens, 32 bytes"])
TOKENS = TokenPolicy(tokens={"ada": "token-of-ada", "bob": "token-of-bob"})


@pytest.fixture
async def peer() -> AsyncIterator[Guarded]:
    async with guarded() as one:
        yield one


@pytest.fixture
def tokens(tmp_path: Path) -> UserTokens:
    return UserTokens(tmp_path, keys=KEYS, keeps=True)


class UsersHub(Served):
    """A served hub of users; its links lead to its pages, if it has them."""

    links: LoginLinks


def per_user(peer: Guarded, **more: Any) -> dict[str, Any]:
    return {"files": peer.defined(sharing="per-user", **more)}


@asynccontextmanager
async def hub_of(
    servers: dict[str, Any],
    tokens: UserTokens,
    *,
    audit: AuditTrail | None = None,
    pages: bool = False,
    base: str = "",
    **options: Any,
) -> AsyncIterator[UsersHub]:
    """A hub whose callers are known by their tokens; another process may keep the logins of its users.

    ``pages``: its users can log in by a browser, at the address ``base``.
    """
    port = free_port()
    hub = Hub(
        config_from_mapping({"mcpServers": servers, "holdfast": options}),
        logins=Logins(TokenStore(tokens.folder, vault=lambda: None)),
        has_local=False,
        user_tokens=UserTokens(tokens.folder, keys=KEYS, keeps=True),
        chance=lambda: 0.0,
    )
    ids, base = SessionIds(), base or f"http://127.0.0.1:{port}"
    links = LoginLinks(base, lambda: ids.keys.ring, by_issuer=False)
    browsers = BrowserIdentity(base, ring=lambda: ids.keys.ring, ended=ids, tokens=TOKENS)
    beside = [*browsers.routes(), *ConnectPage(hub, links, browsers).routes()] if pages else []
    app = create_app(hub, tokens=TOKENS, audit=audit, beside=beside, ids=ids, links=links if pages else None)
    async with hub, serving(app, port=port) as there:
        assert await hub.ready(30)
        served = UsersHub(hub, app, there)
        served.links = links
        yield served


@asynccontextmanager
async def client_of(person: Person, url: str, era: Any = "legacy", **more: Any) -> AsyncIterator[Client]:
    """A client of this person, with her token for the hub."""
    headers = {"authorization": f"Bearer token-of-{person.name}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        person.client(streamable_http_client(url, http_client=http), era, **more) as client,
    ):
        yield client


async def logs_in(name: str, peer: Guarded, tokens: UserTokens) -> None:
    """She logs in, as `holdfast login --user` does."""
    await peer.behave(person=name)
    await logged_in(peer.spec(sharing="per-user"), tokens.of(name))


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def listed(client: Client, person: Person, name: str) -> set[str]:
    """Her tools, once this one is among them; she is told of each change."""
    with anyio.fail_after(20):
        while name not in (found := await names(client)):
            await person.until(lambda: "notifications/tools/list_changed" in person.notices)
            person.notices.clear()
    return found
