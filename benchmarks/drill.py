"""The outage drill: servers are killed under load and started again, while one server stays untouched.

Three servers are broken: an HTTP server with a notification stream, one without, and a child that is killed with
``kill -9``. All policies are the shipped ones. The hub's share of a recovery is the time from "the server can be
reached again" to "connected", minus the time of a bare dial and listing. For both dials, the time in which the event
loop waited for a CPU is left out; for the wait before them, it is not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

from benchmarks.cpu_wait import Moment
from benchmarks.report import Check, Report, Row, median
from holdfast.config.read import config_from_mapping
from holdfast.config.settings import Limits
from holdfast.config.spec import Config, ServerSpec
from holdfast.core.lifecycle.events import Transition
from holdfast.core.lifecycle.table import State
from holdfast.core.redact import Redactor
from holdfast.errors import HoldfastError
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord
from holdfast.testing import HttpServer, StdioServer
from holdfast.wire.dial import Dialer
from holdfast.wire.warden import Warden

__all__ = ["BROKEN", "BYSTANDER", "REQUIREMENTS", "Drilled", "drill", "measure"]

REQUIREMENTS = ("LIFE-4", "LIFE-11", "LIFE-14", "LIFE-22")

ROUNDS = 30
BROKEN = ("stream", "quiet", "child")
BYSTANDER = "bystander"
CALLERS = 4
"""How many callers each server has. Each sends one call after the other."""

AT_MOST = 1.0
"""What the hub may add to a recovery, in seconds. Servers, callers and hub share one event loop under load, and what
that costs counts as the hub's."""

PAUSE = 0.02
"""Seconds between two calls of one caller: enough load, and the event loop stays responsive."""

LONGEST_OUTAGE = 1.5
CALL_SECONDS = 5.0
"""The idle timeout of a call, so that a hang shows within a round."""

DEADLINE = 5.0 + 2 * CALL_SECONDS
"""The longest call: it waits for a starting server, and is sent at most twice."""

BACK_SECONDS = 60.0

Servers: TypeAlias = Mapping[str, HttpServer | StdioServer]


