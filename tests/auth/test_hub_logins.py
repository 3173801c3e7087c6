from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from keyring.backend import KeyringBackend

from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import KeyringStorage, TokenStore
from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.events import Transition
from holdfast.core.lifecycle.table import State
from holdfast.errors import CallDenied, CallFailed, ServerDenied
from holdfast.hub import registry
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord
from holdfast.hub.loader import Loader, get_tools_with_resilience
from holdfast.hub.registry import SlotRegistry
from holdfast.hub.slot import Slot
from tests.auth.logins import PATIENCE, aged, logged_in
from tests.harness.open_hubs import reaches, settled
from tests.peers.guarded import Guarded

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hub_of(peer: Guarded, store: TokenStore, **more: Any) -> AsyncIterator[Hub]:
    """A hub with this server, and the tokens that the test has; another process's hub, for all it knows."""
    own = TokenStore(store.folder, vault=lambda: None)
    async with Hub(peer.config(**more), logins=Logins(own), chance=lambda: 0.0) as hub:
        await settled(hub)
        yield hub


async def comes_to(slot: Slot, state: State) -> None:
    with anyio.fail_after(PATIENCE):
        while slot.state is not state:
            await slot.changed()


@pytest.mark.requirement("AUTH-3", "MSG-3")
async def test_a_server_that_nobody_logged_in_to_is_denied_and_says_what_to_run(
    peer: Guarded, store: TokenStore
) -> None:
    async with hub_of(peer, store) as hub:
        assert hub.server_health("files").state is State.DENIED
        told = hub.warnings()
        (words,) = told.for_user
        assert words.startswith(
            "MCP server 'files' denied access: it asks for a login (HTTP 401): run `holdfast login files`. "
            "It is not asked again before "
        )
        assert words.endswith(": log in or ask for access to change that.")
        assert "run `holdfast login files`" in told.for_model
        assert "starting up" not in told.for_model
        with pytest.raises(ServerDenied, match="run `holdfast login files`"):
            await hub.registry.request("files", "tools/call", {"name": "read"})


@pytest.mark.requirement("AUTH-3", "BRK-9", "LIFE-19")
async def test_a_login_by_another_process_brings_a_denied_server_back_without_restart(
    peer: Guarded, store: TokenStore
) -> None:
    async with hub_of(peer, store) as hub:
        assert hub.server_health("files").state is State.DENIED
        await logged_in(peer.spec(), store)
        await reaches(hub, "files")
        assert hub.server_health("files").breaker is BreakerState.CLOSED
        assert (await hub.call_tool("files__read")).text == "read done"


@pytest.mark.requirement("AUTH-3", "HUB-10")
async def test_a_login_brings_back_a_client_s_own_connection_too(peer: Guarded, store: TokenStore) -> None:
    async with hub_of(peer, store, sharing="per-client") as hub:
        own = hub.registry.clients.of("somebody", peer.spec(sharing="per-client"), lambda: None)
        await comes_to(own, State.DENIED)
        await logged_in(peer.spec(), store)
        await comes_to(own, State.CONNECTED)


