"""What each kind of failure of a call means: for its caller, for the server, and for a second attempt.

The server and the connection are real. What the connection sees of one request is the test's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core import (
    CredentialRefused,
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OutOfDescriptors,
    OverBound,
    ProcessExit,
    RpcError,
    State,
    TimedOut,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
)
from holdfast.errors import (
    BreakerOpen,
    CallDenied,
    CallFailed,
    ConnectionClosed,
    HoldfastError,
    ServerDenied,
    ServerFailure,
    ServerNotReady,
    ServerUnavailable,
)
from holdfast.hub import Transition
from holdfast.hub.hub import Hub
from holdfast.testing import FakeClock, HttpServer
from holdfast.wire import LEAVING_HEADER, Connection, RawObject
from holdfast.wire.request_form import HubPeer
from tests.harness.open_hubs import records, running, settled

pytestmark = pytest.mark.anyio

RESET = NetworkFailure(fault=NetworkFault.RESET, stood=True)
LEAVES = HttpStatus(status=503, headers={LEAVING_HEADER: "1"})


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with HttpServer({"echo": "hi"}) as server, running({"a": server.definition}, clock=FakeClock()) as hub:
        await settled(hub)
        yield hub


def connection_of(hub: Hub) -> Connection:
    lease = hub.registry.slot("a").lease
    assert lease is not None
    assert lease.connection is not None
    return lease.connection


def see(hub: Hub, *evidence: Evidence, hub_behind: HubPeer | None = None) -> list[str]:
    """Let the next requests meet this evidence, and later ones an answer; the result notes each request."""
    connection, asked, coming = connection_of(hub), list[str](), list(evidence)
    connection.hub = hub_behind

    async def request(method: str, params: object, **_: Any) -> RawObject:
        asked.append(method)
        if coming:
            raise ServerFailure(coming.pop(0))
        return RawObject.of({"content": []})

    connection.request = request  # type: ignore[method-assign]
    return asked


async def error_of(hub: Hub) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        await hub.call_tool("a__echo")
    return raised.value


@pytest.mark.requirement("BRK-3", "LIFE-16")
@pytest.mark.parametrize(
    ("seen", "error", "uncertain", "failures"),
    [
        (RpcError(method="tools/call", code=-32603), CallFailed, False, 0),
        (NotMcp(fault=NotMcpFault.BAD_RESULT), CallFailed, True, 0),
        (NotMcp(fault=NotMcpFault.CONTENT_TYPE), CallFailed, True, 1),
        (OverBound(bound="a message", limit=1, setting="x"), CallFailed, True, 0),
        (OutOfDescriptors(limit=1), CallFailed, False, 0),
        (TokenNotRenewed(reason="down"), CallFailed, False, 0),
        (CredentialRefused(reason="no", hint="ask"), CallDenied, False, 0),
        (HttpStatus(status=403, body="no"), CallDenied, False, 0),
        (HttpStatus(status=413), CallFailed, False, 0),
        (HttpStatus(status=408), CallFailed, True, 1),
        (HttpStatus(status=429), CallFailed, False, 1),
        (HttpStatus(status=500), CallFailed, True, 1),
        (RESET, ConnectionClosed, True, 1),
        (replace(RESET, sent=False), ConnectionClosed, False, 1),
        (replace(RESET, stood=False), ConnectionClosed, False, 1),
        (ProcessExit(code=1), ConnectionClosed, True, 1),
        (ProcessExit(code=1, sent=False), ConnectionClosed, False, 1),
        (Unexpected(type="E"), CallFailed, True, 1),
    ],
    ids=str,
)
async def test_a_failure_tells_its_caller_and_counts_as_what_it_says_of_the_server(
    hub: Hub, seen: Evidence, error: type[CallFailed], uncertain: bool, failures: int
) -> None:
    asked = see(hub, seen)
    raised = await error_of(hub)
    assert (type(raised), getattr(raised, "uncertain", None)) == (error, uncertain)
    assert ("outcome is uncertain" in raised.message) is uncertain
    assert (len(asked), hub.registry.slot("a").machine.breaker.failures) == (1, failures)


@pytest.mark.requirement("MSG-8")
async def test_a_call_that_is_refused_where_a_connection_stood_says_that_the_server_was_up_before(hub: Hub) -> None:
    told = records(hub)
    see(hub, NetworkFailure(fault=NetworkFault.REFUSED))
    await hub.call_tool("a__echo")  # sent again on the next connection: nothing had listened
    lost = [record.reason for record in told if isinstance(record, Transition) and record.old is State.CONNECTED]
    assert lost == ["the connection was refused, though it was up before"]


@pytest.mark.requirement("BRK-3")
async def test_a_quota_of_the_hub_behind_is_no_fault_of_the_connection(hub: Hub) -> None:
    see(hub, HttpStatus(status=429), hub_behind=HubPeer(proven=True, own_id="me"))
    assert type(await error_of(hub)) is CallFailed
    assert hub.registry.slot("a").machine.breaker.failures == 0


TOLD = ToldByHub(status="transient", reason="it is down")


@pytest.mark.requirement("BRK-3")
@pytest.mark.parametrize(
    ("seen", "error", "uncertain"),
    [
        (TOLD, CallFailed, False),
        (replace(TOLD, sent=True), CallFailed, True),
        (replace(TOLD, closed=True), ConnectionClosed, False),
        (replace(TOLD, status="denied", closed=True), CallDenied, False),
    ],
)
async def test_what_the_hub_behind_says_of_a_call_is_what_it_would_be_here(
    hub: Hub, seen: ToldByHub, error: type[CallFailed], uncertain: bool
) -> None:
    see(hub, seen, replace(seen, words="in its own words"))
    first, second = await error_of(hub), await error_of(hub)
    assert isinstance(first, CallFailed)
    assert (type(first), first.uncertain) == (error, uncertain)
    assert first.message == "the call to `a` failed: it is down"
    assert second.message == "in its own words"
    assert hub.registry.slot("a").machine.breaker.failures == 0, "that hub counts it"


@pytest.mark.requirement("BRK-3")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("BreakerOpen", BreakerOpen), ("ServerDenied", ServerDenied), ("ErrorOfALaterVersion", ServerNotReady)],
)
async def test_a_refusal_of_the_hub_behind_is_the_same_refusal_here(
    hub: Hub, name: str, kind: type[ServerUnavailable]
) -> None:
    see(hub, replace(TOLD, refused=name, state="reconnecting", retry_in=4.0))
    raised = await error_of(hub)
    assert isinstance(raised, ServerUnavailable)
    assert (type(raised), raised.server_id, raised.state, raised.retry_in) == (kind, "a", "reconnecting", 4.0)
    assert (raised.reason, raised.status) == ("it is down", "transient")


@pytest.mark.requirement("FLEET-8")
@pytest.mark.parametrize("proven", [True, False])
async def test_a_hub_that_leaves_did_nothing_and_the_call_goes_to_the_next_one(hub: Hub, proven: bool) -> None:
    asked = see(hub, LEAVES, hub_behind=HubPeer(proven=proven, own_id="me"))
    slot = hub.registry.slot("a")
    first = slot.machine.life.generation
    if proven:
        assert (await hub.call_tool("a__echo")).text == "hi", "on another connection"
        assert slot.machine.life.generation > first
    else:
        assert type(await error_of(hub)) is CallFailed
        assert slot.machine.life.generation == first
    assert (len(asked), slot.machine.breaker.failures) == (1, 0 if proven else 1)


@pytest.mark.requirement("LIFE-16")
@pytest.mark.parametrize("seen", [RESET, ProcessExit(code=1)], ids=str)
async def test_a_repeatable_request_is_sent_a_second_time_and_no_third(hub: Hub, seen: Evidence) -> None:
    asked = see(hub, seen)
    await hub.registry.request("a", "x", {}, repeatable=True)
    assert len(asked) == 2
    asked = see(hub, seen, seen)
    with pytest.raises(ConnectionClosed) as raised:
        await hub.registry.request("a", "x", {}, repeatable=True)
    assert (len(asked), raised.value.uncertain) == (2, False)
    asked = see(hub, HttpStatus(status=500))
    with pytest.raises(CallFailed):
        await hub.registry.request("a", "x", {}, repeatable=True)
    assert len(asked) == 1, "a status is an answer"


@pytest.mark.requirement("BRK-2")
async def test_calls_in_flight_together_that_fail_are_one_failure(hub: Hub) -> None:
    slot = hub.registry.slot("a")
    lease = slot.lease
    assert lease is not None
    see(hub, RESET, RESET)
    await error_of(hub)
    await error_of(hub)
    assert (lease.faults, slot.machine.breaker.failures) == (2, 2), "one after the other they are two"
    connection = connection_of(hub)

    async def request(*_: object, **__: Any) -> RawObject:
        lease.faults += 1  # another call failed while this one was with the server
        raise ServerFailure(RESET)

    connection.request = request  # type: ignore[method-assign]
    await error_of(hub)
    assert slot.machine.breaker.failures == 2


async def test_a_timeout_says_that_the_server_may_still_act(hub: Hub) -> None:
    see(hub, TimedOut(doing="the result", after=1.0))
    raised = await error_of(hub)
    assert isinstance(raised, CallFailed)
    assert raised.uncertain
    assert hub.registry.slot("a").machine.breaker.failures == 0, "the server is asked for a sign of life first"
