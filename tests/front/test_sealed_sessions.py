"""A legacy session goes on at a hub that does not know it: after a restart, on another replica, after it idled."""

from __future__ import annotations

import json
import logging
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.access.principals import TokenPolicy
from holdfast.endpoint import EndpointAddress
from holdfast.endpoint.instructions import RESTARTED
from holdfast.front import requests, session_store as sessions_module
from holdfast.front.app import Front, create_app
from holdfast.front.session_id import SessionIds, SessionKeys
from holdfast.front.session_store import HttpSessions, SessionStore
from holdfast.hub.hub import Hub
from tests.clients.raw import initialize
from tests.harness.raw_session import Session
from tests.harness.served_hub import Served
from tests.harness.waiting import asked, came_true
from tests.harness.web import serving
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-1")]

TOKENS = TokenPolicy(tokens={"ada": "the token of ada is long", "bob": "the token of bob is long"})


class Replica:
    """One process of a hub: its own sessions in memory, the same keys and the same file as its siblings."""

    def __init__(self, served: Served, http: httpx2.AsyncClient) -> None:
        self.served = served
        self.http = http

    @property
    def front(self) -> Front:
        found: Front = self.served.app.state.front
        return found

    @property
    def sessions(self) -> HttpSessions:
        found = self.front.endpoint_of(EndpointAddress())
        assert found is not None
        return found.sessions

    async def ask(self, session_id: str, method: str, path: str = "/mcp", token: str = "", **params: Any) -> Any:
        """The response to one request of a session."""
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
            "mcp-session-id": session_id,
        }
        if token:
            headers["authorization"] = f"Bearer {token}"
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return await self.http.post(self.served.base + path, json=body, headers=headers)

    async def begin(self, token: str = "", path: str = "/mcp", **capabilities: Any) -> str:
        """Shake hands; returns the session id."""
        headers = {"accept": "application/json, text/event-stream"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        request = initialize()
        request["params"]["capabilities"] = capabilities
        answer = await self.http.post(self.served.base + path, json=request, headers=headers)
        return str(answer.headers["mcp-session-id"])


@asynccontextmanager
async def _replica(
    folder: Path, servers: dict[str, Any], tokens: TokenPolicy | None = None, **options: Any
) -> AsyncIterator[Replica]:
    ids = SessionIds(SessionKeys.kept(folder), SessionStore(folder / "sessions.sqlite"))
    hub = Hub.from_config({"mcpServers": servers, "holdfast": options})
    app = create_app(hub, tokens=tokens, ids=ids)
    async with hub, serving(app) as base, httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        assert await hub.ready(10)
        yield Replica(Served(hub, app, base), http)


async def _status(replica: Replica, session_id: str, **more: Any) -> int:
    answer = await replica.ask(session_id, "ping", **more)
    return int(answer.status_code)


@pytest.mark.requirement("HUB-14")
async def test_a_session_goes_on_after_a_restart_with_its_log_level_and_subscriptions(tmp_path: Path) -> None:
    async with running("legacy") as origin:
        servers = {"o": {"url": origin.url}}
        async with _replica(tmp_path, servers) as before:
            session = Session(before.http, before.served.all)
            await session.begin()
            session_id = session.headers["mcp-session-id"]
            uri = (await before.ask(session_id, "resources/list")).json()["result"]["resources"][0]["uri"]
            assert (await before.ask(session_id, "logging/setLevel", level="error")).status_code == 200
            assert (await before.ask(session_id, "resources/subscribe", uri=uri)).json()["result"] == {}
        async with _replica(tmp_path, servers) as after:
            answer = await after.ask(session_id, "tools/call", name="o__pid", arguments={})
            assert answer.status_code == 200
            assert "result" in answer.json()
            (rebuilt,) = after.sessions.all()
            assert rebuilt.client.log_level == "error"
            await came_true(lambda: rebuilt.client.subscribed)
            again = Session(after.http, after.served.all)
            again.headers["mcp-session-id"] = session_id
            async with again.notices() as events:
                told = [json.loads((await _data(events))["data"])["method"] for _ in range(4)]
            assert told == [
                "notifications/tools/list_changed",
                "notifications/prompts/list_changed",
                "notifications/resources/list_changed",
                "notifications/resources/updated",
            ]


async def _data(events: AsyncIterator[dict[str, str]]) -> dict[str, str]:
    with anyio.fail_after(10):
        while not (event := await anext(events)).get("data"):
            pass
    return event


async def test_a_forged_foreign_or_ended_session_is_not_found(tmp_path: Path) -> None:
    async with (
        running("legacy") as origin,
        _replica(tmp_path, {"o": {"url": origin.url}}, TOKENS) as one,
        _replica(tmp_path, {"o": {"url": origin.url}}, TOKENS) as other,
    ):
        ada, bob = TOKENS.tokens["ada"], TOKENS.tokens["bob"]
        session_id = await one.begin(ada)
        assert await _status(other, session_id, token=ada) == 200
        assert await _status(one, session_id, token=bob) == 404  # known to this hub
        third = await one.begin(ada)
        assert await _status(other, third, token=bob) == 404  # not known to this hub
        assert await _status(other, third, token=ada, path="/servers/o/mcp") == 404
        assert await _status(other, third[:-1] + ("A" if third[-1] != "A" else "B"), token=ada) == 404
        headers = {"mcp-session-id": session_id, "authorization": f"Bearer {ada}"}
        ended = await one.http.delete(one.served.all, headers=headers)
        assert ended.status_code == 200
        assert await _status(one, session_id, token=ada) == 404

        async def ended_there() -> bool:
            return await _status(other, session_id, token=ada) == 404

        await asked(ended_there)  # it is in the memory of the other one, which polls the file
        assert await _status(other, third, token=ada) == 200


@pytest.mark.requirement("PERF-8")
async def test_abandoned_sessions_leave_the_memory_and_one_that_comes_back_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("legacy") as origin, _replica(tmp_path, {"o": {"url": origin.url}}) as hub:
        ids = [await hub.begin() for _ in range(100)]
        for session_id in ids:
            assert await _status(hub, session_id) == 200
        broker = hub.front.broker
        assert (len(hub.sessions.all()), len(broker.attribution.clients)) == (100, 100)
        listening = Session(hub.http, hub.served.all)
        listening.headers["mcp-session-id"] = ids[0]
        async with listening.notices():
            monkeypatch.setattr(sessions_module, "SESSION_IDLE_SECONDS", 0.0)
            hub.sessions.sweep()
            assert (len(hub.sessions.all()), len(broker.attribution.clients)) == (1, 1)  # the one with a stream
        await came_true((tmp_path / "sessions.sqlite").exists)
        with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as kept:
            tables = "SELECT 1 FROM sqlite_master WHERE name = 'listed_until'"  # the last part of the schema
            await came_true(lambda: kept.execute(tables).fetchone() is not None)
            (rows,) = kept.execute("SELECT (SELECT count(*) FROM sessions) + count(*) FROM listed").fetchone()
        assert rows <= 1, "they had nothing to keep, but for the lists of the one with a stream"
        assert await _status(hub, ids[50]) == 200


async def test_a_call_that_the_hub_lost_is_answered_when_its_stream_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.0)
    async with running("legacy") as origin:
        servers = {"o": {"url": origin.url}}
        async with _replica(tmp_path, servers) as before:
            session = Session(before.http, before.served.all)
            await session.begin()
            async with session.call("o__wait", {}) as events:
                first = await anext(events)
                await origin.waiting.wait()
        async with _replica(tmp_path, servers) as after:
            again = Session(after.http, after.served.all)
            again.headers = session.headers
            (told,) = await again.come_back(after=first["id"])
    answer = json.loads(told["data"])
    assert answer["id"] == 7
    assert "not known" in answer["error"]["message"]


