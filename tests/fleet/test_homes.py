"""Requests that belong to another replica reach it: three hubs, one fleet, clients that come in at any of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from holdfast.access import AuditFiles, AuditFilter, AuditKey, AuditReader, AuditTrail
from holdfast.access.principals import CLIENT_HEADER, TokenPolicy
from holdfast.core import FleetExchange, FleetReply, SharedStore, replica_tag
from holdfast.core.replicas import member
from holdfast.endpoint import EndpointAddress
from holdfast.endpoint.tasks import ServerTask, TaskIds
from holdfast.fleet import Fleet, PeerAddress, Peers, StoreUnavailable, home_name
from holdfast.front import requests
from holdfast.front.app import create_app
from holdfast.front.http import HttpEndpoint
from holdfast.front.peer_requests import MOST_TRIES, PeerListener
from holdfast.front.requests import Request
from holdfast.front.session_id import SessionIds, SessionKeys
from holdfast.hub import Hub
from holdfast.identity import FleetIdentity
from holdfast.keys import KeyRing
from tests.clients.raw import MODERN_META, initialize
from tests.harness.open_hubs import config
from tests.harness.served_hub import PATIENT, Served, over_stdio
from tests.harness.waiting import asked, came_true
from tests.harness.web import serving
from tests.peers.modern_tasks import EXTENSION, ModernTasks
from tests.peers.peer_server import Origin, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-5")]

KEY = b"k" * 32
TOKENS = TokenPolicy(tokens={"ada": "the token of ada is long", "bob": "the token of bob is long"})
PATIENCE = 20
FORM: dict[str, Any] = {"elicitation": {"form": {}}}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer becomes an event stream at once, and not only when it takes long."""
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas find each other sooner."""
    hurry(monkeypatch)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times that replicas wait for each other."""
    monkeypatch.setattr(member, "ROSTER_SECONDS", 0.05)
    monkeypatch.setattr(member, "EXCHANGE_SECONDS", 0.05)
    monkeypatch.setattr(requests, "STREAM_AFTER_SECONDS", 0.3)


class MemoryStore:
    """The store of the fleet, in this process."""

    name, connections = "memory", 1

    def __init__(self) -> None:
        self._shared = SharedStore()
        self.cut: set[str] = set()
        """The replicas that do not reach it."""

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        await anyio.lowlevel.checkpoint()
        if asked.replica in self.cut:
            raise StoreUnavailable("it is cut off")
        return self._shared.exchange(asked, anyio.current_time())

    async def close(self) -> None:
        pass


class Replica:
    """One hub of the fleet."""

    query = ""

    def __init__(self, served: Served, fleet: Fleet) -> None:
        self.served = served
        self.fleet = fleet
        assert fleet.peers is not None
        self.peers = fleet.peers
        self.listener: PeerListener = served.app.state.front.peer_listener

    @property
    def url(self) -> str:
        return self.served.all + self.query

    async def vanish(self, *others: Replica) -> None:
        """It is gone for the others: it does not answer, and is not present any more."""
        await self.die()
        store = self.fleet.store
        assert isinstance(store, MemoryStore)
        store.cut.add(self.fleet.replica)
        store._shared.died(self.fleet.replica)
        await came_true(lambda: not any(self.fleet.replica in one.fleet.member.peers for one in others))

    async def die(self) -> None:
        """It does not answer other replicas any more, and still counts as present."""
        self.listener.close()
        await came_true(lambda: not self.listener.connections)


