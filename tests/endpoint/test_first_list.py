"""On the first run a list waits a moment for servers that are coming up: a client may never ask again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from holdfast.core.lifecycle.table import State
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.clients import Client, Outlet
from holdfast.endpoint.own_answers import status_result
from holdfast.endpoint.view import View
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock
from tests.harness.served_hub import Era, Person, front, text_of
from tests.harness.waiting import all_blocked
from tests.harness.web import serving
from tests.peers.peer_server import Origin, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-9")]


@dataclass
class _Slow:
    """A server that answers only when the test allows it."""

    url: str = ""
    asked: anyio.Event = field(default_factory=anyio.Event)
    may: anyio.Event = field(default_factory=anyio.Event)


@asynccontextmanager
async def slow_server() -> AsyncIterator[_Slow]:
    slow, sessions = _Slow(), StreamableHTTPSessionManager(Origin())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # it has no lifespan, and the web server tries
        slow.asked.set()
        await slow.may.wait()
        await sessions.handle_request(scope, receive, send)

    async with sessions.run(), serving(app) as base:
        slow.url = f"{base}/mcp"
        try:
            yield slow
        finally:
            slow.may.set()


async def test_the_first_list_waits_for_a_server_of_which_nothing_is_known_yet(client_era: Era, ada: Person) -> None:
    async with (
        running() as origin,
        slow_server() as slow,
        front(
            {"quick": {"url": origin.url}, "slow": {"url": slow.url}}, wait=False, call={"readyTimeout": "60s"}
        ) as served,
    ):
        names: list[str] = []

        async def list_once() -> None:
            async with ada.client(served.all, client_era) as client:
                names.extend(tool.name for tool in (await client.list_tools()).tools)

        with anyio.fail_after(20):
            await slow.asked.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(list_once)
                await served.hub.registry.slot("quick").has_outcome.wait()
                slow.may.set()
    assert {"quick__echo", "slow__echo"} <= set(names)


async def test_a_first_call_waits_for_its_server_to_be_known(ada: Person) -> None:
    async with (
        slow_server() as slow,
        front({"slow": {"url": slow.url}}, wait=False, call={"readyTimeout": "60s"}) as served,
        ada.client(served.all, "modern") as client,
    ):
        answers: list[str] = []

        async def call() -> None:
            answers.append(text_of(await client.call_tool("slow__echo", {"text": "hi"})))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await slow.asked.wait()
                slow.may.set()
    assert answers == ["hi"]


async def test_a_server_that_hangs_keeps_a_list_waiting_only_in_its_first_moments(ada: Person) -> None:
    clock = FakeClock()
    async with running() as origin, slow_server() as slow:
        servers = {"quick": {"url": origin.url}, "slow": {"url": slow.url}}
        hub = Hub.from_config({"mcpServers": servers}, clock=clock)
        app = create_app(hub)
        async with hub, serving(app) as base, ada.client(f"{base}/mcp", "modern") as client:
            with anyio.fail_after(20):
                await slow.asked.wait()
                await hub.registry.slot("quick").has_outcome.wait()
                await clock.advance(6)
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert not hub.registry.slot("slow").has_outcome.is_set()
    assert "quick__echo" in names
    assert "slow__echo" not in names


async def test_one_servers_own_endpoint_waits_for_no_other(ada: Person) -> None:
    async with (
        running() as origin,
        slow_server() as slow,
        front(
            {"quick": {"url": origin.url}, "slow": {"url": slow.url}}, wait=False, call={"readyTimeout": "60s"}
        ) as served,
    ):
        with anyio.fail_after(20):
            async with ada.client(served.one("quick"), "modern") as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
    assert "echo" in names


@pytest.mark.requirement("HUB-13")
async def test_a_call_to_a_server_that_never_answered_is_answered_while_the_server_is_still_dialed(ada: Person) -> None:
    async with (
        slow_server() as slow,
        front({"one": {"type": "http", "url": slow.url}}, wait=False) as served,
        ada.client(served.all, "legacy") as client,
    ):
        await slow.asked.wait()
        with anyio.fail_after(60):
            result = await client.call_tool("one__unlisted", {})
        assert "is starting up and not ready yet" in text_of(result)
        assert served.hub.server_health("one").state is State.CONNECTING


def _client(hub: Hub, clock: FakeClock, program: str = "") -> Client:
    outlet = cast("Outlet", None)  # it is told nothing
    return Client(View(hub), outlet, {}, modern=False, owner="one", clock=clock.now, program=program)


@pytest.mark.requirement("HUB-13")
@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        ("mcp", 4.0),
        ("", 4.0),
        ("claude-ai", 15.0),
        ("claude-code", 15.0),
        ("codex-mcp-client", 5.0),
        ("gemini-cli-mcp-client-holdfast", 15.0),
        ("codex-mcp-clients", 4.0),
    ],
)
async def test_the_first_list_of_a_client_waits_for_as_long_as_its_program_bears(program: str, seconds: float) -> None:
    clock = FakeClock()
    async with slow_server() as slow:
        hub = Hub.from_config({"mcpServers": {"slow": {"url": slow.url}}}, clock=clock)
        async with hub:
            servers = Broker(hub).servers
            client = Client(
                View(hub),
                cast("Outlet", None),
                capabilities={},
                modern=False,
                owner="o",
                clock=clock.now,
                program=program,
            )
            await slow.asked.wait()
            await clock.advance(60)  # the server still starts: it is the client's patience that counts
            answered = anyio.Event()

            async def ask() -> None:
                await servers.wait_for_first_listing(client.view, client)
                answered.set()

            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask)
                    await all_blocked()
                    await clock.advance(seconds - 0.1)
                    await all_blocked()
                    assert not answered.is_set()
                    await clock.advance(0.2)
                    await answered.wait()
                client.listed = {"tools/list": "given"}
                await servers.wait_for_first_listing(client.view, client)  # a later list waits no more
                status = status_result(client.view, {}, {})
    assert "slow" in status["content"][0]["text"]
    assert "starting" in status["content"][0]["text"]


@pytest.mark.requirement("HUB-13")
async def test_the_first_list_ends_its_wait_when_the_last_server_has_an_outcome() -> None:
    clock = FakeClock()
    async with slow_server() as slow:
        hub = Hub.from_config({"mcpServers": {"slow": {"url": slow.url}}}, clock=clock)
        async with hub:
            client = _client(hub, clock)
            with anyio.fail_after(20):
                await slow.asked.wait()
                slow.may.set()
                await Broker(hub).servers.wait_for_first_listing(client.view, client)
            assert [tool.original for tool in hub.catalog.tools]
