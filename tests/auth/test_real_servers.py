"""Whole logins against the authorization servers of the field: registration, tokens, renewal, more scope, logout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import Grant, TokenStore
from holdfast.config.read import config_from_mapping
from holdfast.config.spec import Config, ServerSpec
from holdfast.errors import CallDenied, LoginFailed
from holdfast.hub.hub import Hub
from tests.auth.logins import logged_in
from tests.auth.real_servers import KEY, METHODS, SECRET, RealServers, node, python
from tests.harness.open_hubs import settled

__all__ = ["node", "python"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-9")]


def config(url: str, **oauth: Any) -> Config:
    return config_from_mapping({"mcpServers": {"files": {"type": "http", "url": url, "oauth": oauth}}})


def spec(url: str, **oauth: Any) -> ServerSpec:
    found = config(url, **oauth).servers["files"]
    assert not found.problems, found
    return found


@asynccontextmanager
async def hub_at(url: str, store: TokenStore) -> AsyncIterator[Hub]:
    async with Hub(config(url), logins=Logins(TokenStore(store.folder, vault=lambda: None))) as hub:
        await settled(hub)
        yield hub


async def control(url: str, **wish: Any) -> None:
    """Change what the server at this endpoint knows."""
    parts = urlsplit(url)
    async with httpx2.AsyncClient(trust_env=False) as http:
        (await http.post(f"{parts.scheme}://{parts.netloc}/control", json=wish)).raise_for_status()


async def used(url: str, store: TokenStore, kept: Grant, *, ends: bool) -> None:
    """Call a tool with the login; where the server ends its token in mid-session, the call works too."""
    async with hub_at(url, store) as hub:
        assert (await hub.call_tool("files__hello")).text == "hello"
        if not ends:
            return
        await control(url, end=True)
        assert (await hub.call_tool("files__hello")).text == "hello"
    renewed = store.get(kept.key)
    assert renewed is not None
    assert renewed.refresh_token not in (None, kept.refresh_token), "it rotates them"


async def ended(server: ServerSpec, store: TokenStore) -> None:
    """Log out; a server that can take tokens back confirms it."""
    gone = await log_out(server, store=store)
    assert gone is not None
    assert gone.revoked == bool(gone.grant.revocation_endpoint)


@pytest.mark.parametrize("name", ["sdk", "fastmcp", "proxy"])
async def test_a_login_to_a_server_on_python_is_used_renewed_and_ended(
    name: str, python: RealServers, store: TokenStore
) -> None:
    url = python[name]
    kept, _ = await logged_in(spec(url), store)
    assert kept.scope == "files:read"
    await used(url, store, kept, ends=name == "sdk")
    await ended(spec(url), store)


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize("method", ["none", "client_secret_post", "client_secret_basic"])
async def test_a_client_that_is_registered_at_the_python_sdk_by_hand_logs_in(
    method: str, python: RealServers, store: TokenStore
) -> None:
    url, base = python["sdk"], python["sdk"].removesuffix("/mcp")
    client = {"client_id": f"mine by {method}", "token_endpoint_auth_method": method, "scope": "files:read"}
    secret = {} if method == "none" else {"client_secret": SECRET}
    await control(url, client={**client, **secret, "redirect_uris": ["http://127.0.0.1:8765/callback"]})
    oauth = {"clientId": client["client_id"], "issuer": base, "redirectUri": "http://127.0.0.1:8765/callback"}
    server = spec(url, **oauth, **({} if method == "none" else {"clientSecret": SECRET}))
    kept, _ = await logged_in(server, store, how="paste")
    assert kept.client.method == method
    await used(url, store, kept, ends=True)
    await ended(server, store)


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize("name", ["sdk", "fastmcp"])
async def test_more_scope_is_granted_by_a_server_that_grants_what_a_client_registered_for(
    name: str, python: RealServers, store: TokenStore
) -> None:
    await logged_in(spec(python[name]), store)
    kept, _ = await logged_in(spec(python[name]), store, scope=("files:write",))
    assert kept.scope == "files:read files:write"


@pytest.mark.requirement("AUTH-4", "MSG-3")
async def test_a_scope_that_the_python_sdk_demands_in_mid_session_is_named_with_the_command(
    python: RealServers, store: TokenStore
) -> None:
    url = python["sdk"]
    await logged_in(spec(url), store)
    async with hub_at(url, store) as hub:
        await control(url, needs=["files:read", "files:write"])
        with pytest.raises(CallDenied, match="run `holdfast login files --scope files:write`"):
            await hub.call_tool("files__hello")
        await logged_in(spec(url), store, scope=("files:write",))
        assert (await hub.call_tool("files__hello")).text == "hello"
    await control(url)


async def test_a_server_that_restarted_without_its_clients_is_logged_in_to(
    python: RealServers, store: TokenStore
) -> None:
    url = python["sdk"]
    first, _ = await logged_in(spec(url), store)
    await control(url, forget=True)
    second, browser = await logged_in(spec(url), store)
    assert second.client.id != first.client.id
    assert len(browser.visited) == 1


async def test_a_login_to_a_server_on_the_typescript_sdk_is_used(node: RealServers, store: TokenStore) -> None:
    kept, _ = await logged_in(spec(node["typescript"]), store)
    await used(node["typescript"], store, kept, ends=False)
    await ended(spec(node["typescript"]), store)


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize("method", METHODS)
async def test_a_registration_uses_the_client_authentication_that_the_server_offers(
    method: str, node: RealServers, store: TokenStore
) -> None:
    kept, _ = await logged_in(spec(node[method]), store)
    assert (kept.client.method, kept.client.origin) == (method, "registered")
    await used(node[method], store, kept, ends=True)
    await ended(spec(node[method]), store)


def by_hand(method: str, url: str) -> dict[str, str]:
    """The definition of a client that is registered at ``oidc-provider``."""
    oauth = {"clientId": f"the {method}: client", "issuer": url.replace("/mcp", "/op")}
    if method.startswith("client_secret"):
        oauth["clientSecret"] = SECRET
    return oauth | ({"privateKey": KEY} if method == "private_key_jwt" else {})


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize(
    ("method", "how"),
    [*((method, "browser") for method in METHODS), ("client_secret_basic", "device"), ("private_key_jwt", "device")],
)
async def test_a_client_that_is_registered_by_hand_finds_its_method_among_all(
    method: str, how: Any, node: RealServers, store: TokenStore
) -> None:
    url = node["all"]
    kept, _ = await logged_in(spec(url, **by_hand(method, url)), store, how=how)
    # The server takes HTTP Basic and the form for one another.
    assert kept.client.method in {method, method.replace("_post", "_basic")}
    await used(url, store, kept, ends=how == "device")
    await ended(spec(url, **by_hand(method, url)), store)


@pytest.mark.requirement("AUTH-4")
async def test_a_metadata_document_is_the_client_of_a_server_that_reads_it(
    node: RealServers, store: TokenStore
) -> None:
    server = spec(node["all"], clientMetadataUrl=node["document"])
    kept, _ = await logged_in(server, store)
    assert (kept.client.id, kept.client.origin) == (node["document"], "document")
    await used(node["all"], store, kept, ends=True)
    await ended(server, store)


async def test_a_server_whose_clients_need_a_certificate_is_told_by_its_method(
    node: RealServers, store: TokenStore
) -> None:
    with pytest.raises(LoginFailed, match="accepts only this client authentication: tls_client_auth"):
        await logged_in(spec(node["tls_client_auth"]), store)
