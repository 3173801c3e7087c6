"""A server that keeps state has a connection for each client, also for clients of an era without sessions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.access.principals import CLIENT_HEADER, CLIENT_META_KEY, TokenPolicy
from holdfast.endpoint.instructions import STATELESS
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded, as_fields
from holdfast.testing import FakeClock
from tests.harness.raw_session import Session
from tests.harness.served_hub import PATIENT, Person, Served, front, over_stdio, text_of
from tests.harness.web import serving
from tests.peers.peer_server import Origin, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-10")]


@asynccontextmanager
async def _stateful(**options: Any) -> AsyncIterator[Served]:
    """A hub with a server that counts for each of its connections."""
    async with running("legacy") as origin, front(_definition(origin), **options) as served:
        yield served


def _definition(origin: Origin) -> dict[str, Any]:
    return {"o": {"url": origin.url, "sharing": "per-client"}}


def _key() -> str:
    return secrets.token_urlsafe(24)


@asynccontextmanager
async def _known(
    person: Person, url: str, key: str | None, *, token: str | None = None, **more: Any
) -> AsyncIterator[Client]:
    """A client of 2026-07-28 that says who it is, by a header on each of its requests."""
    headers = {CLIENT_HEADER: key} if key is not None else {}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    async with (
        create_mcp_http_client(headers=headers) as http,
        person.client(streamable_http_client(url, http_client=http), "modern", **more) as client,
    ):
        yield client


def _meta(key: str) -> Any:
    return {CLIENT_META_KEY: key}


async def _bumps(client: Client, times: int = 1, **more: Any) -> list[str]:
    return [text_of(await client.call_tool("o__bump", {}, **more)) for _ in range(times)]


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_a_modern_client_that_says_who_it_is_keeps_its_connection_and_another_has_its_own(
    over: str, ada: Person, bob: Person
) -> None:
    process = front({"o": over_stdio("legacy", sharing="per-client")}, call=PATIENT)
    async with (
        process if over == "stdio" else _stateful() as served,
        _known(ada, served.all, _key()) as one,
        _known(bob, served.all, _key()) as other,
    ):
        with anyio.fail_after(30):
            assert await _bumps(one, 2) == ["1", "2"]
            assert await _bumps(other) == ["1"]
            assert await _bumps(one) == ["3"]
        assert len(served.hub.registry.clients.all()) == 2


async def test_a_client_may_say_who_it_is_in_meta_and_the_server_never_sees_it(ada: Person) -> None:
    meta: Any = {CLIENT_META_KEY: _key(), "test/kept": 1}
    async with _stateful() as served, ada.client(served.all, "modern") as client:
        with anyio.fail_after(30):
            assert await _bumps(client, 3, meta=meta) == ["1", "2", "3"]
            echoed = await client.call_tool("o__echo", {"text": "hi"}, meta=meta)
    assert (echoed.meta or {}).get("test/kept") == 1
    assert CLIENT_META_KEY not in (echoed.meta or {})


async def test_one_client_is_the_same_at_every_face(ada: Person) -> None:
    key = _key()
    async with (
        _stateful() as served,
        _known(ada, served.all, key) as everything,
        _known(ada, served.one("o"), key) as alone,
    ):
        with anyio.fail_after(30):
            await _bumps(everything)
            assert text_of(await alone.call_tool("bump", {})) == "2"


async def test_two_principals_with_the_same_key_are_two_clients(ada: Person, bob: Person) -> None:
    key = _key()
    async with running("legacy") as origin:
        hub = Hub.from_config({"mcpServers": _definition(origin)})
        app = create_app(hub, tokens=TokenPolicy(tokens={"ada": "token-a", "bob": "token-b"}))
        async with (
            hub,
            serving(app) as base,
            _known(ada, f"{base}/mcp", key, token="token-a") as one,
            _known(bob, f"{base}/mcp", key, token="token-b") as other,
        ):
            with anyio.fail_after(30):
                await hub.ready()
                assert await _bumps(one, 2) == ["1", "2"]
                assert await _bumps(other) == ["1"]


@pytest.mark.requirement("SEC-11")
async def test_one_principal_cannot_take_every_connection_to_a_per_client_server(ada: Person, bob: Person) -> None:
    async with running("legacy") as origin:
        quotas = {"quotas": {"clientConnections": 1}}
        hub = Hub.from_config({"mcpServers": _definition(origin), "holdfast": quotas})
        app = create_app(hub, tokens=TokenPolicy(tokens={"ada": "token-a", "bob": "token-b"}))
        async with (
            hub,
            serving(app) as base,
            _known(ada, f"{base}/mcp", _key(), token="token-a") as first,
            _known(ada, f"{base}/mcp", _key(), token="token-a") as second,
            _known(bob, f"{base}/mcp", _key(), token="token-b") as other,
        ):
            with anyio.fail_after(30):
                await hub.ready()
                assert await _bumps(first) == ["1"]
                refused = await second.call_tool("o__bump", {})
                assert await _bumps(other) == ["1"]
    assert refused.is_error
    assert "holdfast.quotas.clientConnections" in text_of(refused)


@pytest.mark.requirement("SEC-18")
async def test_the_record_of_a_call_names_its_principal(ada: Person) -> None:
    records: list[object] = []
    async with running("legacy") as origin:
        hub = Hub.from_config({"mcpServers": _definition(origin)})
        hub.listen(records.append)
        app = create_app(hub, tokens=TokenPolicy(tokens={"ada": "token-a"}))
        async with hub, serving(app) as base, _known(ada, f"{base}/mcp", _key(), token="token-a") as client:
            with anyio.fail_after(30):
                await hub.ready()
                await _bumps(client)
    (ended,) = [record for record in records if isinstance(record, CallEnded)]
    assert ended.principal == "ada"
    assert as_fields(ended)["principal"] == "ada"


async def test_two_clients_behind_one_token_that_do_not_say_who_they_are_share_nothing_and_are_told(
    ada: Person, bob: Person
) -> None:
    async with (
        _stateful() as served,
        ada.client(served.all, "modern") as one,
        bob.client(served.all, "modern") as other,
    ):
        with anyio.fail_after(40):
            first, second = [await client.call_tool("o__bump", {}) for client in (one, other)]
            again = await one.call_tool("o__bump", {})
            status: Any = (await one.call_tool("holdfast_status", {})).structured_content
        assert served.hub.registry.clients.all() == []
        told = one.session.instructions or ""
    for result in (first, second, again):
        number, notice = (block.text for block in result.content if block.type == "text")
        assert number == "1"
        assert CLIENT_HEADER in notice
        assert (result.meta or {})[STATELESS] is True
    assert CLIENT_HEADER in status["servers"]["o"]["finding"]
    assert "nothing is kept between calls" in told


async def test_a_client_that_is_known_or_has_a_session_is_told_nothing_of_the_kind(ada: Person, bob: Person) -> None:
    async with (
        _stateful() as served,
        _known(ada, served.all, _key()) as modern,
        bob.client(served.all, "legacy") as legacy,
    ):
        with anyio.fail_after(30):
            for client in (modern, legacy):
                result = await client.call_tool("o__bump", {})
                assert len(result.content) == 1
                assert STATELESS not in (result.meta or {})
                assert "nothing is kept" not in (client.session.instructions or "")
        status: Any = (await modern.call_tool("holdfast_status", {})).structured_content
    assert "finding" not in status["servers"]["o"]


@pytest.mark.parametrize("key", ["cursor", "x" * 129, "sixteen letters and spaces", "ü" * 20])
async def test_a_key_that_others_might_choose_too_is_refused(key: str, ada: Person) -> None:
    async with _stateful() as served, ada.client(served.all, "modern") as client:
        with pytest.raises(MCPError, match="16 to 128"):
            await client.call_tool("o__bump", {}, meta=_meta(key))


async def test_a_header_and_a_meta_that_disagree_are_refused(ada: Person) -> None:
    async with _stateful() as served, _known(ada, served.all, _key()) as client:
        with pytest.raises(MCPError, match="must be one random text"):
            await client.call_tool("o__bump", {}, meta=_meta(_key()))


async def test_one_client_more_than_the_bound_is_refused_in_words_until_another_leaves(
    ada: Person, bob: Person
) -> None:
    key = _key()
    async with (
        _stateful(perClient={"connections": 1}) as served,
        _known(ada, served.all, key) as one,
        _known(bob, served.all, _key()) as other,
    ):
        with anyio.fail_after(40):
            assert await _bumps(one) == ["1"]
            refused = await other.call_tool("o__bump", {})
            assert await _bumps(one) == ["2"]
            async with httpx2.AsyncClient() as http:
                left = await http.delete(served.all, headers={CLIENT_HEADER: key})
            assert await _bumps(other) == ["1"]
    assert left.status_code == 204
    assert refused.is_error
    assert "holdfast.perClient.connections" in text_of(refused)


@asynccontextmanager
async def _on_fake_time(clock: FakeClock, **options: Any) -> AsyncIterator[Served]:
    async with running("legacy") as origin:
        config = {"mcpServers": _definition(origin), "holdfast": {"refresh": "off", **options}}
        hub = Hub.from_config(config, clock=clock)
        app = create_app(hub)
        async with hub, serving(app) as base:
            with anyio.fail_after(10):
                await hub.ready()
            yield Served(hub, app, base)


async def test_a_connection_whose_client_was_not_heard_of_for_long_is_ended(ada: Person) -> None:
    clock = FakeClock()
    async with _on_fake_time(clock, perClient={"idle": "1m"}) as served, _known(ada, served.all, _key()) as client:
        with anyio.fail_after(30):
            assert await _bumps(client) == ["1"]
            await clock.advance(50)
            assert await _bumps(client) == ["2"]
            await clock.advance(50)
            (slot,) = served.hub.registry.clients.all()
            await clock.advance(15)
            assert served.hub.registry.clients.all() == []
            await slot.closed.wait()
            assert await _bumps(client) == ["1"]


async def test_a_connection_is_not_ended_under_a_call_however_long_it_takes(ada: Person) -> None:
    clock, asked, go_on = FakeClock(), anyio.Event(), anyio.Event()

    async def think() -> None:
        asked.set()
        await go_on.wait()

    ada.before_answering = think
    answers: list[str] = []
    async with _on_fake_time(clock, perClient={"idle": "1m"}) as served, _known(ada, served.all, _key()) as client:

        async def ask() -> None:
            answers.append(text_of(await client.call_tool("o__ask", {"kind": "elicit"})))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await asked.wait()
                await clock.advance(600)
                go_on.set()
    assert answers == ["ada's blue"]


async def test_a_session_that_ends_during_a_call_leaves_no_connection_of_its_own() -> None:
    async with _stateful() as served, httpx2.AsyncClient() as http:
        session = Session(http, served.all)
        with anyio.fail_after(30):
            await session.begin(elicitation={})
            async with session.call("o__ask", {"kind": "elicit"}) as events:
                asked = [await anext(events), await anext(events)]
                assert "elicitation/create" in asked[-1]["data"]
                (slot,) = served.hub.registry.clients.all()
                await session.end()
            await slot.closed.wait()
        assert served.hub.registry.clients.all() == []


@pytest.mark.parametrize("how", ["removed", "disabled"])
async def test_connections_of_single_clients_end_when_their_server_is_removed_or_switched_off(
    how: str, ada: Person
) -> None:
    async with _stateful() as served, _known(ada, served.all, _key()) as client:
        with anyio.fail_after(30):
            await _bumps(client)
            (slot,) = served.hub.registry.clients.all()
            if how == "removed":
                await served.hub.apply(Hub.from_config({"mcpServers": {}}).config)
            else:
                await served.hub.toggle("o", enabled=False)
                result = await client.call_tool("o__bump", {})
                assert "disabled" in text_of(result)
            await slot.closed.wait()
        assert served.hub.registry.clients.all() == []


async def test_a_changed_resource_of_a_clients_own_connection_is_told_to_that_client_alone(
    ada: Person, bob: Person
) -> None:
    both = ["note://one", "note://of/all"]
    async with (
        _stateful() as served,
        _known(ada, served.all, _key()) as one,
        _known(bob, served.all, _key()) as other,
    ):
        with anyio.fail_after(30):
            await _bumps(one)
            await _bumps(other)
            async with (
                one.listen(resource_subscriptions=both) as mine,
                other.listen(resource_subscriptions=both) as theirs,
            ):
                await one.call_tool("o__touch", {"uri": both[0]})
                assert await anext(mine) == ResourceUpdated(both[0])
                await other.call_tool("o__touch", {"uri": both[1]})
                assert await anext(theirs) == ResourceUpdated(both[1])


async def test_what_a_client_only_says_in_passing_begins_no_connection(ada: Person) -> None:
    async with _stateful() as served, ada.client(served.all, "legacy") as client:
        with anyio.fail_after(10):
            await client.session.send_notification(types.RootsListChangedNotification())
            await client.session.send_request(
                types.SetLevelRequest(params=types.SetLevelRequestParams(level="debug")), types.EmptyResult
            )
            await client.list_tools()
        assert served.hub.registry.clients.all() == []