@asynccontextmanager
async def replicas(
    servers: dict[str, Any],
    count: int = 2,
    *,
    tokens: TokenPolicy | None = None,
    audit: AuditTrail | None = None,
    **settings: object,
) -> AsyncIterator[list[Replica]]:
    """Hubs that share a broker, each of which knows the others; ``settings`` are the keys under ``holdfast``."""
    async with AsyncExitStack() as stack:
        store, found = MemoryStore(), []
        for number in range(count):
            at = PeerAddress.parse("tcp://127.0.0.1:0")
            peers = Peers(FleetIdentity(lambda: KeyRing([KEY]), f"r{number}"), advertise=at)
            fleet = Fleet(store, replica=f"r{number}", peers=peers, keys=lambda: KeyRing([KEY]))
            hub = Hub(config(servers, **settings), fleet=fleet, hub_tls=peers.identity.client, has_local=tokens is None)
            ids = SessionIds(SessionKeys([KEY], shared=True), home=home_name(f"r{number}"))
            app = create_app(hub, tokens=tokens, ids=ids, fleet=fleet, audit=audit)
            await stack.enter_async_context(hub)
            base = await stack.enter_async_context(serving(app))
            found.append(Replica(Served(hub, app, base), fleet))
        with anyio.fail_after(PATIENCE):
            for one in found:
                assert await one.served.hub.ready(PATIENCE)
                await came_true(lambda one=one: len(one.peers.others) >= count - 1)  # type: ignore[misc]
            yield found


