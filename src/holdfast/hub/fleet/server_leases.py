"""The servers that live on one replica: which of them this replica may run, and for how long.

The store gives a lease, and the other replicas prolong it by promises while the store does not answer. A lease that is
over ends what runs here, also after the machine was suspended, so that no two replicas run one server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.abc

from holdfast.core import CHILD_SECONDS, FleetMember, preferred
from holdfast.hub.clock import Clock
from holdfast.hub.fleet.peers import PeerFailed, PeerRefused, PeerReply, PeerRequest, Peers, PeerUnreachable

__all__ = ["ServerLeases", "suspended_seconds"]

RUNS_SECONDS = 12.0
"""How long a connection waits for a replica that runs its server: a lease ends before that."""
SUSPENDED_SECONDS = 0.2
"""A shorter suspension does not matter for a lease; the two clocks are not read in the same moment."""
PROMISE_SECONDS = 1.0
PROMISE_OPERATION = "server/promise"
RUNNER_OPERATION = "server/runner"
ASK_AGAIN_SECONDS = 1.0
"""How often the other replicas are asked which one runs a server, while the store does not answer."""
MOST_ASKED = 8
"""Replicas that are asked that: each that reaches the store knows it."""
MOST_NAMED = 5
"""Servers that a notice names."""


def suspended_seconds() -> float:
    """How long this machine was suspended since it started, where the system tells it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC) if boot is not None else 0.0