@dataclass
class Drilled:
    """What came out."""

    recoveries: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BROKEN})
    """From "can be reached again" to "connected", in seconds."""
    bare: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BROKEN})
    """A bare dial and listing of the same server, in seconds."""
    waited: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BROKEN})
    """How much longer the hub's dial waited for a CPU than the bare one did, in seconds."""
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Observations that no caller and no reader may make."""

    def added(self, name: str) -> list[float]:
        """What the hub added to each recovery."""
        found = zip(self.recoveries[name], self.bare[name], self.waited[name], strict=True)
        return [back - bare - waited for back, bare, waited in found]


def measure(*, rounds: int = ROUNDS) -> Report:
    """Run the drill and report."""
    found = anyio.run(drill, rounds)
    return Report(
        name="drill",
        title=f"Kill and restart under load, {rounds} rounds",
        requirements=REQUIREMENTS,
        rows=tuple(row for name in BROKEN for row in _rows(name, found)),
        checks=(*(_quick(name, found) for name in BROKEN), _true(found), _undisturbed(found)),
    )


async def drill(rounds: int, *, seed: int = 0) -> Drilled:
    """Break the servers this many times."""
    found = Drilled()
    async with _fleet() as fleet, Warden() as warden, Hub(_config(fleet)) as hub:
        await hub.ready(10)
        dialer = Dialer(warden=warden, limits=Limits())
        await _Drilling(hub, fleet, found, dialer, random.Random(seed)).run(rounds)
    return found


class _Drilling:
    """One run of the drill."""

    def __init__(self, hub: Hub, fleet: Servers, found: Drilled, dialer: Dialer, chance: random.Random) -> None:
        self._hub = hub
        self._fleet = fleet
        self._found = found
        self._dialer = dialer
        self._chance = chance
        self._listed = {entry.name for entry in hub.catalog.tools}
        self._connected: dict[str, anyio.Event] = {}
        self._dialed: dict[str, Moment] = {}
        self._back: dict[str, Moment] = {}
        self._answered = {name: anyio.Event() for name in fleet}
        hub.listen(self._see)

    async def run(self, rounds: int) -> None:
        async with anyio.create_task_group() as load:
            for name in self._fleet:
                for _ in range(CALLERS):
                    load.start_soon(self._keep_calling, name)
                load.start_soon(self._note_dials, name)
            for _ in range(rounds):
                async with anyio.create_task_group() as outages:
                    for name in BROKEN:
                        outages.start_soon(self._outage, name)
            load.cancel_scope.cancel()

    async def _outage(self, name: str) -> None:
        """One outage of one server, up to the moment when calls are answered again."""
        self._connected[name] = anyio.Event()
        up_again = await self._down_and_up(name)
        try:
            with anyio.fail_after(BACK_SECONDS):
                await self._connected[name].wait()
                self._answered[name] = anyio.Event()
                await self._answered[name].wait()
        except TimeoutError:
            self._found.wrong.append(f"{name} was not back after {BACK_SECONDS:.0f} s: {self._hub.server_health(name)}")
            return
        began = Moment.now()
        ended = await self._bare_dial(name)
        back = self._back[name]
        self._found.recoveries[name].append(back.since(up_again))
        self._found.bare[name].append(ended.since(began))
        dialed = max(up_again, self._dialed[name])
        self._found.waited[name].append(back.waited_since(dialed) - ended.waited_since(began))

    async def _down_and_up(self, name: str) -> Moment:
        """Kill it, and the moment when it can be reached again: a child at once, since it is started by need."""
        server = self._fleet[name]
        outage = self._chance.uniform(0.0, LONGEST_OUTAGE)
        if isinstance(server, StdioServer):
            server.kill()
            return Moment.now()
        await server.stop()
        await anyio.sleep(outage)
        await server.start()
        return Moment.now()

    async def _bare_dial(self, name: str) -> Moment:
        """Dial and list beside the hub; the moment when that was done."""
        spec = self._hub.config.servers[name]
        assert isinstance(spec, ServerSpec)
        async with self._dialer.connect(spec, within=10, redactor=Redactor(), era="legacy") as connection:
            await connection.list_everything(within=10)
            return Moment.now()

    async def _note_dials(self, name: str) -> None:
        slot, dialing = self._hub.registry.slot(name), None
        while True:
            if slot.machine.dialing not in (None, dialing):
                self._dialed[name] = Moment.now()
            dialing = slot.machine.dialing
            await slot.changed()

    async def _keep_calling(self, name: str) -> None:
        while True:
            try:
                with anyio.fail_after(DEADLINE):
                    await self._hub.call_tool(f"{name}__tool")
            except HoldfastError as exc:
                self._found.refused[name] += 1
                self._found.reasons[f"{type(exc).__name__}: {exc.message.partition(';')[0]}"] += 1
            except TimeoutError:
                self._found.wrong.append(f"a call of {name} had no answer within {DEADLINE:.0f} s")
            else:
                self._found.answered[name] += 1
                self._answered[name].set()
            await anyio.sleep(PAUSE)

    def _see(self, record: HubRecord) -> None:
        missing = self._listed - {entry.name for entry in self._hub.catalog.tools}
        if missing or set(self._hub.servers) != set(self._fleet):
            self._found.wrong.append(f"a reader missed {sorted(missing) or 'a server'} after {record}")
        if isinstance(record, Transition) and record.new is State.CONNECTED and record.server in self._connected:
            self._back[record.server] = Moment.now()
            self._connected[record.server].set()


@asynccontextmanager
async def _fleet() -> AsyncIterator[Servers]:
    tools = {"tool": "done"}
    async with AsyncExitStack() as stack:
        yield {
            "stream": await stack.enter_async_context(HttpServer(tools)),
            "quiet": await stack.enter_async_context(HttpServer(tools, stream=False)),
            "child": stack.enter_context(StdioServer(tools)),
            BYSTANDER: await stack.enter_async_context(HttpServer(tools, era="modern")),
        }


def _config(fleet: Servers) -> Config:
    return config_from_mapping(
        {
            "mcpServers": {name: server.definition for name, server in fleet.items()},
            "holdfast": {"call": {"timeout": f"{CALL_SECONDS:.0f}s"}},
        }
    )


def _rows(name: str, found: Drilled) -> Sequence[Row]:
    recoveries = found.recoveries[name]
    return (
        Row(label=f"{name}: up again to connected", time=median(recoveries), requests=len(recoveries)),
        Row(label=f"{name}: a bare dial and listing", time=median(found.bare[name])),
    )


def _quick(name: str, found: Drilled) -> Check:
    added = found.added(name)
    middle, most = median(added).median, max(added)
    raw = max(back - bare for back, bare in zip(found.recoveries[name], found.bare[name], strict=True))
    return Check(
        demand=f"LIFE-22 the hub adds at most {AT_MOST:.0f} s to a recovery of `{name}`",
        found=f"median {middle:.2f} s, most {most:.3f} s ({raw:.3f} s by the clock), {len(added)} times",
        met=most <= AT_MOST,
    )


def _true(found: Drilled) -> Check:
    return Check(
        demand="LIFE-4, LIFE-11 no catalog is lost and no call goes without an answer in time",
        found="; ".join(found.wrong[:3])
        or f"{found.answered.total()} results, {found.refused.total()} refusals of {len(found.reasons)} kinds",
        met=not found.wrong,
    )


def _undisturbed(found: Drilled) -> Check:
    refused, answered = found.refused[BYSTANDER], found.answered[BYSTANDER]
    return Check(
        demand="LIFE-14 calls of the server beside them never fail",
        found=f"{refused} of {answered + refused} failed",
        met=refused == 0,
    )
