"""Quotas: what one principal uses does not take from another, and a refusal says when to try again."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from holdfast.access import quotas as quotas_room
from holdfast.access.connections import ClientPeer, ConnectionLimits, peer_at
from holdfast.access.guard import (
    DELAY_SECONDS,
    FAILURES,
    LONG_DELAY_SECONDS,
    MOST_FAILURES,
    WINDOW_SECONDS,
    WrongCredentials,
)
from holdfast.access.principals import TokenPolicy
from holdfast.access.quotas import PrincipalUse, QuotaExceeded, Quotas
from holdfast.config import QuotaSettings
from holdfast.front.app import create_app
from holdfast.front.listener import Acceptor
from holdfast.hub.hub import Hub
from tests.harness.web import serving

pytestmark = pytest.mark.anyio

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
MODERN = {**HEADERS, "mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover"}


def initialize() -> dict[str, Any]:
    client = {"name": "t", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def discover() -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {"jsonrpc": "2.0", "id": 7, "method": "server/discover", "params": {"_meta": meta}}


@asynccontextmanager
async def endpoint(*, accept: bool = False, **quotas: int) -> AsyncIterator[httpx2.AsyncClient]:
    hub = Hub.from_config({"mcpServers": {}, "holdfast": {"quotas": quotas}})
    tokens = TokenPolicy(tokens={"ada": "token-a", "bob": "token-b"})
    app = create_app(hub, tokens=tokens)
    async with hub, serving(app, accept=accept) as base, httpx2.AsyncClient(base_url=base) as http:
        yield http


async def post(http: httpx2.AsyncClient, token: str, body: Any, headers: dict[str, str]) -> httpx2.Response:
    return await http.post("/mcp", json=body, headers={**headers, "authorization": f"Bearer {token}"})


@pytest.mark.requirement("SEC-11")
async def test_a_principal_with_all_its_sessions_in_use_is_refused_and_another_is_served() -> None:
    async with endpoint(sessions=2) as http, AsyncExitStack() as streams:
        mine = {"authorization": "Bearer token-a"}
        ids = [(await post(http, "token-a", initialize(), HEADERS)).headers["mcp-session-id"] for _ in range(2)]
        for one in ids:
            named = {**HEADERS, **mine, "mcp-session-id": one}
            await streams.enter_async_context(http.stream("GET", "/mcp", headers=named, timeout=None))
        refused = await post(http, "token-a", initialize(), HEADERS)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        error = refused.json()["error"]
        assert "2 sessions are open" in error["message"]
        assert error["data"] == {"retryAfter": int(refused.headers["retry-after"]), "quota": "sessions"}
        assert (await post(http, "token-b", initialize(), HEADERS)).status_code == 200
        assert (await http.delete("/mcp", headers={**mine, "mcp-session-id": ids[0]})).status_code == 200
        assert (await post(http, "token-a", initialize(), HEADERS)).status_code == 200


@pytest.mark.requirement("SEC-11", "PERF-8")
async def test_sessions_that_are_idle_give_way_to_new_ones_and_go_on_when_they_are_used() -> None:
    ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
    async with endpoint(sessions=2) as http:
        begun = [await post(http, "token-a", initialize(), HEADERS) for _ in range(5)]
        assert [answer.status_code for answer in begun] == [200] * 5
        for answer in begun:
            named = {**HEADERS, "mcp-session-id": answer.headers["mcp-session-id"]}
            assert (await post(http, "token-a", ping, named)).status_code == 200


@pytest.mark.requirement("SEC-11")
async def test_a_principal_that_calls_too_often_is_refused_and_another_is_served() -> None:
    async with endpoint(callsPerMinute=3) as http:
        statuses = [(await post(http, "token-a", discover(), MODERN)).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = await post(http, "token-a", discover(), MODERN)
        assert refused.json()["id"] == 7
        assert 0 < int(refused.headers["retry-after"]) <= 20
        assert (await post(http, "token-b", discover(), MODERN)).status_code == 200


@pytest.mark.requirement("SEC-11")
async def test_a_method_of_the_other_era_is_a_call_of_a_session_like_any_other() -> None:
    """A stream for long of the modern era is no call. By its name alone a legacy client would escape its quota."""
    listen = {"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen"}
    async with endpoint(callsPerMinute=2) as http:
        begun = await post(http, "token-a", initialize(), HEADERS)
        named = {**HEADERS, "mcp-session-id": begun.headers["mcp-session-id"]}
        answers = [await post(http, "token-a", listen, named) for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]


@pytest.mark.requirement("SEC-11")
async def test_a_request_that_was_answered_is_not_in_flight_any_more_in_either_era() -> None:
    ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
    async with endpoint(callsInFlight=1) as http:
        begun = await post(http, "token-a", initialize(), HEADERS)
        named = {**HEADERS, "mcp-session-id": begun.headers["mcp-session-id"]}
        legacy = [(await post(http, "token-a", ping, named)).status_code for _ in range(3)]
        modern = [(await post(http, "token-a", discover(), MODERN)).status_code for _ in range(3)]
    assert legacy + modern == [200] * 6


@pytest.mark.requirement("SEC-11")
def test_requests_in_flight_are_counted_for_each_principal_and_given_back() -> None:
    refused: list[tuple[str, str]] = []
    quotas = Quotas(
        lambda: QuotaSettings(calls_in_flight=2), on_refused=lambda who, what: refused.append((who, what.quota))
    )
    first = _begun(quotas, "ada")
    _begun(quotas, "ada")
    assert isinstance(quotas.begin_call("ada"), QuotaExceeded)
    _begun(quotas, "bob")
    first.end_call()
    _begun(quotas, "ada")
    assert refused == [("ada", "callsInFlight")]


@pytest.mark.requirement("SEC-11")
def test_the_rate_refills_steadily_and_does_not_bind_the_user_of_the_machine() -> None:
    now = [100.0]
    quotas = Quotas(lambda: QuotaSettings(calls_per_minute=60), clock=lambda: now[0])

    def calls(who: str, most: int) -> int:
        done = 0
        while done < most and not isinstance(use := quotas.begin_call(who), QuotaExceeded):
            use.end_call()
            done += 1
        return done

    assert calls("ada", 1000) == 60
    now[0] += 5
    assert calls("ada", 1000) == 5
    now[0] += 1000
    assert calls("ada", 1000) == 60
    assert calls("local", 1000) == 1000


@pytest.mark.requirement("SEC-11")
def test_a_peer_that_only_opens_connections_pushes_out_itself() -> None:
    limits = ConnectionLimits(lambda: 16)
    closed: list[str] = []
    for number in range(50):
        place = limits.enter(ClientPeer("10.0.0.1"))
        assert place is not None
        place.close = lambda number=number: closed.append(f"flood {number}")  # type: ignore[misc]  # a default of a lambda
        if number == 2:
            quiet = limits.enter(ClientPeer("10.0.0.2"))
            assert quiet is not None
            quiet.close = lambda: closed.append("quiet")
    assert "quiet" not in closed
    assert limits.open <= 16
    assert closed[:2] == ["flood 0", "flood 1"]


@pytest.mark.requirement("SEC-11")
async def test_connections_that_are_pushed_out_as_they_are_taken_leave_no_descriptor_open() -> None:
    """Sixty-four are taken in one step, and over four of a peer the oldest is pushed out: before its task began."""
    limits = ConnectionLimits(lambda: 16)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    gc.disable()  # it would close them too, but too late
    flood = [socket.create_connection(listener.getsockname()) for _ in range(100)]
    acceptor = Acceptor(listener, lambda _: asyncio.Protocol(), limits=limits)
    try:
        with anyio.fail_after(10):
            while limits.closed < 96 or number_open(flood) > 4:
                await anyio.lowlevel.checkpoint()
    finally:
        gc.enable()
        while limits.close_one():
            await anyio.lowlevel.checkpoint()
        acceptor.close()
        await acceptor.wait_closed()
        for connection in flood:
            connection.close()


def number_open(connections: Sequence[socket.socket]) -> int:
    """How many of them the other side has neither closed nor answered."""

    def is_open(connection: socket.socket) -> bool:
        connection.setblocking(False)
        try:
            connection.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    return sum(map(is_open, connections))


@pytest.mark.requirement("SEC-11")
def test_connections_of_principals_are_never_pushed_out_by_those_that_wait() -> None:
    limits = ConnectionLimits(lambda: 16)
    held = [limits.enter(ClientPeer("10.0.0.1")) for _ in range(4)]
    for place in held:
        assert place is not None
        place.close = lambda: pytest.fail("it was closed")
        assert place.accepted("ada", 4)
    fifth = limits.enter(ClientPeer("10.0.0.1"))
    assert fifth is not None
    assert not fifth.accepted("ada", 4)
    assert fifth.accepted("bob", 4)
    for number in range(100):
        limits.enter(ClientPeer(f"10.0.1.{number}"))
    assert limits.open <= 16
    for place in held:
        assert place is not None
        place.end()
        place.end()
    assert fifth.accepted("bob", 4)


@pytest.mark.requirement("SEC-11")
def test_peers_are_users_here_and_networks_elsewhere() -> None:
    assert peer_at(("127.0.0.1", 1), 1000).key == peer_at(("::1", 1, 0, 0), 1000).key
    assert peer_at(("2001:db8::1", 1, 0, 0)).key == peer_at(("2001:db8::ffff:2", 1, 0, 0)).key
    assert peer_at(("2001:db8:0:1::1", 1, 0, 0)).key != peer_at(("2001:db8::1", 1, 0, 0)).key
    assert peer_at(("::ffff:10.0.0.1", 1, 0, 0)).key == peer_at(("10.0.0.1", 1)).key
    assert peer_at(("fe80::1%eth0", 1, 0, 2)).key
    assert peer_at("").key == "a Unix socket"


@pytest.mark.requirement("SEC-11")
def test_wrong_credentials_are_answered_late_where_there_are_many_of_a_peer_or_in_all() -> None:
    now = [0.0]
    wrong = WrongCredentials(clock=lambda: now[0])
    assert [wrong.count("10.0.0.1") for _ in range(FAILURES + 1)] == [0.0] * FAILURES + [DELAY_SECONDS]
    assert wrong.count("10.0.0.2") == 0.0
    now[0] += WINDOW_SECONDS
    assert wrong.count("10.0.0.1") == 0.0
    for number in range(MOST_FAILURES):
        wrong.count(f"10.0.1.{number}")
    assert wrong.count("10.0.0.3") == LONG_DELAY_SECONDS
    now[0] += WINDOW_SECONDS
    assert wrong.count("10.0.0.3") == 0.0


def test_the_memory_of_wrong_credentials_is_bounded() -> None:
    wrong = WrongCredentials()
    for number in range(20_000):
        wrong.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(wrong._failed) <= 4_096


def _begun(quotas: Quotas, principal: str) -> PrincipalUse:
    use = quotas.begin_call(principal)
    assert isinstance(use, PrincipalUse)
    return use


# Together with other replicas.


class _Fleet:
    """Replicas that hear of each other every ``lag`` steps of time; nothing else connects them."""

    def __init__(self, count: int, **limits: int) -> None:
        self.now = 0.0
        settings = QuotaSettings(**limits)
        self.replicas = [Quotas(lambda: settings, clock=lambda: self.now) for _ in range(count)]
        for one in self.replicas:
            one.share(lambda name: f"label of {name}")
        self.hear()

    def hear(self) -> None:
        told = {str(index): one.told({}) for index, one in enumerate(self.replicas)}
        for index, one in enumerate(self.replicas):
            one.follow({name: use for name, use in told.items() if name != str(index)})


@pytest.mark.requirement("SEC-11", "FLEET-2")
@pytest.mark.parametrize("seed", range(20))
def test_calls_in_flight_exceed_the_limit_of_a_fleet_by_what_others_admit_between_two_news(seed: int) -> None:
    chance = random.Random(seed)
    limit, lag = 20, chance.randrange(1, 6)
    fleet = _Fleet(chance.randrange(2, 6), calls_in_flight=limit, calls_per_minute=1_000_000)
    open_calls: list[list[PrincipalUse]] = [[] for _ in fleet.replicas]
    fresh = [0] * len(fleet.replicas)
    for step in range(400):
        fleet.now += 0.1
        if step % lag == 0:
            fleet.hear()
            fresh = [0] * len(fleet.replicas)
        index = chance.randrange(len(fleet.replicas))
        if chance.random() < 0.35 and open_calls[index]:
            open_calls[index].pop().end_call()
        elif not isinstance(use := fleet.replicas[index].begin_call("ada"), QuotaExceeded):
            open_calls[index].append(use)
            fresh[index] += 1
            assert sum(map(len, open_calls)) <= limit + sum(fresh) - fresh[index]
    for use in itertools.chain.from_iterable(open_calls):
        use.end_call()
    fleet.hear()
    for one in fleet.replicas:
        _begun(one, "ada")


@pytest.mark.requirement("SEC-11", "FLEET-2")
@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_rate_of_a_fleet_is_the_rate_of_one_hub_in_the_long_run(count: int) -> None:
    rate, minutes, each = 600, 10, 2
    fleet = _Fleet(count, calls_in_flight=10, calls_per_minute=rate)
    admitted = 0
    for _ in range(minutes * 60):
        for one in fleet.replicas:
            for _ in range(each * 10):
                if not isinstance(use := one.begin_call("ada"), QuotaExceeded):
                    admitted += 1
                    use.end_call()
        fleet.now += 1.0
        fleet.hear()
    between = (count - 1) * each * 10
    assert rate * minutes * 0.9 <= admitted <= rate * (minutes + 1) + between


@pytest.mark.requirement("SEC-11", "FLEET-2")
def test_a_principal_that_spent_its_rate_on_one_replica_gets_no_new_one_on_another() -> None:
    fleet = _Fleet(2, calls_per_minute=10)
    first, second = fleet.replicas
    _begun(first, "bob")
    for _ in range(10):
        first.begin_call("ada")
    fleet.hear()
    refused = second.begin_call("ada")
    assert isinstance(refused, QuotaExceeded)
    assert refused.quota == "callsPerMinute"
    _begun(second, "bob")
    second.follow({})  # the store does not answer any more: each judges alone, and what was spent stays spent
    assert isinstance(second.begin_call("ada"), QuotaExceeded)
    fleet.now += 60
    _begun(second, "ada")


@pytest.mark.requirement("SEC-11", "FLEET-2")
def test_sessions_in_use_elsewhere_count_and_what_is_no_use_is_ignored() -> None:
    quotas = Quotas(lambda: QuotaSettings(sessions=3))
    quotas.share(lambda name: name)
    quotas.follow({"a": {"ada": [2, 0, 0]}, "b": {"ada": "x", "bob": [1]}, "c": None, "d": ["ada"]})
    assert isinstance(quotas.begin_session("ada", lambda _: None), PrincipalUse)
    assert isinstance(quotas.begin_session("ada", lambda _: None), QuotaExceeded)
    quotas.follow({})
    assert isinstance(quotas.begin_session("ada", lambda _: None), PrincipalUse)


@pytest.mark.requirement("SEC-11", "FLEET-5")
def test_what_began_before_the_keys_were_replaced_ends_without_room_for_others() -> None:
    quotas, key = Quotas(lambda: QuotaSettings(calls_in_flight=1, sessions=1)), ["old"]
    quotas.share(lambda name: f"{name} by the {key[0]} key")
    call = _begun(quotas, "ada")
    session = quotas.begin_session("ada", lambda _: None)
    assert isinstance(session, PrincipalUse)
    key[0] = "new"
    later = _begun(quotas, "ada")
    quotas.begin_session("ada", lambda _: None)
    call.end_call()
    session.end_session()
    assert isinstance(quotas.begin_call("ada"), QuotaExceeded)
    assert isinstance(quotas.begin_session("ada", lambda _: None), QuotaExceeded)
    later.end_call()
    assert {label: calls for label, (_, calls, _) in quotas.told({}).items()} == {
        "ada by the old key": 0,
        "ada by the new key": 0,
    }


def test_what_is_told_is_bounded() -> None:
    quotas = Quotas()
    quotas.share(lambda name: name)
    for number in range(1_000):
        quotas.begin_call(str(number))
    for _ in range(5):
        quotas.begin_call("busiest")
    told = quotas.told({})
    assert len(told) == 200
    assert told["busiest"] == [0, 5, 5]
    quotas.follow({"other": {str(number): [0, 0, 1] for number in range(50_000)}})
    assert len(quotas._used) <= 10_001
    assert len(quotas._told["other"]) == 50_000


@pytest.mark.requirement("SEC-11")
async def test_a_connection_over_the_quota_of_its_principal_is_refused_and_another_principal_is_served() -> None:
    async with endpoint(accept=True, connections=2) as first, AsyncExitStack() as open_ones:
        base = first.base_url

        async def connected() -> httpx2.AsyncClient:
            return await open_ones.enter_async_context(httpx2.AsyncClient(base_url=base))

        clients = [first, *[await connected() for _ in range(3)]]
        answers = [await post(one, "token-a", discover(), MODERN) for one in clients[:3]]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) >= 1
        assert (await post(clients[3], "token-b", discover(), MODERN)).status_code == 200
        assert (await post(first, "token-a", discover(), MODERN)).status_code == 200


@pytest.mark.requirement("SEC-11")
def test_where_all_places_are_taken_one_that_waits_gives_way_and_a_principal_never_does() -> None:
    limits = ConnectionLimits(lambda: 8)
    places = [limits.enter(ClientPeer(f"10.0.0.{number}")) for number in range(8)]
    assert limits.closed == 4, "half of them may wait"
    for number, place in enumerate(places[4:]):
        assert place is not None
        assert place.accepted(f"user {number}", None)
    for number in range(4):
        assert limits.enter(ClientPeer(f"10.0.1.{number}")) is not None
    assert (limits.open, limits.closed) == (8, 4)
    assert limits.enter(ClientPeer("10.0.2.1")) is not None
    assert (limits.open, limits.closed) == (8, 5)
    for _ in range(4):
        assert limits.close_one()
    assert not limits.close_one()
    assert (limits.open, limits.closed) == (4, 9)
    for number in range(4):
        found = limits.enter(ClientPeer(f"10.0.3.{number}"))
        assert found is not None
        assert found.accepted("user 9", 4)
    assert limits.enter(ClientPeer("10.0.4.1")) is None
    assert (limits.open, limits.closed) == (8, 10)


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("shared", [True, False])
def test_where_there_are_too_many_principals_those_that_use_nothing_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(quotas_room, "MOST_PRINCIPALS", 3)
    quotas = Quotas(lambda: QuotaSettings(calls_in_flight=1))
    if shared:
        quotas.share(lambda name: f"label of {name}")
    quotas.begin_call("busy")
    quotas.begin_session("there", lambda _: None)
    _begun(quotas, "gone").end_call()
    quotas.begin_call("new")
    names = ("busy", "there", "new")
    assert set(quotas._used) == ({f"label of {name}" for name in names} if shared else set(names))
    assert isinstance(quotas.begin_call("busy"), QuotaExceeded)
    assert quotas.told({}) == ({f"label of {name}": [0, 1, 1] for name in ("busy", "new")} if shared else {})


@pytest.mark.requirement("SEC-11")
def test_a_body_without_room_is_reported_with_its_quota() -> None:
    refused: list[tuple[str, str, int]] = []
    quotas = Quotas(on_refused=lambda name, why: refused.append((name, why.quota, why.most)))
    quotas.refuse_body("ada")
    assert refused == [("ada", "bodyBytes", QuotaSettings().body_bytes)]