@pytest.mark.requirement("AUTH-3")
async def test_a_token_refused_in_mid_session_is_renewed_once_and_the_call_repeated(
    peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        generation = hub.server_health("files").generation
        await peer.behave(end_tokens=True, forget=True)
        assert (await hub.call_tool("files__read")).text == "read done"
        assert [one["good"] for one in await peer.seen("mcp", method="tools/call")] == [False, True]
        assert await peer.renewals() == 1
        assert hub.server_health("files").generation == generation, "the session goes on"


@pytest.mark.requirement("AUTH-3")
async def test_a_server_of_the_older_transport_has_its_login_renewed_too(peer: Guarded, store: TokenStore) -> None:
    there = {"type": "sse", "url": f"{peer.address}/sse"}
    await peer.behave(resource=peer.address)
    await logged_in(peer.spec(**there), store)
    await peer.behave(end_tokens=True)
    async with hub_of(peer, store, **there) as hub:
        await reaches(hub, "files")
        assert (await hub.call_tool("files__read")).text == "read done"
        await peer.behave(end_tokens=True)
        hub.registry.logins.now = lambda: 2e9  # time goes by, and the token ends
        assert (await hub.call_tool("files__read")).text == "read done"
        assert await peer.renewals() == 2


@pytest.mark.requirement("AUTH-3")
async def test_many_calls_on_a_token_that_has_ended_cause_one_renewal(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        await peer.behave(end_tokens=True, token_delay=0.1)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(hub.call_tool, "files__read")
        assert await peer.renewals() == 1


@pytest.mark.requirement("AUTH-3", "LIFE-23")
async def test_a_revoked_login_denies_the_call_and_says_what_to_run_and_a_new_one_is_used_at_once(
    peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        await peer.behave(revoke=True)
        with pytest.raises(CallDenied, match=r"the login was revoked, or has ended \(HTTP 401\): run `holdfast login"):
            await hub.call_tool("files__read")
        assert hub.server_health("files").state is State.CONNECTED
        assert hub.server_health("files").breaker is BreakerState.CLOSED
        await logged_in(peer.spec(), store)
        assert (await hub.call_tool("files__read")).text == "read done"


@pytest.mark.requirement("AUTH-4", "MSG-3")
async def test_a_scope_that_is_missing_is_named_with_the_command_and_not_taken(
    peer: Guarded, store: TokenStore
) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        words = "which the login does not have .*: run `holdfast login files --scope files:write`"
        with pytest.raises(CallDenied, match=words):
            await hub.call_tool("files__write")
        assert len(await peer.seen("authorize")) == 1
        await logged_in(peer.spec(), store, scope=("files:write",))
        assert (await hub.call_tool("files__write")).text == "write done"


@pytest.mark.requirement("AUTH-5")
async def test_an_authorization_server_that_is_away_costs_calls_and_nothing_else(
    peer: Guarded, store: TokenStore
) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        await peer.behave(end_tokens=True, token_status=503)
        hub.registry.logins.now = lambda: 1e9  # time stands still, however long the calls take
        for _ in range(5):
            with pytest.raises(CallFailed, match="could not be renewed just now"):
                await hub.call_tool("files__read")
        assert hub.server_health("files").breaker is BreakerState.CLOSED
        assert hub.server_health("files").state is State.CONNECTED
        assert await peer.renewals() == 1, "it is left alone after the first"
        assert store.get(kept.key) == kept
        await peer.behave(token_status=0)
        hub.registry.logins.pauses.clear()
        assert (await hub.call_tool("files__read")).text == "read done"


@pytest.mark.requirement("AUTH-5", "LOAD-9")
async def test_a_load_that_meets_an_authorization_outage_tries_again(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    aged(store, kept)
    await peer.behave(token_status=503)
    pauses: list[float] = []
    logins = Logins(store)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        logins.pauses.clear()
        await peer.behave(token_status=0)

    outcome = (await Loader(peer.config(), logins=logins, sleep=sleep).load()).outcomes[0]
    assert (outcome.status, outcome.attempts) == ("available", 2)
    assert len(pauses) == 1


@pytest.mark.requirement("AUTH-3")
async def test_a_load_uses_the_login_that_is_there(
    peer: Guarded, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logged_in(peer.spec(), store)
    monkeypatch.setenv("XDG_STATE_HOME", str(store.folder.parent))
    (store.folder.parent / "holdfast").symlink_to(store.folder)
    tools, failed, _ = await get_tools_with_resilience({"files": {"transport": "streamable_http", "url": peer.url}})
    assert failed == []
    assert [tool.name for tool in tools] == ["read", "write"]
    assert (await tools[0].call()).text == "read done"


async def test_logging_out_denies_the_next_call(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        await log_out(peer.spec(), store=store)
        with pytest.raises(CallDenied, match="it asks for a login"):
            await hub.call_tool("files__read")


async def test_an_authorization_of_the_definition_stands_before_any_login(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    async with hub_of(peer, store, headers={"Authorization": "Bearer its-own-token"}) as hub:
        health = hub.server_health("files")
        assert health.state is State.DENIED
        assert "the credentials configured for this server were rejected" in health.reason


async def test_a_server_that_takes_no_login_gets_none(peer: Guarded, store: TokenStore) -> None:
    await logged_in(peer.spec(), store)
    await peer.behave(forget=True)
    async with hub_of(peer, store, oauth=False) as hub:
        assert hub.server_health("files").state is State.DENIED
        assert "holdfast login" not in hub.server_health("files").reason
        assert await peer.seen("mcp", token=True) == []


async def test_a_renewal_by_another_process_is_used_without_one_of_ours(peer: Guarded, store: TokenStore) -> None:
    kept, _ = await logged_in(peer.spec(), store)
    async with hub_of(peer, store) as hub:
        await peer.behave(end_tokens=True)
        other = Logins(store).authorize(peer.spec())
        assert other is not None
        assert await other.renewed(kept.access_token)
        await peer.behave(forget=True)
        assert (await hub.call_tool("files__read")).text == "read done"
        assert await peer.renewals() == 0


async def test_a_login_that_is_noted_as_refused_is_no_new_login_and_not_tried_again(
    peer: Guarded, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, looks = anyio.create_memory_object_stream[None](100)
    original = registry.current_logins

    async def looked(hub: SlotRegistry, *, within: float | None = None) -> Mapping[str, str]:
        found = await original(hub, within=within)
        send.send_nowait(None)
        return found

    monkeypatch.setattr(registry, "current_logins", looked)
    await logged_in(peer.spec(), store)
    await peer.behave(revoke=True)
    told: list[HubRecord] = []
    hub = Hub(peer.config(), logins=Logins(TokenStore(store.folder, vault=lambda: None)), chance=lambda: 0.0)
    hub.listen(told.append)
    with send, looks, anyio.fail_after(PATIENCE):
        async with hub:
            await reaches(hub, "files", State.DENIED)
            while looks.statistics().current_buffer_used or not any(
                one.refused for one in hub.registry.logins.store.known
            ):
                await looks.receive()
            for _ in range(2):  # a look begins when all that the last one found was acted on
                await looks.receive()
            assert hub.server_health("files").state is State.DENIED
    dials = [record for record in told if isinstance(record, Transition) and record.new is State.CONNECTING]
    assert len(dials) == 1


class Waiting(KeyringBackend):
    """A keyring that does not answer before it is unlocked."""

    priority = -1

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self.unlocked = threading.Event()

    def get_password(self, service: str, username: str) -> str | None:
        assert self.unlocked.wait(60)
        return self._kept.get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        self._kept[username] = password


@pytest.mark.requirement("AUTH-5")
async def test_a_keyring_that_waits_for_somebody_holds_up_no_hub_and_costs_no_login(
    peer: Guarded, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.hub.registry.START_SECONDS", 0.05)
    kept, _ = await logged_in(peer.spec(), store)
    ring = Waiting()
    ring.unlocked.set()
    TokenStore(store.folder, vault=lambda: KeyringStorage(ring)).put(kept)
    ring.unlocked.clear()
    logins = Logins(TokenStore(store.folder, vault=lambda: KeyringStorage(ring)))
    logins.store.patience = 0.05
    try:
        with anyio.fail_after(PATIENCE):
            async with Hub(peer.config(), logins=logins, chance=lambda: 0.0) as hub:
                await settled(hub)
                health = hub.server_health("files")
                assert health.state is not State.DENIED, "no login is asked for"
                assert "the token store does not answer" in health.reason
                ring.unlocked.set()
                await reaches(hub, "files")
    finally:
        ring.unlocked.set()