async def test_an_answer_to_a_question_of_another_process_is_told_and_reaches_no_other_question(
    tmp_path: Path,
) -> None:
    async with running("legacy") as origin, _replica(tmp_path, {"o": {"url": origin.url}}) as hub:
        session_id = await hub.begin(elicitation={})
        headers = {"accept": "application/json", "mcp-session-id": session_id}
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}
        told = await hub.http.post(hub.served.all, json=answer, headers=headers)
    assert told.status_code == 400
    assert "this question is not open" in told.json()["error"]["message"]


async def test_capabilities_that_do_not_fit_are_dropped_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noise = random.Random(7).randbytes(3_000).hex()
    with caplog.at_level(logging.WARNING):
        async with running("legacy") as origin, _replica(tmp_path, {"o": {"url": origin.url}}) as hub:
            session_id = await hub.begin(experimental={"large": {"text": noise}}, roots={})
            (session,) = hub.sessions.all()
            assert session.client is not None
            assert session.client.capabilities == {"roots": {}}
    assert len(session_id) <= 1_024
    assert "experimental.large" in caplog.text


@pytest.mark.requirement("HUB-10")
async def test_a_connection_of_ones_own_outlives_idling_and_its_loss_in_a_restart_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bump(replica: Replica) -> tuple[str, bool]:
        answer = (await replica.ask(session_id, "tools/call", name="o__bump", arguments={})).json()["result"]
        return answer["content"][0]["text"], RESTARTED in (answer.get("_meta") or {})

    async with running("legacy") as origin:
        servers = {"o": {"url": origin.url, "sharing": "per-client"}}
        async with _replica(tmp_path, servers) as before:
            session_id = await before.begin()
            assert [await bump(before), await bump(before)] == [("1", False), ("2", False)]
            with monkeypatch.context() as patch:
                patch.setattr(sessions_module, "SESSION_IDLE_SECONDS", 0.0)
                before.sessions.sweep()
            assert not before.sessions.all()
            assert await bump(before) == ("3", False)
        async with _replica(tmp_path, servers) as after:
            assert [await bump(after), await bump(after)] == [("1", True), ("2", False)]