class ServerLeases:
    """The leases of one replica. ``FleetMember`` decides; this class asks, waits and tells the hub."""

    def __init__(
        self, member: FleetMember, peers: Peers | None, *, wake: Callable[[], None], tick: Callable[[], None]
    ) -> None:
        self._member = member
        self._peers = peers
        self._wake = wake
        """Makes the next exchange with the store come soon."""
        self._tick = tick
        """Applies what ends with time, such as a lease."""
        self.is_reachable = True
        """Whether replicas on other machines can be told how to reach this one."""
        self._placed = member.placement.servers
        self._leaving: set[str] = set()
        """The servers that this replica gives away, because it leaves."""
        self._changed = anyio.Event()
        self._gained = anyio.Event()
        """Set when this replica gets a server."""
        self._allow: Callable[[str, float], None] | None = None
        self._allowed: dict[str, float] = {}
        self._slept = suspended_seconds()
        self._clock: Clock | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    def open(self, allow_children: Callable[[str, float], None], clock: Clock) -> None:
        """Begin for a hub; before ``start``. See ``FleetHost`` for ``allow_children``."""
        self._allow, self._clock = allow_children, clock

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Give promises to other replicas, and prolong the leases of this one, until the tasks are cancelled."""
        self._tasks = tasks
        if self._peers is not None:
            self._peers.handle(PROMISE_OPERATION, self._promise)
            self._peers.handle(RUNNER_OPERATION, self._tell_runner)
        tasks.start_soon(self._watch)

    # Which servers these are, and where they run.

    def place(self, server: str, *, wanted: bool) -> None:
        """A server that lives on one replica is configured, or not any more."""
        self._member.place(server, wanted=wanted)
        self._wake()

    def is_placed(self, server: str) -> bool:
        """Whether a server lives on one replica."""
        return server in self._member.placement

    @property
    def cut_off(self) -> tuple[str, ...]:
        """Servers that live on one replica: while that is this one, the clients of other replicas cannot use them."""
        return () if self.is_reachable else tuple(sorted(self._member.placement))

    @property
    def notice(self) -> str:
        """What the operator should change; empty if nothing."""
        names = self.cut_off
        if not names:
            return ""
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return (
            f"{', '.join(names[:MOST_NAMED])}{more}: `placement` is `one`, and this replica was started without "
            "--advertise. While it runs here, clients of the other replicas cannot use it. Start every replica with "
            '--advertise tcp://HOST:PORT, or write "placement": "each"'
        )

    def runs(self, server: str) -> bool:
        """Whether this replica may run a server now."""
        if server not in self._member.placement:
            return True
        return server not in self._leaving and self._member.lease_of(server, self._now()) > 0

    def home_of(self, server: str) -> str:
        """The replica that runs a server that lives on one; empty if no replica is known to."""
        return self._member.replica if self.runs(server) else self._member.home_of(server)

    @property
    def homes(self) -> dict[str, str]:
        """The replica that runs each server that lives on one; empty if no replica is known to."""
        return {server: self.home_of(server) for server in self._member.placement}

    async def find_runner(self, server: str) -> str:
        """The replica that runs a server; waits a while until one does. Empty if none does.

        Without the store the other replicas are asked: one that reaches it knows where the server moved.
        """
        assert self._clock is not None  # noqa: S101 - the hub is open
        until = self._now() + RUNS_SECONDS
        while True:
            alone = not self._member.is_connected(self._now())
            if alone and not self.runs(server):
                await self._ask_runner(server)
            home = self.home_of(server)
            if home == self._member.replica and not self.runs(server):
                home = ""
            if home or self._now() >= until:
                return home
            await self._clock.wait(self._changed, min(until, self._now() + ASK_AGAIN_SECONDS) if alone else until)

    async def _ask_runner(self, server: str) -> None:
        peers = self._peers
        if peers is None:
            return

        async def ask(peer: str) -> None:
            with suppress(PeerUnreachable, PeerRefused, PeerFailed):
                answer, _ = await peers.ask(peer, RUNNER_OPERATION, {"server": server}, within=PROMISE_SECONDS)
                home, token = answer.get("home"), answer.get("token")
                if isinstance(home, str) and isinstance(token, int):
                    self._member.placement.heard(server, home, token)

        async with anyio.create_task_group() as tasks:
            for peer in preferred(server, self._member.replica, peers.others)[:MOST_ASKED]:
                tasks.start_soon(ask, peer)

    async def _tell_runner(self, request: PeerRequest, reply: PeerReply) -> None:
        server = str(request.about.get("server"))
        reply.answer({"home": self.home_of(server), "token": self._member.placement.token_of(server)})
        await reply.drained()

    def look_again(self) -> None:
        """An exchange may have changed where servers run: the waits look again."""
        self._changed.set()
        self._changed = anyio.Event()

    # This replica leaves.

    def take_nothing(self) -> None:
        """This replica leaves: it takes no server any more."""
        self._member.placement.retired = True

    def retire(self) -> list[str]:
        """This replica leaves, and gives away what runs here. Returns these servers."""
        self.take_nothing()
        self._leaving = {server for server in self._member.placement if self.runs(server)}
        return sorted(self._leaving)

    def is_leaving(self, server: str) -> bool:
        """Whether this replica gives a server away."""
        return server in self._leaving

    def give_back(self, server: str) -> None:
        """A server does not run here any more, and another replica may run it."""
        self._member.give_back(server)
        self._leaving.discard(server)
        self.look_again()
        self._wake()

    async def given_back(self, server: str) -> None:
        """Wait until a server that this replica gives away has ended here."""
        while server in self._leaving:
            await self._changed.wait()

    # How long a lease lasts.

    def check(self, server: str) -> None:
        """Before a server is used: end what this replica may not run any more, if it was stopped for a while."""
        if server not in self._placed:
            return  # every call asks: most servers run on each replica, and have no lease
        self._note_suspension()
        if self._member.placement.is_over(server, self._now()):
            self._tick()

    def gained(self) -> None:
        """This replica got a server: its lease is prolonged in time from now on."""
        self._gained.set()

    def renew(self) -> None:
        """End the leases that are over, and ask the other replicas to prolong the rest if the store does not."""
        self._note_suspension()
        self._tick()
        self._ask_promises()
        self.allow_children()

    def allow_children(self) -> None:
        """Tell the warden how long the children may live, each time that a lease was renewed or prolonged."""
        assert self._allow is not None  # noqa: S101 - see open()
        for server in self._member.placement:
            stops_at = self._member.placement.stops_at(server)
            if stops_at and self._allowed.get(server) != stops_at:
                self._allowed[server] = stops_at
                self._allow(server, max(0.0, stops_at - self._now()) + CHILD_SECONDS)

    async def _watch(self) -> None:
        """Prolong the leases in time, also while an exchange waits for a store that does not answer."""
        assert self._clock is not None  # noqa: S101 - see open()
        while True:
            self._gained = anyio.Event()
            at = self._member.promises_due()
            if at is None or at > self._now():
                await self._clock.wait(self._gained, at)
                continue
            self.renew()

    def _note_suspension(self) -> None:
        """A machine that was suspended: its clock stood still, and the leases went on."""
        slept = suspended_seconds()
        if slept > self._slept + SUSPENDED_SECONDS:
            self._member.placement.slept(slept - self._slept)
        self._slept = slept

    def _ask_promises(self) -> None:
        wanted = self._member.wants_promises(self._now())
        if self._peers is None or self._tasks is None:
            return
        for server, token in wanted.items():
            for peer in self._member.placement.witnesses:
                self._tasks.start_soon(self._ask_promise, self._peers, peer, server, token, self._now())

    async def _ask_promise(self, peers: Peers, peer: str, server: str, token: int, asked_at: float) -> None:
        try:
            about = {"server": server, "token": token}
            answer, _ = await peers.ask(peer, PROMISE_OPERATION, about, within=PROMISE_SECONDS)
            seconds = float(answer.get("seconds", 0.0))
        except (PeerUnreachable, PeerRefused, PeerFailed, TypeError, ValueError):
            return  # without a promise the lease ends
        self._member.placement.promised(peer, server, token, asked_at, seconds)
        self.allow_children()
        self._wake()

    async def _promise(self, request: PeerRequest, reply: PeerReply) -> None:
        server, token = str(request.about.get("server")), request.about.get("token")
        seconds = self._member.promise(server, token, self._now()) if isinstance(token, int) else 0.0
        reply.begin({"seconds": seconds})
        await reply.drained()

    def _now(self) -> float:
        assert self._clock is not None  # noqa: S101 - see open()
        return self._clock.now()

    def __repr__(self) -> str:
        return f"<ServerLeases {self._member.replica!r} placed={len(self._placed)} leaving={len(self._leaving)}>"
