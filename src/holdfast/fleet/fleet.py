"""One hub as a replica of a fleet: exchanges with the store in a task of its own, and applies what peers decide.

Theory of operation. ``FleetMember`` (``core/replicas``) decides, with time and chance as arguments; the simulation runs
the same code. ``Fleet`` performs: in a loop it asks the member when the next exchange is due, sends what is new here,
and gives what comes back to the part that it concerns. There is one part for each subject: who is present
(peers.py), each kind of record that replicas share (shared_records.py), and the logins of users (user_logins.py).
All parts use one ``ReplicaState``: the copy of the records, the clocks, the hub, and a way to hurry the next exchange.

What must never happen:

* A call waits for the store (FLEET-3). A call asks its slot, and the slot knows what the last exchange brought. A write
  of any part goes into the copy of this replica, and the next exchange sends it.
* The exchange waits for something slow. Presence ends if it is not renewed, so listings and digests are made in
  threads beside it (``_prepare``), and an exchange has a deadline of its own in every store.
* A replica acts as if it were alone for ever, or as if it were not. If the store is slow, wrong or gone, the hub goes
  on with its copy, says so (``not_shared_since``), and grants itself the right to probe. When the store answers again,
  both sides send what the other lacks; every record says by its stamp which one is newer.
* An answer is taken for that of another store. A new connection may lead to a replica of Redis with an older copy: the
  answer to a question for the old one is dropped, and the member reads everything again.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.abc

from holdfast.core import (
    Alone,
    Connected,
    FleetClock,
    FleetMember,
    FleetRecord,
    FleetReply,
    Granted,
    Happening,
    RecordLearned,
    Unused,
    events as on,
    keyed_tool,
    record_value,
)
from holdfast.fleet.peers import Peers, Presence, first_words
from holdfast.fleet.redis_store import RedisLeases
from holdfast.fleet.shared_events import SharedEvents
from holdfast.fleet.shared_records import (
    ConfigComparison,
    SharedDecisions,
    SharedEvidence,
    SharedListings,
    SharedQuestions,
)
from holdfast.fleet.stores import EventStore, FleetStore, StoreUnavailable
from holdfast.fleet.user_logins import LOGIN, FleetUserTokens
from holdfast.hub import Clock, ReplicaHost
from holdfast.keys import KeyRing

__all__ = ["Fleet", "ReplicaState", "SharedTime", "replica_name"]

log = logging.getLogger("holdfast.fleet")

LEAVE_SECONDS = 1.0
PURGE_SECONDS = 30.0
"""How often records whose time is over are looked for."""


def replica_name() -> str:
    """A name that no other replica has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Fleet:
    """The fleet of this hub."""

    def __init__(  # noqa: PLR0913 - what a replica is made of
        self,
        store: FleetStore,
        *,
        keys: Callable[[], KeyRing],
        replica: str | None = None,
        events: EventStore | None = None,
        peers: Peers | None = None,
        worker: tuple[str, int] | None = None,
        leases: RedisLeases | None = None,
        user_keys: Callable[[], KeyRing] | None = None,
        one_machine: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.replica = replica or replica_name()
        self.one_machine = one_machine
        """Whether all replicas are workers of one supervisor."""
        self.peers = peers
        """The direct link to the other replicas; None if this one has none."""
        about = first_words(wall(), peers.address if peers is not None else "", worker)
        self.state = ReplicaState(self.replica, about=about, wall=wall)
        self.member = self.state.member
        self.presence = Presence(self.state, peers)
        self.evidence = SharedEvidence(self.state, self.presence)
        self.decisions = SharedDecisions(self.state)
        self.questions = SharedQuestions(self.state, keys)
        self.listings = SharedListings(self.state)
        self.configs = ConfigComparison(self.state, self.presence, keys)
        self._listeners: dict[str, Callable[[str, Mapping[str, Any]], None]] = {}
        self.events: SharedEvents | None = None
        """The events of sessions; None if they are not shared."""
        if events is not None:
            self.events = SharedEvents(events, keys, replica=self.replica, replicas=lambda: tuple(self.member.peers))
        self.users: FleetUserTokens | None = None
        """The logins of users; None where the replicas of this fleet keep them in one file."""
        self._leases = leases
        if leases is not None and user_keys is not None:
            self.users = FleetUserTokens(self.state, keys=user_keys, leases=leases, place=store.name)
            self.listen(LOGIN, self.users.learn)
        self.exchanges = 0
        self.failures = 0
        for kind in ("question", "verdict"):
            self.listen(kind, partial(self.questions.learn, kind))
        self._next_purge = 0.0
        self._was_settled = self._has_answered = False

    def open(self, host: ReplicaHost, clock: Clock) -> None:
        """Begin for this hub; before ``run``."""
        self.state.open(host, clock)

    def listen(self, kind: str, learned: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Call this for each record of a kind that another replica writes: the rest of its key, and its value."""
        self._listeners[kind] = learned

    async def run(self) -> None:
        """Exchange until cancelled; then tell the others that this replica leaves."""
        async with anyio.create_task_group() as tasks:
            if self.users is not None:
                tasks.start_soon(self.users.run)
            if self.peers is not None:
                tasks.start_soon(self.peers.run)
            tasks.start_soon(self._prepare)
            try:
                while True:
                    await self._turn()
            finally:
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._leave()
                tasks.cancel_scope.cancel()

    async def _turn(self) -> None:
        state, member = self.state, self.member
        # First of all: what is written from here on ends the wait below, also before that begins.
        state.wake = anyio.Event()
        tick = member.next_tick()
        at = min(member.due(), tick if tick is not None else float("inf"))
        # The first of the two: the next exchange, or a right to probe that ends by itself.
        if at > state.now():
            await state.waiting.wait(state.wake, at)
        if state.now() >= self._next_purge:
            self._next_purge = state.now() + PURGE_SECONDS
            member.purge(state.clock.time())
        self._apply(member.tick(state.now()))
        if member.due() <= state.now():
            await self._exchange()

    async def _prepare(self) -> None:
        """Let threads make what is to be shared. No exchange waits for them: it renews presence, which ends soon."""
        while True:
            exchanged = self.state.changed
            await self.listings.share()
            await self.configs.share()
            await exchanged.wait()  # what is new by then goes out with the next one

    async def _exchange(self) -> None:
        state, member = self.state, self.member
        # Counted before and after: the client of the store connects again by itself, perhaps to another copy.
        before = self.store.connections
        member.about["probes"] = member.probes.told()
        self.presence.refresh()
        asked = member.request(state.now(), chance=random.random(), nonce=secrets.token_hex(8))  # noqa: S311 - spreads load
        self.exchanges += 1
        began = state.now()
        try:
            reply = await self.store.exchange(asked)
        except StoreUnavailable as exc:
            state.problem = str(exc)
            self.failures += 1
            self._apply(member.failed(state.now()))
            self.presence.read()  # what is not shared may have grown
            return
        if before and self.store.connections != before:
            member.reconnected()  # this answer is not from the store that the question was for
            return
        self._apply(member.receive(asked, reply, state.now()))
        self._note(reply)
        # From the beginning of the exchange: what was written during it may be missing.
        if reply.cursor == reply.sequence:
            state.read_at = began
        if not self._was_settled and state.is_settled:
            self._was_settled = True
            self.decisions.settled()
            state.host.settled()
        # Those who wait take the event that is set, and ask again; the next exchange has another one.
        state.changed.set()
        state.changed = anyio.Event()

    def _note(self, reply: FleetReply) -> None:
        """What an answer says beside the records."""
        count, before = self.member.strangers, self.state.problem
        self.state.problem = ""
        if count:
            many = f"{count} replicas with other session keys use" if count > 1 else "a replica with another key uses"
            self.state.problem = (
                f"{many} the same part of the store: give all the same session key, or each fleet its ?fleet="
            )
            if self.state.problem != before:
                words = "%s: %s. Switches and approvals hold on this replica only"
                log.warning(words, self.store.name, self.state.problem)
        self.state.clock.note(reply, self.store.name)
        if reply.replicas is not None:
            self.configs.compare(self.store.name)
            self.presence.read()

    def _apply(self, happened: Iterable[Happening]) -> None:
        host = self.state.host
        for one in happened:
            match one:
                case RecordLearned(record=record):
                    self._learn(record)
                case Granted(server=server, until=until):
                    host.handle(server, on.ClaimGranted(until))
                case Unused(server=server):
                    host.handle(server, on.ClaimExpired())
                case Alone():
                    self.state.not_shared_since = self.state.clock.wall()
                    unknown = "" if self.member.synced else ", and does not know what the others approved and disabled"
                    words = "%s does not answer (%s): this replica goes on alone%s"
                    log.warning(words, self.store.name, self.state.problem, unknown)
                    self.presence.read()
                    host.alone()
                case Connected(emptied=emptied):
                    self._connected(emptied=emptied)

    def _connected(self, *, emptied: bool) -> None:
        self._was_settled = False
        first, self._has_answered = not self._has_answered, True
        if first and "worker" not in self.member.about:
            log.info("%s answers: this replica is %s", self.store.name, self.replica)
        elif self.state.not_shared_since is not None or emptied:
            log.info("%s answers again%s", self.store.name, ", and was emptied" if emptied else "")
        self.state.not_shared_since = None

    def _learn(self, record: FleetRecord) -> None:
        """Give a record of another replica to the part that it concerns."""
        kind, _, rest = record.key.partition("/")
        value = record_value(record)
        if (listener := self._listeners.get(kind)) is not None:
            listener(rest, value)
            return
        server, tool = keyed_tool(record.key)
        definition = self.state.host.definition_of(server)
        if definition is None:
            return
        match kind:
            case "switch" | "pin":
                self.decisions.learn(kind, server, tool, value)
            case "evidence":
                self.evidence.learn(server, definition, record)
            case "listing":
                self.listings.learn(server, definition, value)

    async def _leave(self) -> None:
        asked = self.member.request(self.state.now(), chance=0.0, nonce=secrets.token_hex(8), leaving=True)
        try:
            await self.store.exchange(asked)
        except StoreUnavailable as exc:
            log.debug("the store was not told that this replica leaves: %s", exc)
        await self.store.close()
        for one in (self.events, self._leases):
            if one is not None:
                await one.close()

    def __repr__(self) -> str:
        return f"<Fleet {self.replica!r} on {self.store.name}: {self.member!r}>"


class ReplicaState:
    """The state of one replica."""

    def __init__(self, replica: str, *, about: Mapping[str, object], wall: Callable[[], float]) -> None:
        self.member = FleetMember(replica, about=about, using=self._is_trying)
        self.clock = SharedTime(self, wall)
        self.problem = ""
        """Why the last exchange failed, or what makes the sharing unsafe; empty if all is well."""
        self.not_shared_since: float | None = None
        """Since when the store does not answer, in seconds since the epoch."""
        self.wake = anyio.Event()
        """Ends the wait for the next exchange."""
        self.changed = anyio.Event()
        """Set after each exchange that succeeds; then there is another one."""
        self.read_at = float("-inf")
        """When the last exchange began after which this replica had all that the store has."""
        self.is_open = False
        """Whether this replica has its hub."""
        self.host: ReplicaHost
        """The hub; from ``open`` on."""
        self.waiting: Clock
        """The clock of the hub; from ``open`` on."""

    def open(self, host: ReplicaHost, clock: Clock) -> None:
        """Begin for this hub."""
        self.host, self.waiting, self.is_open = host, clock, True

    def now(self) -> float:
        """The time on the clock of the hub, which only grows."""
        return self.waiting.now()

    @property
    def is_settled(self) -> bool:
        """Whether a first sight is one for the whole fleet."""
        return self.member.is_settled(self.now())

    @property
    def is_shared(self) -> bool:
        """Whether the store answers."""
        return self.not_shared_since is None and self.member.is_connected(self.now())

    def write(self, key: str, value: object, *, first: bool = False, again: bool = False) -> None:
        """Share a value; see ``FleetMember.write``. It does not wait: the next exchange sends it."""
        self.member.write(key, value, self.clock.time(), first=first, again=again)
        self.wake.set()

    async def catch_up(self, within: float) -> bool:
        """Read what the others wrote until now; False if that could not be done within so many seconds."""
        began, until = self.now(), self.now() + within
        while self.read_at < began:
            self.member.pace.hurry()  # the next exchange is due at once
            self.wake.set()
            if not await self.waiting.wait(self.changed, until):
                return False
        return True

    def kept(self, key: str) -> Mapping[str, Any] | None:
        """A value that this or another replica shares."""
        record = self.member.book.get(key)
        return record_value(record) if record is not None else None

    @property
    def keeps_all(self) -> bool:
        """Whether this copy has the state of every session of the fleet."""
        return self.is_settled and not self.member.expiring.crowded

    def _is_trying(self, server: str) -> bool:
        return self.is_open and self.host.is_trying(server)

    def __repr__(self) -> str:
        return f"<ReplicaState {self.member!r}{f': {self.problem}' if self.problem else ''}>"


class SharedTime:
    """The time of day for all that replicas share: a wrong clock must not end the sessions of the others."""

    def __init__(self, state: ReplicaState, wall: Callable[[], float]) -> None:
        self._state = state
        self.wall = wall
        """The clock of this machine."""
        self.agreed = FleetClock()
        """The time on which the replicas agree."""

    def time(self) -> float:
        """The time on which the replicas agree; that of this machine before the hub is open."""
        return self.agreed.time(self.wall(), self._state.now()) if self._state.is_open else self.wall()

    def note(self, reply: FleetReply, store: str) -> None:
        """The store showed its time, and perhaps how far the others are ahead of it."""
        if not reply.wall:
            return
        member = self._state.member
        known = member.replica in self.agreed.wrong
        own = member.about["ahead"] = round(self.wall() - reply.wall)
        if reply.replicas is not None:
            told = {name: peer.about.get("ahead") for name, peer in member.peers.items()}
            self.agreed.note(reply.wall, told | {member.replica: own}, self._state.now())
        if member.replica in self.agreed.wrong and not known:
            log.warning("%s: %s", store, self.notice)

    @property
    def wrong(self) -> dict[str, float]:
        """The replicas whose clock is wrong, and how many seconds it is ahead of the others; a minus is behind."""
        return self.agreed.wrong if self._state.is_shared else {}

    @property
    def notice(self) -> str:
        """What the operator should know about clocks that are wrong; empty if none is."""
        return self.agreed.notice if self._state.is_shared else ""
