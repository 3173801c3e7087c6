"""What a server sends by itself goes to who it is for, and the end of a connection reaches each one who waits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import pytest
from mcp import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from holdfast.config import Limits
from holdfast.core import STATUS_URI, Evidence, HttpStatus, NetworkFailure, NetworkFault, Unexpected
from holdfast.errors import ServerFailure
from holdfast.wire.dispatcher import NO_HOOKS, DialHooks, DuplexDispatcher, Incoming, NoClients
from holdfast.wire.http import transport
from holdfast.wire.http.transport import SseDispatcher
from holdfast.wire.in_flight import CURRENT, InFlight

pytestmark = pytest.mark.anyio

CLOSED = NetworkFailure(fault=NetworkFault.CLOSED, stood=True)
LOST = NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail="the stream ended")
RESET = NetworkFailure(fault=NetworkFault.RESET, stood=True)


class Clients:
    """A relay that notes what it gets."""

    capabilities: Mapping[str, Any] = {"roots": {}}

    def __init__(self) -> None:
        self.asks: list[Any] = []
        self.tells: list[Any] = []
        self.on_asked: Any = lambda: None

    async def asked(self, server: str, method: str, params: Any, caller: Any) -> dict[str, Any]:
        self.asks.append((server, method, params, caller))
        self.on_asked()
        return {"roots": []}

    def told(self, server: str, method: str, params: Any) -> None:
        self.tells.append((server, method, params))


@contextmanager
def current(request: Any) -> Any:
    token = CURRENT.set(request)
    try:
        yield
    finally:
        CURRENT.reset(token)


async def test_the_hub_declares_what_its_clients_can_until_the_connection_ends() -> None:
    incoming = Incoming("s", DialHooks(relay=Clients()), InFlight())
    assert incoming.capabilities == {"roots": {}}
    incoming.release()
    assert incoming.capabilities == {}


async def test_a_servers_request_is_for_a_client_and_stops_the_clock_of_the_call_on_whose_stream_it_came() -> None:
    clients, in_flight = Clients(), InFlight()
    caller: Any = SimpleNamespace()
    incoming = Incoming("s", DialHooks(relay=clients), in_flight)
    one: Any = in_flight.start(caller, idle=10, within=10)
    other = in_flight.start(idle=10, within=10)
    paused: list[tuple[int, int]] = []
    clients.on_asked = lambda: paused.append((one._waiting, other._waiting))
    assert await incoming.asked("roots/list", {"a": 1}) == {"roots": []}
    with current(one):
        assert await incoming.asked("roots/list", None) == {"roots": []}
    assert clients.asks == [("s", "roots/list", {"a": 1}, None), ("s", "roots/list", None, caller)]
    assert paused == [(1, 1), (1, 0)], "all of them where it is not known which"
    assert (one._waiting, other._waiting) == (0, 0)
    assert await incoming.asked("ping", None) == {}
    assert len(clients.asks) == 2


async def test_a_servers_request_that_none_can_answer_is_refused() -> None:
    for hooks in (NO_HOOKS, DialHooks(relay=NoClients())):
        incoming = Incoming("s", hooks, InFlight())
        with pytest.raises(MCPError) as refused:
            await incoming.asked("roots/list", None)
        assert refused.value.code == INVALID_REQUEST
        assert refused.value.message == "roots/list cannot be answered: no client is connected"
        with pytest.raises(MCPError) as unknown:
            await incoming.asked("tools/list", None)
        error = unknown.value.error
        assert (error.code, error.message, error.data) == (METHOD_NOT_FOUND, "Method not found", "tools/list")
    NoClients().told("s", "x", None)


async def test_a_log_message_goes_to_the_call_on_whose_stream_it_came_else_to_all() -> None:
    clients, in_flight, told = Clients(), InFlight(), list[Any]()
    notices: list[str] = []
    incoming = Incoming("s", DialHooks(relay=clients, on_notice=notices.append), in_flight)
    caller: Any = SimpleNamespace(tell=lambda *what: told.append(what))
    with current(in_flight.start(caller, idle=10, within=10)):
        assert incoming.belongs_to_call("notifications/message", {"a": 1})
        assert not incoming.belongs_to_call("notifications/tools/list_changed", None)
    with current(in_flight.start(idle=10, within=10)):
        assert not incoming.belongs_to_call("notifications/message", {"b": 1})
    assert not incoming.belongs_to_call("notifications/message", {"c": 1})
    assert told == [("notifications/message", {"a": 1})]
    assert clients.tells == [("s", "notifications/message", {"b": 1}), ("s", "notifications/message", {"c": 1})]
    clients.tells.clear()
    incoming.told("notifications/message", {"b": 1})
    assert clients.tells == [], "it was passed on before"
    incoming.told("notifications/tools/list_changed", None)
    assert clients.tells == [("s", "notifications/tools/list_changed", None)]
    assert notices == ["notifications/message", "notifications/tools/list_changed"]


async def test_only_a_subscription_to_lists_is_told_to_the_one_who_listens() -> None:
    notices: list[str] = []
    opened: list[bool] = []
    incoming = Incoming("s", DialHooks(on_notice=notices.append), InFlight())
    begun = "notifications/subscriptions/acknowledged"
    incoming.told(begun, None)
    with incoming.listening(lambda: opened.append(True)):
        incoming.told(begun, None)
        incoming.told(begun, {"notifications": {"resourceSubscriptions": []}})
        incoming.told(begun, {"notifications": "odd"})
        assert len(opened) == 3
        incoming.told(begun, {"notifications": {"resourceSubscriptions": ["a:b"]}})
    incoming.told(begun, None)
    assert (len(opened), notices) == (3, [])


async def test_a_change_of_a_hubs_status_wakes_this_hub_and_no_client() -> None:
    clients = Clients()
    incoming = Incoming("s", DialHooks(relay=clients), InFlight())
    told = incoming.status_told
    incoming.pass_on("notifications/resources/updated", {"uri": "a:b"})
    incoming.pass_on("notifications/resources/updated", None)
    assert [told.is_set()] == [False]
    assert len(clients.tells) == 2
    incoming.pass_on("notifications/resources/updated", {"uri": STATUS_URI})
    assert [told.is_set()] == [True]
    assert incoming.status_told is not told
    assert not incoming.status_told.is_set()
    assert len(clients.tells) == 2


# The end of a connection.


class Line(DuplexDispatcher):
    """A connection whose reading ends as a test says; it notes what it writes."""

    def __init__(self, end: Any = None) -> None:
        super().__init__(Limits(), "s")
        self.end = end
        self.written: list[tuple[bytes, str, Mapping[str, str]]] = []
        self.fails: Evidence | None = None

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        self.written.append((data, doing, headers))
        if self.fails is not None:
            raise ServerFailure(self.fails)
        return 7

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        if self.end is None:
            await anyio.sleep_forever()
        if isinstance(self.end, Exception):
            raise self.end
        seen: Evidence = self.end
        return seen


@pytest.mark.parametrize(
    ("end", "seen"),
    [(RESET, RESET), (ServerFailure(HttpStatus(status=500)), HttpStatus(status=500)), (KeyError("odd"), None)],
    ids=["evidence", "failure", "fault"],
)
async def test_why_a_connection_ended_is_told_to_each_one_who_asks_then(end: Any, seen: Evidence | None) -> None:
    wire, expected = Line(end), seen or Unexpected(type="KeyError")
    wire.start()
    with anyio.fail_after(10):
        assert await wire.gone() == expected
    assert wire.ended
    with pytest.raises(ServerFailure) as failed:
        await wire.ask("ping", {})
    assert failed.value.evidence == expected
    await wire.aclose()


async def test_one_who_waits_while_the_connection_is_closed_is_told_so() -> None:
    wire, failures = Line(), list[Evidence]()
    await wire.aclose()  # it never began

    async def ask() -> None:
        with pytest.raises(ServerFailure) as failed:
            await wire.ask("ping", {}, headers={"x": "y"})
        failures.append(failed.value.evidence)

    wire.start()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert (wire.ended, failures) == (False, [])
            (waiting,) = wire.in_flight.requests.values()
            assert waiting.sent_at == 7
            await wire.aclose()
        assert await wire.gone() == CLOSED
    assert (failures, wire.in_flight.requests) == ([CLOSED], {})
    assert wire.incoming._hooks is NO_HOOKS
    ((_, doing, headers),) = wire.written
    assert (doing, headers) == ("the receipt of ping", {"x": "y"})


async def test_a_notification_that_cannot_be_sent_is_dropped() -> None:
    wire = Line()
    wire.fails = RESET
    await wire.notify("notifications/initialized", {"a": 1})
    ((data, doing, headers),) = wire.written
    assert b"notifications/initialized" in data
    assert (doing, headers) == ("the receipt of notifications/initialized", {})
    with pytest.raises(ServerFailure):
        await wire._send({"jsonrpc": "2.0", "id": 1, "result": {}})
    assert wire.written[1][1] == "the receipt of an answer"


# A POST beside a stream.


class Posting(SseDispatcher):
    """Its POSTs fail as a test says."""

    fails: Evidence | None = None

    async def _post(self, data: bytes, doing: str, headers: Mapping[str, str]) -> None:
        if self.fails is not None:
            raise ServerFailure(self.fails)


async def posted(fails: Evidence | None, *, ends: bool = False) -> Evidence | None:
    """What a POST shows whose stream ends while it waits."""
    wire = Posting(SimpleNamespace(), Limits())  # type: ignore[arg-type]  # nothing is sent
    wire.fails = fails
    seen: list[Evidence | None] = []

    async def write() -> None:
        try:
            assert await wire._write(b"", doing="x", headers={}) is None
            seen.append(None)
        except ServerFailure as failure:
            seen.append(failure.evidence)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            if ends:
                await anyio.wait_all_tasks_blocked()
                wire.in_flight.fail(LOST)
                for scope in wire._posting:
                    scope.cancel()
    assert wire._posting == set()
    return seen[0]


async def test_a_post_that_was_cut_waits_a_moment_for_the_end_of_its_stream_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "CUT_SECONDS", 1_000.0)
    refused = NetworkFailure(fault=NetworkFault.REFUSED)
    for fails in (refused, HttpStatus(status=500), None):
        assert await posted(fails) == fails
    assert await posted(RESET, ends=True) == LOST
    monkeypatch.setattr(transport, "CUT_SECONDS", 0.01)
    assert await posted(RESET) == RESET
