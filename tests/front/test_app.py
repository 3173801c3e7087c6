"""What the application serves beside messages, and how its endpoints come and go with their servers."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from holdfast.access import ProtectedResource
from holdfast.config import config_from_mapping
from holdfast.front.app import create_app
from holdfast.hub import Hub
from tests.clients.raw import initialize
from tests.harness.raw_session import VERSION, Session
from tests.harness.served_hub import front
from tests.harness.waiting import came_true
from tests.harness.web import serving
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio

ACCEPT = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}


@pytest.mark.requirement("HUB-1")
async def test_a_server_that_is_removed_has_no_endpoint_and_its_sessions_end() -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        hub_front = served.app.state.front
        everywhere, session = Session(http, served.all), Session(http, served.one("o"))
        await everywhere.begin()
        await session.begin()
        with anyio.fail_after(20):
            async with session.notices() as events:
                await came_true(lambda: any(one.listening for one in hub_front.sessions.all()))
                await served.hub.apply(config_from_mapping({"mcpServers": {}}))
                async for _ in events:
                    pass  # its stream ends
        await came_true(lambda: len(hub_front.sessions.all()) == 1)
        assert (await http.post(served.one("o"), json=initialize(), headers=ACCEPT)).status_code == 404
        assert (await http.post(served.all, json=initialize(), headers=ACCEPT)).status_code == 200
        await served.hub.apply(config_from_mapping({"mcpServers": {"o": {"url": origin.url}}}))
        answer = await http.post(served.one("o"), json=initialize(), headers=ACCEPT)
        assert answer.status_code == 200, "it is there again"


@pytest.mark.requirement("HUB-1")
async def test_a_call_whose_server_is_removed_gets_its_answer_before_its_session_ends() -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        hub_front, session = served.app.state.front, Session(http, served.one("o"))
        await session.begin()
        answers: list[dict[str, str]] = []

        async def call() -> None:
            async with session.call("wait", {}) as events:
                answers.extend([event async for event in events])

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await origin.waiting.wait()
                await served.hub.apply(config_from_mapping({"mcpServers": {}}))
        assert "removed" in answers[0]["data"]
        await came_true(lambda: not hub_front.sessions.all())


@pytest.mark.requirement("FLEET-7")
async def test_a_hub_that_is_told_when_it_is_ready_does_not_decide_it_itself() -> None:
    async with front({}) as served, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        hub_front = served.app.state.front
        for told, accepted, status in ((True, False, 503), (True, True, 200), (False, False, 200)):
            hub_front.is_told_ready, hub_front.accepted = told, accepted
            answer = await http.get(f"{served.base}/readyz")
            assert (answer.status_code, answer.json()) == (status, {"ready": status == 200, "draining": False})


@pytest.mark.requirement("HUB-1")
async def test_an_address_with_a_slash_at_its_end_leads_to_the_endpoint() -> None:
    async with front({}) as served, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        for path, leads_to in (
            ("/mcp/", "/mcp"),
            ("/mcp/?tools=find", "/mcp?tools=find"),
            ("/servers/x/mcp/", "/servers/x/mcp"),
        ):
            answer = await http.post(served.base + path, json=initialize(), headers=ACCEPT)
            assert answer.status_code == 308
            assert str(httpx2.URL(served.base + path).join(answer.headers["location"])) == served.base + leads_to


@pytest.mark.requirement("SEC-13")
async def test_a_hub_without_logins_and_assertions_publishes_none() -> None:
    async with front({}) as served, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        keys = await http.get(f"{served.base}/.well-known/jwks.json")
        for path in ("", "/mcp"):
            metadata = await http.get(f"{served.base}/.well-known/oauth-protected-resource{path}")
            assert metadata.status_code == 404
    assert (keys.json(), keys.headers["cache-control"]) == ({"keys": []}, "max-age=300")


@pytest.mark.requirement("SEC-20")
async def test_where_a_token_comes_from_is_told_for_the_hub_and_for_each_endpoint_alone() -> None:
    hub = Hub.from_config({"mcpServers": {}})
    app = create_app(hub, resource=ProtectedResource("https://hub.example", "https://idp.example"))
    async with hub, serving(app) as base, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        told = {}
        for path in ("", "/", "/mcp", "/servers/any/mcp", "/mcp/more", "/healthz"):
            answer = await http.get(f"{base}/.well-known/oauth-protected-resource{path}")
            told[path] = answer.json().get("resource", answer.status_code)
    assert told == {
        "": "https://hub.example",
        "/": "https://hub.example",
        "/mcp": "https://hub.example/mcp",
        "/servers/any/mcp": "https://hub.example/servers/any/mcp",
        "/mcp/more": 404,
        "/healthz": 404,
    }


@pytest.mark.requirement("FLEET-1")
async def test_the_time_without_use_of_a_session_begins_with_the_end_of_its_last_request() -> None:
    async with (
        running("legacy") as origin,
        front({"o": {"url": origin.url}}) as served,
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        session = Session(http, served.all)
        await session.begin()
        (kept,) = served.app.state.front.sessions.all()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    async with session.call("o__wait", {}) as events:
                        assert [event async for event in events]

                tasks.start_soon(call)
                await origin.waiting.wait()
                assert (kept.idle, kept.serving) == (False, 1)
                kept.used_at = 0.0
                await served.hub.apply(config_from_mapping({"mcpServers": {}}))
            await came_true(lambda: kept.idle)
        assert kept.used_at > 0.0
