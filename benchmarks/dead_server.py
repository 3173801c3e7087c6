"""How often the hub contacts a dead server: connections in five minutes of the hub's time (LIFE-22).

The hub's clock is moved by hand, so that five minutes take seconds; everything else is real. What reaches a
port without a listener is counted where this process asks the kernel to connect; everything else is counted
at the server.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio

from benchmarks.report import Check, Report, Row, Spread
from holdfast.config.read import config_from_mapping
from holdfast.hub.hub import Hub
from holdfast.hub.slot import Slot
from holdfast.testing import FakeClock, Fault, HttpServer
from tests.peers.stdio import StdioPeer

__all__ = ["CASES", "MINUTES", "REQUIREMENTS", "Bothered", "bothered", "measure"]

REQUIREMENTS = ("LIFE-22", "LIFE-24", "LIFE-25", "BRK-10")

MINUTES = 5
BRISK_SECONDS = 60.0
LONGEST_GAP = 30.0
DIALS = 6
"""Beside the looks: the reconnects that the budget allows, and the first."""

COLD_LOOKS = 60
KNOWN_LOOKS = 140
"""In the first minute: once a second; or, where the server was up before, four times for ten seconds, then twice."""

STARTING_DIALS = 70
"""In the first minute: twice a second for ten seconds, then once."""

SLOW_AT_MOST = 20
FLAPS_AT_MOST = 15
SERVER = "dead"


@dataclass(frozen=True)
class Bothered:
    """When a server was contacted, in seconds of the hub's clock."""

    at: tuple[float, ...]

    @property
    def gaps(self) -> list[float]:
        """The time between two contacts."""
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]

    def within(self, first: float, last: float) -> int:
        """The number of contacts in an interval."""
        return sum(first <= moment < last for moment in self.at)


def measure(*, rounds: int = 1) -> Report:
    """Run each kind of dead server. The run is deterministic, so one round is enough."""
    found = {name: anyio.run(bothered, name) for name in CASES for _ in range(rounds)}
    return Report(
        name="dead_server",
        title=f"Connections that a dead server sees in {MINUTES} minutes",
        requirements=REQUIREMENTS,
        rows=tuple(_row(name, seen) for name, seen in found.items()),
        checks=(
            _quick_at_first(found["refuses from the start"], "that refuses from the start", COLD_LOOKS),
            _quick_at_first(found["refuses after it was up"], "that was up and is gone", KNOWN_LOOKS + DIALS),
            _never_long_unwatched(found["refuses from the start"]),
            _limited_per_minute(found["listens again and is never well"]),
            _once(found["denies"]),
            _left_alone(found["dies after each listing"]),
        ),
    )


async def bothered(case: str) -> Bothered:
    """Five minutes with one dead server; returns when it was contacted."""
    clock = FakeClock()
    async with CASES[case]() as (definition, count, kill):
        config = config_from_mapping({"mcpServers": {SERVER: definition}})
        async with Hub(config, clock=clock, chance=lambda: 0.0) as hub:  # no jitter: the same count in every run
            slot = hub.registry.slots[SERVER]
            await hub.ready(10)
            before = await kill()
            moments: list[float] = []
            begun = clock.now()
            while True:
                await _settled(slot)
                moments += [clock.now() - begun] * (count() - before - len(moments))
                due = clock.next_due
                if due is None or due > begun + MINUTES * 60:
                    return Bothered(tuple(moments))
                await clock.advance_to_next()


async def _settled(slot: Slot) -> None:
    """Wait in real time until no operation is in progress that could change the schedule of the hub."""
    with anyio.fail_after(30):
        quiet = 0
        while quiet < 3:
            quiet = quiet + 1 if _is_quiet(slot) else 0
            await anyio.sleep(0.002)


def _is_quiet(slot: Slot) -> bool:
    machine = slot.machine
    # None of these servers stays alive: a connected one is about to be found dead.
    return machine.dialing is None and machine.connection is None and machine.life.address_watch.pending is None


# The dead servers: a definition, the count of contacts, and how the server dies.

Dead: TypeAlias = tuple[Mapping[str, object], Callable[[], int], Callable[[], Awaitable[int]]]


@asynccontextmanager
async def _refusing() -> AsyncIterator[Dead]:
    async with HttpServer({"tool": "done"}) as server:
        await server.stop()
        connects = _connects_to(server.port)
        yield server.definition, connects, _nothing


