"""Each user as herself: a server that is per user has a connection, a login and a catalog for each principal."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from mcp import MCPError

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditTrail
from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import TokenStore
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.events import ReconnectRequested
from holdfast.core.lifecycle.table import State
from holdfast.errors import LoadFailed, ServerDisabled
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.hub.slot import Slot
from tests.access.test_audit import KEY
from tests.auth.logins import logged_in
from tests.harness.served_hub import PATIENT, Person, Served, over_stdio, text_of
from tests.harness.users import client_of, hub_of, listed, logs_in, names, per_user
from tests.harness.web import serving
from tests.peers.guarded import Guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-13", "AUTH-8")]


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


async def test_a_user_whose_login_is_rejected_and_cannot_be_renewed_is_told_to_log_in_again(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    await peer.behave(gives_refresh=False)
    await logs_in("ada", peer, tokens)
    await peer.behave(revoke=True)
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            assert await names(one) == {"holdfast_login", "holdfast_status"}
            told = await one.call_tool("holdfast_login", {"server": "files"})
            assert (told.structured_content or {})["status"] == "login_required"
            assert "holdfast login files --user ada" in text_of(told)
            assert "holdfast_login" not in await names(other)
            await logs_in("ada", peer, tokens)
            assert "holdfast_login" not in await listed(one, ada, "files__of_ada")


async def test_a_user_to_whom_a_new_login_would_not_help_is_not_sent_to_one(
    peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    await logs_in("ada", peer, tokens)
    await peer.behave(mcp_status=403)
    async with hub_of(per_user(peer), tokens) as served, client_of(ada, served.all) as one:
        with anyio.fail_after(30):
            assert await names(one) == {"holdfast_status"}
            assert "files: denied" in text_of(await one.call_tool("holdfast_status", {}))


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


def slots_of(served: Served, *users: str) -> list[Slot]:
    found = dict(served.hub.registry.users.of_server("files"))
    return [found[name] for name in users]


async def test_a_denial_is_about_one_user_and_no_evidence_for_another(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            await names(other)
            await names(one)
            for _ in range(3):
                assert (await one.call_tool("files__read", {})).is_error
            await anyio.wait_all_tasks_blocked()
            hers, his = slots_of(served, "ada", "bob")
            assert (hers.state, his.state) == (State.DENIED, State.CONNECTED)
            assert (his.machine.breaker.failures, his.health().breaker) == (0, BreakerState.CLOSED)
            assert text_of(await other.call_tool("files__read", {})) == "read done for bob"


async def test_that_a_server_fails_is_noticed_by_one_user_and_known_for_the_other(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    for name in ("ada", "bob"):
        await logs_in(name, peer, tokens)
    async with (
        hub_of(per_user(peer), tokens, breaker={"threshold": 2}) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            for client in (one, other):
                await names(client)
            hers, his = slots_of(served, "ada", "bob")
            await peer.behave(mcp_status=503)
            for _ in range(2):
                assert (await one.call_tool("files__read", {})).is_error
            assert hers.health().breaker is BreakerState.OPEN
            while not his.machine.breaker.failures:
                await his.changed()
            assert his.health().breaker is BreakerState.CLOSED, "what another saw opens nothing by itself"
            assert (await other.call_tool("files__read", {})).is_error
            assert his.health().breaker is BreakerState.OPEN, "one failure of his own is enough"


@pytest.mark.parametrize("logged", [("bob", "ada"), ("bob",)], ids=["by a connection", "by a denial"])
async def test_that_a_server_is_back_is_noticed_by_one_user_and_known_for_the_other(
    logged: tuple[str, ...], peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    for name in logged:
        await logs_in(name, peer, tokens)
    async with (
        hub_of(per_user(peer), tokens, reconnect={"backoff": ["10m"]}) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            for client in (one, other):
                await names(client)
            hers, his = slots_of(served, "ada", "bob")
            await peer.behave(mcp_status=503)
            with pytest.raises(LoadFailed, match="503"):
                await served.hub.reconnect("files")
            while his.machine.dialing is not None:
                await his.changed()
            assert (hers.state, his.state) == (State.RECONNECTING, State.RECONNECTING)
            await peer.behave(mcp_status=0)
            hers.handle(ReconnectRequested())
            while his.state is not State.CONNECTED:
                await his.changed()
            assert hers.state is (State.CONNECTED if "ada" in logged else State.DENIED)
            assert text_of(await other.call_tool("files__read", {})) == "read done for bob"


async def test_an_operator_reconnects_the_users_of_a_server_and_a_denied_one_is_no_failure(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person
) -> None:
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            for client in (one, other):
                await names(client)
            hers, his = slots_of(served, "ada", "bob")
            before = his.machine.life.generation
            await served.hub.reconnect("files")
            assert his.machine.life.generation > before
            assert (hers.state, his.state) == (State.DENIED, State.CONNECTED)
            assert served.hub.registry.slot("files").state is State.IDLE, "no one is `local` here"
            await peer.behave(mcp_status=500)
            with pytest.raises(LoadFailed, match="500"):
                await served.hub.reconnect("files")
            await served.hub.toggle("files", enabled=False)
            with pytest.raises(ServerDisabled):
                await served.hub.reconnect("files")


@pytest.mark.requirement("FIND-6")
async def test_what_is_kept_of_one_user_s_large_result_is_read_by_no_other(
    tokens: UserTokens, ada: Person, bob: Person
) -> None:
    long = "a line of ada's\n" * 200
    async with (
        hub_of(
            {"o": over_stdio("legacy", sharing="per-user")}, tokens, call=PATIENT, largeResults={"over": 1_000}
        ) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(60):
            shortened = await one.call_tool("o__echo", {"text": long})
            (link,) = [block for block in shortened.content if block.type == "resource_link"]
            asked = {"handle": str(link.uri).rpartition("/")[2]}
            assert "a line of ada's" in text_of(await one.call_tool("read_result", asked))
            assert text_of(await other.call_tool("read_result", asked)).startswith("Unknown handle")
            with pytest.raises(MCPError):
                await other.read_resource(str(link.uri))


@pytest.mark.requirement("SEC-15")
async def test_the_audit_records_each_call_as_that_of_its_user(
    peer: Guarded, tokens: UserTokens, ada: Person, bob: Person, tmp_path: Path
) -> None:
    trail = AuditTrail(AuditFiles(tmp_path / "audit", KEY), KEY)
    trail.start()
    await logs_in("bob", peer, tokens)
    async with (
        hub_of(per_user(peer), tokens, audit=trail) as served,
        client_of(ada, served.all) as one,
        client_of(bob, served.all) as other,
    ):
        with anyio.fail_after(30):
            for client in (one, other):
                await names(client)
            await other.call_tool("files__of_bob", {})
            await one.call_tool("files__read", {})
            await other.call_tool("files__read", {})
    trail.close()
    hers, his = (AuditReader(tmp_path / "audit", AuditFilter(principal=name)).read() for name in ("ada", "bob"))
    assert [(record.tool, record.outcome) for record in his] == [("of_bob", "completed"), ("read", "completed")]
    (refused,) = hers
    assert (refused.tool, refused.server) == ("read", "files")
    assert refused.outcome != "completed"


async def test_idle_connections_of_users_close_and_the_next_call_opens_them_again(
    peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    await logs_in("ada", peer, tokens)
    async with hub_of(per_user(peer), tokens) as served, client_of(ada, served.all) as one:
        with anyio.fail_after(30):
            assert "files__of_ada" in await names(one)
            users, before = served.hub.registry.users.slots, served.hub.config
            slot = users.find("ada", "files")
            assert slot is not None
            short = {"mcpServers": per_user(peer), "holdfast": {"perUser": {"idle": "100ms"}}}
            await served.hub.apply(config_from_mapping(short))
            await slot.closed.wait()
            assert users.find("ada", "files") is None
            await served.hub.apply(before)
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
