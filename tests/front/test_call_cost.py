"""What a call costs, in counts: steps, tasks and timers of the hub's own code, equal with one server and with many."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import typing
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import httpx2
import pytest

import holdfast
from holdfast.core import CatalogEntry
from holdfast.endpoint import own_answers
from holdfast.endpoint.view import View
from holdfast.hub import Hub
from holdfast.wire.http import connection
from holdfast.wire.http.transport import HttpDispatcher
from tests.fleet.test_homes import replicas
from tests.harness.raw_session import Session
from tests.harness.served_hub import front
from tests.harness.waiting import came_true
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-4")]

CALLS, FEW_CALLS = 20, 5
MANY = 500
MOST_STEPS = 171
"""How many functions of the hub one call may enter, where the server answers with an event stream in pieces."""

MOST_STEPS_OF_A_REPLICA = 2
"""How many more functions a call may enter in a replica: does its server live there, and does its client?"""

LASTING = httpx2.Limits(keepalive_expiry=None)
"""A busy machine may need seconds between two calls. A new connection then would be counted with the call."""

Settled: TypeAlias = Callable[[], Awaitable[None]]

_ROOTS = ("HttpConnection._run", "HttpConnection.data_received", "PooledConnection.data_received")
_FOR_EACH_PIECE = ("PooledConnection.data_received", "AnswerParser.receive", "ChunkReader.take")
"""In how many pieces the bytes of an answer come is up to the system."""
_OURS = str(Path(holdfast.__file__).parent)


class Cost:
    """What the hub's own code did: functions that it entered, tasks and timers that it made."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        """Functions that the latest call entered."""
        self.cheapest: Counter[str] = Counter()
        """The fewest times that any call entered each: now and then a head is read again, or a refresh comes between,
        and the end of a server's stream comes with its answer or after it."""
        self.lines: Counter[str] = Counter()
        """Lines that ran, by function, if they were asked for: they tell of a loop that enters no function."""
        self.checks: list[str] = []
        """What ``typing`` did: the check of a type that is a protocol took a tenth of a call."""
        self.tasks: list[str] = []
        self.timers: list[str] = []

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch, *, lines: bool = False) -> Iterator[None]:
        loop: Any = asyncio.get_running_loop()
        self._count(monkeypatch, loop, "create_task", lambda coro, *_, **__: self._add(self.tasks, coro))
        self._count(monkeypatch, loop, "call_at", lambda _, call, *__, **___: self._add(self.timers, call))
        before, traced = sys.getprofile(), sys.gettrace()
        sys.setprofile(self._step)
        if lines:
            sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(traced)
            sys.setprofile(before)

    def _count(self, monkeypatch: pytest.MonkeyPatch, loop: Any, name: str, note: Callable[..., None]) -> None:
        real = getattr(loop, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return real(*args, **kwargs)

        monkeypatch.setattr(loop, name, counted)

    def _add(self, names: list[str], one: object) -> None:
        code = getattr(one, "cr_code", None) or getattr(getattr(one, "__func__", one), "__code__", None)
        if code is not None and code.co_filename.startswith(_OURS):
            names.append(code.co_qualname)

    def _enter(self, frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        ours = frame.f_code.co_filename.startswith(_OURS) and _is_of_a_call(frame)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            self.lines[frame.f_code.co_qualname] += 1
        return self._line

    def _step(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_of_a_call(frame):
            code = frame.f_code
            if code.co_filename.startswith(_OURS):
                self.steps[code.co_qualname] += 1
            elif code.co_filename == typing.__file__:
                self.checks.append(code.co_qualname)


def _is_of_a_call(frame: FrameType | None) -> bool:
    """Whether the code runs for a client's request; what the hub does beside calls has other roots."""
    while frame is not None:
        if frame.f_code.co_qualname in _ROOTS:
            return True
        frame = frame.f_back
    return False


@asynccontextmanager
async def _session(servers: int) -> AsyncIterator[tuple[Session, Settled]]:
    async with running("legacy") as origin, httpx2.AsyncClient(limits=LASTING) as http:
        fleet = {f"s{number}": {"url": origin.url, "enabled": number == 0} for number in range(servers)}
        async with front(fleet) as served, asyncio.timeout(60):
            served.hub.listen(lambda _: None)  # as metrics and the page do: a call has its record
            session = Session(http, served.all)
            await session.begin()
            await _call(session)
            yield session, _settled(served.hub)


def _settled(hub: Hub) -> Settled:
    """Waits until the connection of the last call is free. Its server ends the stream a moment after the answer."""
    lease = hub.registry.slots["s0"].lease
    assert lease is not None
    assert lease.connection is not None
    wire = lease.connection.wire
    assert isinstance(wire, HttpDispatcher)
    return lambda: came_true(lambda: all(pool._idle for pool in wire.peer._pools.values()))


async def _cost(servers: int, monkeypatch: pytest.MonkeyPatch, *, lines: bool = False) -> Cost:
    async with _session(servers) as (session, settled):
        return await _cost_of(session, settled, CALLS, monkeypatch, lines=lines)


async def _cost_of(
    session: Session, settled: Settled, calls: int, monkeypatch: pytest.MonkeyPatch, *, lines: bool = False
) -> Cost:
    cost = Cost()
    with monkeypatch.context() as patched, cost.counted(patched, lines=lines):
        patched.setattr(connection, "SUSPECT_SECONDS", math.inf)  # the end of an idle connection is looked for in time
        for _ in range(calls):
            await settled()
            cost.steps = Counter()
            await _call(session)
            if "Pool.connected" not in cost.steps:  # an idle connection is closed after some seconds
                cost.cheapest = cost.cheapest & cost.steps if cost.cheapest else cost.steps
    return cost


async def _call(session: Session) -> None:
    async with session.call("s0__echo", {"text": "x"}) as events:
        assert "x" in (await anext(events))["data"]


async def test_a_call_takes_few_steps_and_no_task_and_as_many_with_many_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = await _cost(1, monkeypatch), await _cost(MANY, monkeypatch)
    assert few.tasks == many.tasks == []
    # They are shared, and set again as time passes: on a busy machine more of it passes in these calls.
    assert max(len(few.timers), len(many.timers)) <= CALLS // 2, "a call makes no timer of its own"
    assert max(few.cheapest.total(), many.cheapest.total()) <= MOST_STEPS, few.cheapest.most_common(40)
    assert few.checks == []
    assert many.cheapest - few.cheapest == {}, "each of these grows with the number of servers"


async def test_no_loop_of_a_call_runs_longer_with_many_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = await _cost(1, monkeypatch, lines=True), await _cost(MANY, monkeypatch, lines=True)
    assert few.lines.total() > CALLS
    assert {name: count for name, count in many.lines.items() if count > 1.5 * few.lines[name] + MANY} == {}


@pytest.mark.requirement("PERF-6")
async def test_a_list_is_made_once_for_each_catalog_and_view(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = own_answers._item

    def counted(view: View, entry: CatalogEntry) -> dict[str, Any]:
        made.append(entry.name)
        return real(view, entry)

    monkeypatch.setattr(own_answers, "_item", counted)
    async with (
        running("legacy") as origin,
        httpx2.AsyncClient() as http,
        front({"one": {"url": origin.url}, "two": {"url": origin.url}}) as served,
        asyncio.timeout(60),
    ):
        session = Session(http, served.all)
        await session.begin()
        lists = [await _listed(session) for _ in range(3)]
        assert lists[0] == lists[1] == lists[2]
        assert sorted(made) == sorted(set(made)), "each tool was written once"
        await served.hub.toggle("two", enabled=False)
        assert await _listed(session) != lists[0], "another catalog has another list"
        again = len(made)
        await _listed(session)
        assert len(made) == again


async def _listed(session: Session) -> str:
    async with session.request("tools/list") as events:
        return (await anext(events))["data"]


async def test_a_call_leaves_nothing_to_the_collector_of_cycles() -> None:
    async with _session(1) as (session, _):
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(CALLS):
                await _call(session)
            gc.collect()
            left = Counter(type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("holdfast"))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert left == {}


@pytest.mark.requirement("PERF-8")
async def test_a_call_takes_hardly_more_steps_in_a_replica_of_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _session(1) as (session, settled):
        alone = await _cost_of(session, settled, FEW_CALLS, monkeypatch)
    async with (
        running("legacy") as origin,
        httpx2.AsyncClient() as http,
        replicas({"s0": {"url": origin.url}}, 1) as (replica,),
        asyncio.timeout(60),
    ):
        replica.served.hub.listen(lambda _: None)
        session = Session(http, replica.url)
        await session.begin()
        await _call(session)
        shared = await _cost_of(session, _settled(replica.served.hub), FEW_CALLS, monkeypatch)
    assert shared.tasks == []
    more = shared.cheapest - alone.cheapest
    for name in _FOR_EACH_PIECE:
        del more[name]
    assert more.total() <= MOST_STEPS_OF_A_REPLICA, more