@asynccontextmanager
async def _refusing_later() -> AsyncIterator[Dead]:
    async with HttpServer({"tool": "done"}) as server:
        connects = _connects_to(server.port)

        async def stop() -> int:
            before = connects()
            await server.stop()
            return before

        yield server.definition, connects, stop


@asynccontextmanager
async def _never_well_again() -> AsyncIterator[Dead]:
    async with HttpServer({"tool": "done"}) as server:
        connects = _connects_to(server.port)

        async def restart() -> int:
            before = connects()
            await server.stop()
            while connects() == before:  # noqa: ASYNC110 - the reconnect that is refused sets no event
                await anyio.sleep(0.002)
            await server.fail(Fault.DIE)
            await server.start()
            return before

        yield server.definition, connects, restart


@asynccontextmanager
async def _denying() -> AsyncIterator[Dead]:
    async with HttpServer({"tool": "done"}) as server:
        await server.fail(Fault.DENY)
        yield server.definition, lambda: server.connections, _nothing


@asynccontextmanager
async def _flapping() -> AsyncIterator[Dead]:
    with tempfile.TemporaryDirectory() as folder:
        peer = StdioPeer("--die-after-list", folder=Path(folder))
        try:
            yield {"command": peer.command, "args": list(peer.args)}, lambda: peer.starts, _nothing
        finally:
            peer.kill()


async def _nothing() -> int:
    return 0


CASES: Mapping[str, Callable[[], AbstractAsyncContextManager[Dead]]] = {
    "refuses from the start": _refusing,
    "refuses after it was up": _refusing_later,
    "listens again and is never well": _never_well_again,
    "denies": _denying,
    "dies after each listing": _flapping,
}


class _Connects:
    """Counts by port how often this process asked the kernel to connect. An audit hook cannot be removed."""

    def __init__(self) -> None:
        self.by_port: dict[int, int] = {}
        self._hooked = False

    def watch(self, port: int) -> None:
        self.by_port[port] = 0
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[object, ...]) -> None:
        if event == "socket.connect" and isinstance(args[1], tuple) and args[1][1] in self.by_port:
            self.by_port[args[1][1]] += 1


_connects = _Connects()


def _connects_to(port: int) -> Callable[[], int]:
    _connects.watch(port)
    return lambda: _connects.by_port[port]


def _row(name: str, seen: Bothered) -> Row:
    gaps = sorted(seen.gaps) or [0.0]
    spread = Spread(gaps[len(gaps) // 2], gaps[0], gaps[-1])
    return Row(label=f"{name} (time between two: median, least, most)", time=spread, requests=len(seen.at))


def _quick_at_first(seen: Bothered, which: str, at_most: int) -> Check:
    early, late = seen.within(0, BRISK_SECONDS), seen.within(BRISK_SECONDS, MINUTES * 60)
    return Check(
        demand=f"LIFE-22 a server {which} sees at most {at_most} connections in a minute, then ever fewer",
        found=f"{early} connections in the first minute, {late} in the other four",
        met=early <= at_most and late <= SLOW_AT_MOST,
    )


def _limited_per_minute(seen: Bothered) -> Check:
    early, late = seen.within(0, BRISK_SECONDS), seen.within(BRISK_SECONDS, MINUTES * 60)
    return Check(
        demand="LIFE-25 a server that listens again and is not well is asked each 2 s for a minute, then less often",
        found=f"{early} connections in the first minute, {late} in the other four",
        met=early <= STARTING_DIALS + DIALS and late <= SLOW_AT_MOST,
    )


def _never_long_unwatched(seen: Bothered) -> Check:
    return Check(
        demand=f"LIFE-22 and never left unwatched for longer than {LONGEST_GAP:.0f} s",
        found=f"at most {max(seen.gaps):.1f} s",
        met=max(seen.gaps) <= LONGEST_GAP,
    )


def _once(seen: Bothered) -> Check:
    later = [moment for moment in seen.at if moment > 0]
    return Check(
        demand=f"LIFE-24 a server that denies is asked once, and again by the slow self-probe after {MINUTES} minutes",
        found=f"{len(seen.at)} times",
        met=len(seen.at) <= 2 and all(moment >= MINUTES * 60 for moment in later),
    )


def _left_alone(seen: Bothered) -> Check:
    return Check(
        demand="BRK-10, LIFE-25 a server that dies after each listing is started every 30 s at most",
        found=f"{seen.within(0, BRISK_SECONDS)} times in the first minute, {len(seen.at)} in all",
        met=len(seen.at) <= FLAPS_AT_MOST,
    )
