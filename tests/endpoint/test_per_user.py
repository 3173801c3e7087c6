"""Each user as herself: a server that is per user has a connection, a login and a catalog for each principal."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.access.principals import TokenPolicy
from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import TokenStore
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from holdfast.core.lifecycle.table import State
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from tests.auth.logins import logged_in
from tests.harness.served_hub import PATIENT, Person, Served, over_stdio, text_of
from tests.harness.web import serving
from tests.peers.guarded import Guarded, guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-13", "AUTH-8")]

KEYS = KeyRing([b"the key of the users' tokens, 32 bytes"])
TOKENS = TokenPolicy(tokens={"ada": "token-of-ada", "bob": "token-of-bob"})


@pytest.fixture
async def peer() -> AsyncIterator[Guarded]:
    async with guarded() as one:
        yield one


@pytest.fixture
def tokens(tmp_path: Path) -> UserTokens:
    return UserTokens(tmp_path, keys=KEYS, keeps=True)


@asynccontextmanager
async def hub_of(servers: dict[str, Any], tokens: UserTokens, **options: Any) -> AsyncIterator[Served]:
    """A hub whose callers are known by their tokens; another process may keep the logins of its users."""
    config = config_from_mapping({"mcpServers": servers, "holdfast": options})
    own = UserTokens(tokens.folder, keys=KEYS, keeps=True)
    hub = Hub(
        config,
        logins=Logins(TokenStore(tokens.folder, vault=lambda: None)),
        has_local=False,
        user_tokens=own,
        chance=lambda: 0.0,
    )
    app = create_app(hub, tokens=TOKENS)
    async with hub, serving(app) as base:
        assert await hub.ready(30)
        yield Served(hub, app, base)


def per_user(peer: Guarded, **more: Any) -> dict[str, Any]:
    return {"files": peer.defined(sharing="per-user", **more)}


@asynccontextmanager
async def client_of(person: Person, url: str, era: Any = "legacy") -> AsyncIterator[Client]:
    """A client of this person, with her token for the hub."""
    headers = {"authorization": f"Bearer token-of-{person.name}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        person.client(streamable_http_client(url, http_client=http), era) as client,
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


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_user_has_the_tools_and_the_answers_of_her_own_login(
    era: str, peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    for name in ("ada", "bob"):
        await logs_in(name, peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all, era) as one,
        client_of(bob, served.all, era) as other,
    ):
        with anyio.fail_after(30):
            assert await names(one) == {"files__read", "files__write", "files__of_ada", "holdfast_status"}
            assert await names(other) == {"files__read", "files__write", "files__of_bob", "holdfast_status"}
            assert text_of(await one.call_tool("files__read", {})) == "read done for ada"
            assert text_of(await other.call_tool("files__read", {})) == "read done for bob"
        assert {seen["person"] for seen in await peer.seen("mcp", good=True)} == {"ada", "bob"}
        assert served.hub.registry.slot("files").state is State.IDLE, "no one is `local` here"
        assert not served.hub.catalog.tools


async def test_a_user_who_lacks_the_login_is_told_so_and_gets_her_tools_when_she_has_it(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            assert await names(one) == {"holdfast_login", "holdfast_status"}
            told = await one.call_tool("holdfast_login", {"server": "files"})
            assert "holdfast login files --user ada" in text_of(told)
            assert (told.structured_content or {})["status"] == "login_required"
            assert "files__of_bob" in await names(other)
            assert "holdfast_login" not in await names(other)
            status = await one.call_tool("holdfast_status", {})
            assert "files: denied" in text_of(status)
            assert "files: connected" in text_of(await other.call_tool("holdfast_status", {}))
            other_heard = list(bob.notices)
            await logs_in("ada", peer, tokens)
            assert "files__of_ada" in await listed(one, ada, "files__of_ada")
            assert "holdfast_login" not in await names(one)
            assert text_of(await one.call_tool("files__of_ada", {})) == "of_ada done for ada"
            assert bob.notices == other_heard, "what changed for her is not told to another user"


async def test_a_logout_ends_the_access_of_one_user_alone(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    for name in ("ada", "bob"):
        await logs_in(name, peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            assert "files__of_ada" in await names(one)
            assert "files__of_bob" in await names(other)
            await log_out(peer.spec(sharing="per-user"), store=tokens.of("ada"))
            await listed(one, ada, "holdfast_login")
            assert text_of(await other.call_tool("files__read", {})) == "read done for bob"
            refused = await one.call_tool("files__read", {})
            assert refused.is_error
            assert "denied" in text_of(refused)


async def test_the_evidence_that_a_server_is_down_is_for_all_and_a_denial_for_one(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            await names(one)
            await names(other)
            users = served.hub.registry.users.slots
            hers, his = users.find("ada", "files"), users.find("bob", "files")
            assert hers is not None
            assert his is not None
            assert (hers.state, his.state) == (State.DENIED, State.CONNECTED)


async def test_idle_connections_of_users_close_and_the_next_call_opens_them_again(
    peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    await logs_in("ada", peer, tokens)
    async with hub_of(per_user(peer), tokens, perUser={"idle": "300ms"}) as served, client_of(ada, served.all) as one:
        with anyio.fail_after(30):
            assert "files__of_ada" in await names(one)
            users = served.hub.registry.users.slots
            slot = users.find("ada", "files")
            assert slot is not None
            await slot.closed.wait()
            assert users.find("ada", "files") is None
            assert "files__of_ada" in await names(one), "what she has stays listed"
            assert text_of(await one.call_tool("files__read", {})) == "read done for ada"


async def test_over_the_limit_of_users_the_next_one_is_refused_with_words(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    for name in ("ada", "bob"):
        await logs_in(name, peer, tokens)
    async with (
        hub_of(per_user(peer), tokens, perUser={"connections": 1}) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            assert "files__of_ada" in await names(one)
            assert "files__of_bob" not in await names(other)
            refused = text_of(await other.call_tool("files__read", {}))
            assert "limit of 1 users" in refused
            assert "holdfast.perUser.connections" in refused


async def test_a_command_runs_once_for_each_user_and_keeps_their_state_apart(
    tokens: UserTokens, ada: Person, bob: Person
) -> None:
    async with (
        hub_of({"o": over_stdio("legacy", sharing="per-user")}, tokens, call=PATIENT) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(60):
            assert [text_of(await one.call_tool("o__bump", {})) for _ in range(2)] == ["1", "2"]
            assert text_of(await other.call_tool("o__bump", {})) == "1"
            assert len(served.hub.registry.users.slots.all()) == 2


async def test_a_hub_without_credentials_has_one_user_with_the_hub_s_own_login(
    peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    store = TokenStore(tokens.folder, vault=lambda: None)
    await peer.behave(person="me")
    await logged_in(peer.spec(sharing="per-user"), store)
    hub = Hub(config_from_mapping({"mcpServers": per_user(peer)}), logins=Logins(store), user_tokens=tokens)
    async with hub, serving(create_app(hub)) as base, ada.client(f"{base}/mcp", "legacy") as client:
        assert await hub.ready(30)
        assert (await hub.call_tool("files__read")).text == "read done for me"
        assert "files__of_me" in await names(client)
        assert not hub.registry.users.slots.all()


async def test_no_text_of_a_user_s_refusal_has_a_token(peer: Guarded, tokens: UserTokens, ada: Person) -> None:
    await logs_in("ada", peer, tokens)
    await peer.behave(mcp_status=500)
    async with hub_of(per_user(peer), tokens) as served, client_of(ada, served.all) as one:
        with anyio.fail_after(30):
            said = text_of(await one.call_tool("holdfast_status", {}))
            assert not re.search("hf-planted|token-of", said)