class LegacyClient:
    """A session by hand; each request names the replica that it comes in at."""

    def __init__(self, http: httpx2.AsyncClient, token: str = "") -> None:
        self.http = http
        self.headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    async def begin(self, at: Replica, **capabilities: Any) -> None:
        request = initialize()
        request["params"]["capabilities"] = capabilities
        answer = await self.http.post(at.url, json=request, headers=self.headers)
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        await self.notice(at, "notifications/initialized")

    async def notice(self, at: Replica, method: str, **params: Any) -> None:
        told = {"jsonrpc": "2.0", "method": method, "params": params}
        assert (await self.http.post(at.url, json=told, headers=self.headers)).status_code == 202

    async def answer(self, at: Replica, question: Any, **result: Any) -> httpx2.Response:
        said = {"jsonrpc": "2.0", "id": question, "result": result}
        return await self.http.post(at.url, json=said, headers=self.headers)

    async def ask(self, at: Replica, method: str, **params: Any) -> Any:
        """The last message of the answer."""
        async with self.stream(at, method, **params) as events:
            return [event async for event in events][-1]["message"]

    async def call(self, at: Replica, tool: str, *, request_id: Any = 7, **arguments: Any) -> str:
        said = await self.ask(at, "tools/call", request_id=request_id, name=tool, arguments=arguments)
        return str(said["result"]["content"][0]["text"])

    @asynccontextmanager
    async def stream(
        self, at: Replica, method: str, *, request_id: Any = 7, **params: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        async with self.http.stream("POST", at.url, json=body, headers=self.headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield events_of(answer)

    @asynccontextmanager
    async def open(self, at: Replica, *, after: str | None = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        headers = self.headers if after is None else {**self.headers, "last-event-id": after}
        async with self.http.stream("GET", at.url, headers=headers, timeout=None) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield events_of(answer)


async def events_of(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The events with a message; and the first one without, by its id."""
    if answer.headers["content-type"] == "application/json":
        yield {"message": json.loads(await answer.aread())}
        return
    event: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            event[name] = value
        elif event:
            if event.get("data"):
                event["message"] = json.loads(event["data"])
            yield event
            event = {}


async def message(events: AsyncIterator[dict[str, Any]], method: str) -> Any:
    """The next message of a method; others are passed over."""
    async for event in events:
        if event.get("message", {}).get("method") == method:
            return event["message"]
    raise AssertionError(f"the stream ended without {method}")


@asynccontextmanager
async def scene(
    count: int = 2, *, tokens: TokenPolicy | None = None, audit: AuditTrail | None = None, **more: Any
) -> AsyncIterator[tuple[Origin, list[Replica], httpx2.AsyncClient]]:
    async with (
        running("legacy") as origin,
        replicas({"o": {"url": origin.url, **more}}, count, tokens=tokens, audit=audit) as found,
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
    ):
        yield origin, found, http


@pytest.mark.parametrize("kind", ["elicit", "sample", "roots"])
async def test_a_question_of_one_replica_is_answered_through_another(kind: str) -> None:
    answers: dict[str, Any] = {
        "elicit": {"action": "accept", "content": {"colour": "blue"}},
        "sample": {"role": "assistant", "model": "none", "content": {"type": "text", "text": "blue"}},
        "roots": {"roots": [{"uri": "file:///blue"}]},
    }
    async with scene() as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a, **FORM, sampling={}, roots={})
        async with client.stream(a, "tools/call", name="o__ask", arguments={"kind": kind}) as events:
            question = [event async for event in _until_question(events)][-1]["message"]
            assert (await client.answer(b, question["id"], **answers[kind])).status_code == 202
            result = [event async for event in events][-1]["message"]
        assert "blue" in result["result"]["content"][0]["text"]


async def _until_question(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    async for event in events:
        yield event
        if "id" in event.get("message", {}) and "method" in event["message"]:
            return


async def test_a_replica_that_just_joined_is_found_by_one_that_does_not_know_it_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is present is asked once a second; a question of a new replica may be answered sooner."""
    async with scene() as (_, (a, b), http):
        monkeypatch.setattr(member, "ROSTER_SECONDS", 1_000.0)

        def forget_a() -> None:
            _forget(a, at=b)

        client = LegacyClient(http)
        await client.begin(a, **FORM)
        async with client.stream(a, "tools/call", name="o__ask", arguments={"kind": "elicit"}) as events:
            question = [event async for event in _until_question(events)][-1]["message"]
            forget_a()
            said = {"action": "accept", "content": {"colour": "blue"}}
            assert (await client.answer(b, question["id"], **said)).status_code == 202
            assert "blue" in [event async for event in events][-1]["message"]["result"]["content"][0]["text"]
        asked = {"kind": "elicit"}
        first = (await modern_call(http, a, "o__ask", arguments=asked))["result"]
        forget_a()
        again = {"arguments": asked, "requestState": first["requestState"], "inputResponses": {"q1": said}}
        assert (await modern_call(http, b, "o__ask", **again))["result"]["content"][0]["text"] == "blue"


@pytest.mark.parametrize("ago", [1.0, 0.0])
async def test_a_client_whose_home_just_joined_is_sent_there_by_one_that_does_not_know_it_yet(
    ago: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        monkeypatch.setattr(member, "ROSTER_SECONDS", 1_000.0)
        client = LegacyClient(http)
        await client.begin(a)
        assert await client.call(a, "o__bump") == "1"
        _forget(a, at=b, ago=ago)
        assert [await client.call(at, "o__bump") for at in (b, a)] == ["2", "3"]


async def test_a_home_that_is_gone_is_looked_for_once() -> None:
    async with scene(3, sharing="per-client") as (_, (a, b, c), http):
        client = LegacyClient(http)
        await client.begin(a)
        await a.vanish(b, c)
        looked: list[Replica] = []
        for one in (b, c):
            _note_looks(one, looked)
        for _ in range(3):
            assert await client.call(b, "o__bump")
        assert len(looked) == len(set(map(id, looked))) > 0


def _note_looks(replica: Replica, looked: list[Replica]) -> None:
    presence = replica.fleet.presence
    look_again = presence.look_again

    async def noted() -> None:
        looked.append(replica)
        await look_again()

    presence.look_again = noted  # type: ignore[method-assign]


def _forget(replica: Replica, *, at: Replica, ago: float = 1.0) -> None:
    """One replica asked so many seconds ago who is present, and does not know that another one is."""
    known = at.fleet.member
    known.peers = {name: peer for name, peer in known.peers.items() if name != replica.fleet.replica}
    known.pace.last_roster = anyio.current_time() - ago


async def test_a_cancellation_that_comes_in_elsewhere_reaches_the_server() -> None:
    async with scene(3) as (origin, (a, _, c), http):
        client = LegacyClient(http)
        await client.begin(a)
        async with client.stream(a, "tools/call", request_id="mine", name="o__hang", arguments={}) as events:
            await origin.hanging.wait()
            await client.notice(c, "notifications/cancelled", requestId="mine")
            await origin.cancelled.wait()
            result = [event async for event in events][-1]["message"]
        assert result["error"]["message"] == "Request cancelled"


@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_broke_goes_on_through_another_replica() -> None:
    async with scene() as (origin, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        async with client.stream(a, "tools/call", name="o__wait", arguments={}) as events:
            first = await anext(events)
            await origin.waiting.wait()
        async with client.open(b, after=first["id"]) as events:
            origin.go.set()
            (result,) = [event["message"] async for event in events if "message" in event]
        assert result["result"]["content"][0]["text"] == "waited"
        async with client.open(b, after=first["id"]) as events:  # and again, after the answer
            (again,) = [event["message"] async for event in events if "message" in event]
        assert again == result


@pytest.mark.usefixtures("at_once")
async def test_a_client_that_leaves_the_other_replica_leaves_the_stream_too() -> None:
    async with scene() as (origin, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        async with client.stream(a, "tools/call", name="o__wait", arguments={}) as events:
            first = await anext(events)
            await origin.waiting.wait()
        async with client.open(b, after=first["id"]):
            pass
        await came_true(lambda: not a.listener.connections)
        origin.go.set()
        async with client.open(b, after=first["id"]) as events:
            (result,) = [event["message"] async for event in events if "message" in event]
        assert result["result"]["content"][0]["text"] == "waited"


def modern(tool: str, key: str = "", **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the headers of a modern call."""
    meta = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": FORM}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "_meta": meta, **params}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    return body, {**headers, CLIENT_HEADER: key} if key else headers


async def modern_call(http: httpx2.AsyncClient, at: Replica, tool: str, key: str = "", **params: Any) -> Any:
    body, headers = modern(tool, key, **params)
    async with http.stream("POST", at.url, json=body, headers=headers) as answer:
        return [event async for event in events_of(answer)][-1]["message"]


async def test_a_modern_client_continues_a_pending_call_through_another_replica() -> None:
    async with scene() as (_, (a, b), http):
        asked = {"kind": "elicit"}
        first = (await modern_call(http, a, "o__ask", arguments=asked))["result"]
        assert first["resultType"] == "input_required"
        answers = {"q1": {"action": "accept", "content": {"colour": "blue"}}}
        again = {"arguments": asked, "requestState": first["requestState"], "inputResponses": answers}
        second = await modern_call(http, b, "o__ask", **again)
        assert second["result"]["content"][0]["text"] == "blue"
        third = await modern_call(http, b, "o__ask", **again)
        assert "Invalid or expired requestState" in third["error"]["message"]
        forth = (await modern_call(http, a, "o__ask", arguments=asked))["result"]
        await a.die()
        lost = await modern_call(http, b, "o__ask", **{**again, "requestState": forth["requestState"]})
        assert "does not answer" in lost["error"]["message"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_of_one_client_keeps_its_state_wherever_the_client_comes_in(era: str) -> None:
    async with scene(3, sharing="per-client") as (_, (a, b, c), http):
        client, other = LegacyClient(http), LegacyClient(http)
        await client.begin(a)
        await other.begin(b)

        async def bump(at: Replica, whose: LegacyClient = client) -> str:
            if era == "legacy":
                return await whose.call(at, "o__bump")
            key = "the key of the client" if whose is client else "the key of the other"
            said = await modern_call(http, at, "o__bump", key.replace(" ", "-"), arguments={})
            return str(said["result"]["content"][0]["text"])

        assert [await bump(at) for at in (b, a, c, b)] == ["1", "2", "3", "4"]
        assert await bump(c, other) == "1"  # another client has another connection
        slots = [len(one.served.hub.registry.clients.all()) for one in (a, b, c)]
        assert slots == [1, 1, 0] if era == "legacy" else sum(slots) == 2


async def test_a_home_that_is_present_and_cannot_be_reached_is_an_error_with_that_reason() -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        assert await client.call(b, "o__bump") == "1"
        await a.die()
        said = await client.ask(b, "tools/call", name="o__bump", arguments={})
        assert "the connections of this client cannot be reached: the replica r0" in said["error"]["message"]
        assert not b.served.hub.registry.clients.all(), "its state does not alternate between two"


@pytest.mark.requirement("SEC-15")
async def test_a_call_that_no_replica_takes_is_in_the_audit_of_the_one_that_passed_it_on(tmp_path: Path) -> None:
    key = AuditKey.of(b"k" * 32)
    trail = AuditTrail(AuditFiles(tmp_path, key), key)
    trail.start()
    async with scene(sharing="per-client", audit=trail) as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        await a.die()
        await client.ask(b, "tools/call", name="o__bump", arguments={})
    await anyio.to_thread.run_sync(trail.close)
    (record,) = [one for one in AuditReader(tmp_path, AuditFilter()).read() if one.method == "tools/call"]
    assert (record.event, record.principal) == ("refusal", "local")
    assert "the connections of this client cannot be reached: the replica r0" in record.reason


async def test_a_home_that_is_gone_is_taken_over_by_one_replica() -> None:
    async with scene(3, sharing="per-client") as (_, (a, b, c), http):
        client = LegacyClient(http)
        await client.begin(a)
        assert await client.call(b, "o__bump") == "1"
        assert await client.call(c, "o__bump") == "2"
        await a.vanish(b, c)
        said: list[str] = []

        async def bump(at: Replica) -> None:
            said.append(await client.call(at, "o__bump", request_id=at.fleet.replica))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bump, b)
            tasks.start_soon(bump, c)
        assert sorted(said) == ["1", "2"]  # a new connection, and one for both


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_whose_home_died_is_told_that_its_connection_was_made_again(era: str) -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)

        async def bump(at: Replica) -> list[str]:
            if era == "legacy":
                said = await client.ask(at, "tools/call", name="o__bump", arguments={})
            else:
                said = await modern_call(http, at, "o__bump", "the-key-of-the-client", arguments={})
            return [block["text"] for block in said["result"]["content"]]

        assert [await bump(a), await bump(b)] == [["1"], ["2"]]
        home, other = (a, b) if a.served.hub.registry.clients.all() else (b, a)
        await home.vanish(other)
        number, notice = await bump(other)
        assert number == "1"
        assert "this client's was made again" in notice
        assert await bump(other) == ["2"]


async def test_a_call_of_a_client_whose_home_is_elsewhere_can_be_cancelled_anywhere() -> None:
    async with scene(3, sharing="per-client") as (origin, (a, b, c), http):
        client = LegacyClient(http)
        await client.begin(a)
        assert await client.call(a, "o__bump") == "1"
        async with client.stream(b, "tools/call", name="o__hang", arguments={}) as events:
            await origin.hanging.wait()
            await client.notice(c, "notifications/cancelled", requestId=7)
            await origin.cancelled.wait()
            assert [event async for event in events][-1]["message"]["error"]["message"] == "Request cancelled"


async def test_a_notice_of_a_clients_own_server_reaches_its_stream_on_another_replica() -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        await client.call(a, "o__bump")
        listed = await client.ask(a, "resources/list")
        uri = next(one["uri"] for one in listed["result"]["resources"] if "holdfast" not in one["uri"].split(":")[0])
        async with client.open(b) as events:
            subscribed = await client.ask(b, "resources/subscribe", uri=uri)  # b passes it on to the client's home
            assert subscribed["result"] == {}
            await client.call(b, "o__touch", uri=uri)
            assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri


async def test_a_modern_client_listens_to_its_own_server_through_another_replica() -> None:
    async with scene(sharing="per-client") as (origin, (a, b), http):
        key = "the-key-of-the-client"
        assert (await modern_call(http, a, "o__bump", key, arguments={}))["result"]["content"][0]["text"] == "1"
        legacy = LegacyClient(http)
        await legacy.begin(a)
        listed = await legacy.ask(a, "resources/list")
        uri = next(one["uri"] for one in listed["result"]["resources"] if "holdfast" not in one["uri"].split(":")[0])
        body, headers = modern("", key)
        wanted = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": body["params"]["_meta"]}
        body |= {"method": "subscriptions/listen", "params": wanted}
        headers |= {"mcp-method": "subscriptions/listen"}
        del headers["mcp-name"]
        async with http.stream("POST", b.url, json=body, headers=headers, timeout=None) as answer:
            events = events_of(answer)
            await message(events, "notifications/subscriptions/acknowledged")
            await origin.until(lambda: bool(origin.subscribed))
            await modern_call(http, b, "o__touch", key, arguments={"uri": origin.subscribed[0]})
            assert (await message(events, "notifications/resources/updated"))["params"]["uri"] == uri


async def test_changed_roots_reach_the_clients_own_server_on_another_replica() -> None:
    async with scene(sharing="per-client") as (origin, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a, roots={"listChanged": True})
        await client.call(a, "o__bump")
        await client.call(b, "o__bump")
        await client.notice(b, "notifications/roots/list_changed")
        await origin.roots_changed.wait()


async def test_a_home_that_leaves_is_replaced_and_no_call_fails() -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a)
        assert await client.call(a, "o__bump") == "1"
        a.served.app.state.front.refuse()
        said = await client.ask(b, "tools/call", name="o__bump", arguments={})
        assert said["result"]["content"][0]["text"] == "1"
        assert "made again" in said["result"]["content"][1]["text"]
        assert await client.call(b, "o__bump") == "2"


@pytest.mark.requirement("FLEET-7")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_home_that_leaves_is_replaced_by_one_replica_before_the_store_says_so(era: str) -> None:
    async with scene(3, sharing="per-client") as (_, found, http):
        client = LegacyClient(http)
        await client.begin(found[0])

        async def bump(at: Replica) -> list[str]:
            if era == "legacy":
                said = await client.ask(at, "tools/call", name="o__bump", arguments={})
            else:
                said = await modern_call(http, at, "o__bump", "the-key-of-the-client", arguments={})
            return [block["text"] for block in said["result"]["content"]]

        assert await bump(found[0]) == ["1"]
        home = next(one for one in found if one.served.hub.registry.clients.all())
        store = home.fleet.store
        assert isinstance(store, MemoryStore)
        store.cut.add(home.fleet.replica)
        home.served.app.state.front.refuse()
        others = [one for one in found if one is not home]
        first, *rest = [await bump(one) for one in (*others, *others)]
        assert first[0] == "1"
        assert "made again" in first[1]
        assert rest == [["2"], ["3"], ["4"]], "one connection for both"
        assert all(home.fleet.replica in one.fleet.member.peers for one in others), "the store has not said so yet"


@pytest.mark.requirement("FLEET-1")
async def test_a_request_to_an_endpoint_with_a_tools_mode_stays_there_on_another_replica() -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        for one in (a, b):
            one.query = "?tools=find"
        client = LegacyClient(http)
        await client.begin(a)
        for at in (a, b):
            listed = await client.ask(at, "tools/list")
            assert "find_tools" in {tool["name"] for tool in listed["result"]["tools"]}
            said = await client.ask(at, "tools/call", name="call_tool", arguments={"name": "o__bump", "arguments": {}})
            assert said["result"]["content"][0]["text"] == ("1" if at is a else "2")


async def test_a_replica_without_an_address_is_named_in_the_refusal() -> None:
    async with scene() as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a, **FORM)
        a.fleet.member.about["address"] = ""
        await came_true(lambda: not b.peers.others)
        refused = await client.answer(b, int(replica_tag("r0"), 16) << 32 | 5, action="decline")
        assert "r0 was started without --advertise" in refused.json()["error"]["message"]


async def modern_request(http: httpx2.AsyncClient, at: Replica, method: str, **params: Any) -> Any:
    body, headers = modern("m__long", **params)
    meta = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}
    body |= {"method": method, "params": {**params, "_meta": meta}}
    headers |= {"mcp-method": method, "mcp-name": str(params.get("name", params.get("taskId")))}
    return (await http.post(at.url, json=body, headers=headers)).json()


async def test_a_task_is_asked_about_through_another_replica_and_is_refused_when_its_replica_is_gone() -> None:
    origin = ModernTasks()
    async with (
        serving(origin.app) as base,
        replicas({"m": {"url": f"{base}/mcp"}}) as (a, b),
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
    ):
        task = (await modern_request(http, a, "tools/call", name="m__long", arguments={}))["result"]["taskId"]
        assert not a.listener.connections
        for at in (a, b):
            said = await modern_request(http, at, "tasks/get", taskId=task)
            assert said["result"]["result"]["content"][0]["text"] == "in the end"
        assert len(a.listener.connections) == 1  # the replica with the task answered
        await a.die()
        lost = await modern_request(http, b, "tasks/get", taskId=task)
        assert "the task is on a replica that does not answer" in lost["error"]["message"]
        of_a_dead_replica = TaskIds(lambda: KeyRing([KEY]), "0" * 16).shown(ServerTask("m", "1"), "local")
        lost = await modern_request(http, b, "tasks/get", taskId=of_a_dead_replica)
        assert "there is no such task here" in lost["error"]["message"]


async def test_a_client_that_leaves_at_one_replica_leaves_its_home_too() -> None:
    async with scene(sharing="per-client") as (_, (a, b), http):
        key = "the-key-of-the-client"
        await modern_call(http, a, "o__bump", key, arguments={})
        clients = a.served.hub.registry.clients
        assert len(clients.all()) == 1
        assert (await http.delete(b.url, headers={CLIENT_HEADER: key})).status_code == 204
        await came_true(lambda: not clients.all())


@pytest.mark.requirement("SEC-18")
def processes_of(found: list[Replica], server: str, user: str) -> list[Replica]:
    """The replicas that run a process of a user."""
    slots = {one: one.served.hub.registry.users.slots.find(user, server) for one in found}
    return [one for one, slot in slots.items() if slot is not None and slot.spec.transport == "stdio"]


async def _lists(client: LegacyClient, at: Replica, tool: str) -> bool:
    listed = await client.ask(at, "tools/list")
    return tool in {one["name"] for one in listed["result"]["tools"]}


@pytest.mark.requirement("SEC-13")
async def test_a_user_has_one_process_of_a_server_wherever_her_clients_come_in() -> None:
    async with (
        replicas({"mine": over_stdio("legacy", sharing="per-user")}, 3, tokens=TOKENS, call=PATIENT) as found,
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
    ):
        counts = dict.fromkeys(("ada", "bob"), 0)
        clients = []
        for user in counts:
            for at in found:
                client = LegacyClient(http, TOKENS.tokens[user])
                await client.begin(at)
                clients.append((user, at, client))
        for user, at, client in clients:
            await asked(partial(_lists, client, at, "mine__bump"))
            counts[user] += 1
            assert await client.call(at, "mine__bump") == str(counts[user]), "one state in all"
        homes = {user: processes_of(found, "mine", user) for user in counts}
        assert {user: len(at) for user, at in homes.items()} == {"ada": 1, "bob": 1}
        (home,) = homes["ada"]
        others = [one for one in found if one is not home]
        await home.vanish(*others)
        answers = []
        for at in others:
            user, _, client = next(one for one in clients if one[:2] == ("ada", at))
            said = await client.ask(at, "tools/call", name="mine__bump", arguments={})
            answers.append([block["text"] for block in said["result"]["content"]])
        assert [texts[0] for texts in answers] == ["1", "2"], "one state again"
        assert "was made again" in answers[0][1], "she is told that the state before is gone"
        assert len(processes_of(others, "mine", "ada")) == 1, "one replica took over"


async def test_another_principal_reaches_nothing_through_another_replica() -> None:
    async with scene(tokens=TOKENS) as (_, (a, b), http):
        ada = LegacyClient(http, "the token of ada is long")
        await ada.begin(a, **FORM)
        bob = LegacyClient(http, "the token of bob is long")
        await bob.begin(b, **FORM)
        stolen = LegacyClient(http, "the token of bob is long")
        stolen.headers["mcp-session-id"] = ada.headers["mcp-session-id"]
        async with ada.stream(a, "tools/call", name="o__ask", arguments={"kind": "elicit"}) as events:
            question = [event async for event in _until_question(events)][-1]
            content = {"action": "accept", "content": {"colour": "of bob"}}
            # With ada's session, with a session of his own, and with a question of a replica that he makes up.
            assert (await stolen.answer(b, question["message"]["id"], **content)).status_code == 404
            assert (await bob.answer(b, question["message"]["id"], **content)).status_code == 400
            async with bob.open(b, after=question["id"]) as of_bob:
                said = [event["message"] async for event in of_bob if "message" in event]
            assert ["is lost" in one["error"]["message"] for one in said] == [True]
            await bob.notice(b, "notifications/cancelled", requestId=7)
            content["content"] = {"colour": "of ada"}
            assert (await ada.answer(b, question["message"]["id"], **content)).status_code == 202
            result = [event async for event in events][-1]["message"]
        assert result["result"]["content"][0]["text"] == "of ada"


@pytest.mark.requirement("FLEET-2", "SEC-11")
async def test_what_a_principal_used_at_one_replica_counts_at_the_others() -> None:
    async with (
        replicas({}, 2, tokens=TOKENS, quotas={"callsPerMinute": 4}) as (a, b),
        httpx2.AsyncClient() as http,
    ):

        async def pings(at: Replica, token: str, count: int = 1) -> list[int]:
            client = LegacyClient(http, token)
            await client.begin(at)
            ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
            return [(await http.post(at.url, json=ping, headers=client.headers)).status_code for _ in range(count)]

        def is_told() -> bool:
            use: Any = b.fleet.presence.others.get("r0", {}).get("use") or {}
            return any(calls >= 4 for _, _, calls in use.values())

        assert await pings(a, "the token of ada is long", 4) == [200] * 4
        await came_true(is_told)
        told: Any = b.fleet.presence.others["r0"]["use"]
        assert [sessions for sessions, _, _ in told.values()] == [0], "a session that is idle gives way: it is no use"
        assert await pings(b, "the token of ada is long") == [429]
        assert await pings(b, "the token of bob is long") == [200]


@pytest.mark.requirement("FLEET-5")
async def test_replicas_that_name_each_other_pass_a_request_on_in_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    forwarded: list[str] = []
    real = HttpEndpoint.serve

    def counted(sessions: HttpEndpoint, request: Request, *rest: Any) -> Any:
        if request.forwarded:
            forwarded.append(request.head.method)
        return real(sessions, request, *rest)

    monkeypatch.setattr(HttpEndpoint, "serve", counted)
    async with scene(sharing="per-client") as (_, (a, b), http):
        for one, other in ((a, b), (b, a)):
            finder = one.served.app.state.front.broker.homes
            monkeypatch.setattr(finder, "_home", lambda *_, home=other.fleet.replica: home)
        client = LegacyClient(http)
        await client.begin(a)
        said = await client.ask(a, "tools/call", name="o__echo", arguments={"text": "hi"})
    assert "was not found; try again" in said["error"]["message"]
    assert len(forwarded) == MOST_TRIES


@pytest.mark.requirement("SEC-18", "FLEET-5")
async def test_what_another_replica_asks_about_a_session_is_asked_for_its_principal() -> None:
    async with scene(tokens=TOKENS) as (_, (a, _), http):
        ada = LegacyClient(http, "the token of ada is long")
        await ada.begin(a)
        front = a.served.app.state.front
        everywhere, other = front.endpoint_of(EndpointAddress()), front.endpoint_of(EndpointAddress(None, "find"))
        named = ada.headers["mcp-session-id"]
        assert front.sessions.in_use(everywhere, named, "ada") is not None
        assert front.sessions.in_use(everywhere, named, "bob") is None
        assert front.sessions.in_use(other, named, "ada") is None


async def test_an_answer_for_a_replica_that_is_gone_is_refused_with_the_reason() -> None:
    async with scene() as (_, (a, b), http):
        client = LegacyClient(http)
        await client.begin(a, **FORM)
        gone = int(replica_tag("r0"), 16) << 32 | 5
        refused = await client.answer(b, gone, action="decline")
        assert refused.status_code == 400
        assert "this question is not open" in refused.json()["error"]["message"]
        await a.die()
        refused = await client.answer(b, gone, action="decline")
        assert refused.status_code == 400
        assert "r0 cannot be reached" in refused.json()["error"]["message"]


async def test_hubs_with_a_common_key_and_no_fleet_say_what_they_lack() -> None:
    async with running("legacy") as origin, httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        hub = Hub.from_config({"mcpServers": {"o": {"url": origin.url}}})
        app = create_app(hub, ids=SessionIds(SessionKeys([KEY], shared=True)))
        async with hub, serving(app) as base:
            client = LegacyClient(http)
            at = Replica.__new__(Replica)
            at.served = Served(hub, app, base)
            await client.begin(at)
            refused = await client.answer(at, 5, action="decline")
        assert refused.status_code == 400
        assert "Without --fleet and --advertise" in refused.json()["error"]["message"]
