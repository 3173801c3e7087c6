"""One hub as a replica of a fleet: exchanges with the store in a task of its own, and applies what peers decide.

``FleetMember`` decides; this class performs. Nothing here is on the path of a call: a call asks its slot, and the slot
knows what the last exchange brought. If the store is slow, wrong or gone, the hub goes on with its copy and says so.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from holdfast._version import __version__
from holdfast.core import (
    Alone,
    ConfigAgreement,
    Connected,
    FleetClock,
    FleetMember,
    FleetRecord,
    FleetReply,
    Granted,
    Happening,
    Listing,
    RecordLearned,
    Ticket,
    Unused,
    events as on,
    evidence_event,
    evidence_key,
    evidence_value,
    listing_key,
    pin_key,
    pinned_tool,
    record_value,
    switch_key,
)
from holdfast.fleet.config_digest import config_digests
from holdfast.fleet.listings import packed, unpacked
from holdfast.fleet.peers import Peers
from holdfast.fleet.replica_view import ReplicaView, replica_view
from holdfast.fleet.stores import EventStore, FleetStore, StoreUnavailable
from holdfast.hub import Clock, ReplicaHost
from holdfast.keys import KeyRing

__all__ = ["Fleet", "replica_name"]

log = logging.getLogger("holdfast.fleet")

EVERYWHERE_SECONDS = 2.0
"""How long a switch waits for the other replicas before it is answered "this replica only"."""
ROSTER_SECONDS = 1.0
"""How long the question who is present may take."""
NEWS_SECONDS = 0.1
"""Who is present is not asked again within this time, however often unknown replicas are named."""
LEAVE_SECONDS = 1.0
MOST_GROUPS = 3
"""How many of several different configurations a sentence names, and how many replicas of each."""
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
        replica: str | None = None,
        events: EventStore | None = None,
        peers: Peers | None = None,
        records: Iterable[FleetRecord] = (),
        worker: tuple[str, int] | None = None,
        keys: Callable[[], KeyRing] | None = None,
        one_machine: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.events = events
        """Keeps the events of sessions; None if they are not shared."""
        self.replica = replica or replica_name()
        self.one_machine = one_machine
        """Whether all replicas are workers of one supervisor."""
        self.peers = peers
        """The direct link to the other replicas; None if this one has none."""
        if peers is not None:
            peers.join(self._addresses)
            peers.look_again = self.look_again
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "started": round(wall(), 3),
            "address": peers.address if peers is not None else "",
            # Of a worker: its supervisor, and its number there.
            **({"group": worker[0], "worker": worker[1]} if worker is not None else {}),
        }
        self.member = FleetMember(self.replica, about=about, records=records, using=self._is_trying)
        self._keys = keys
        self._digested: tuple[object, KeyRing] | None = None
        self._agreement = ConfigAgreement()
        self.problem = ""
        """Why the last exchange failed, or what makes the sharing unsafe; empty if all is well."""
        self.not_shared_since: float | None = None
        """Since when the store does not answer, in seconds since the epoch."""
        self.exchanges = 0
        self.failures = 0
        self._wall = wall
        self._host: ReplicaHost | None = None
        self._clock: Clock | None = None
        self._wake = anyio.Event()
        self._changed = anyio.Event()
        self._listeners: dict[str, Callable[[str, Mapping[str, Any]], None]] = {}
        self.tell_use: Callable[[], Mapping[str, object]] | None = None
        """What callers use of this replica; sent with its presence."""
        self._on_peers: list[Callable[[], None]] = []
        self._probers: dict[str, str] = {}
        self.events_lost: Callable[[], int] = int
        """How many events of sessions were not shared so far."""
        self._next_purge = 0.0
        self.clock = FleetClock()
        """The time of day on which the replicas agree."""
        self._listings: dict[str, Listing] = {}
        """Published here, and not shared yet."""
        self._preparing = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self._hashes: dict[str, str] = {}
        self._was_settled = self._has_answered = False

    def open(self, host: ReplicaHost, clock: Clock) -> None:
        """Begin for this hub; before ``run``."""
        self._host, self._clock = host, clock

    def describe(self, **about: object) -> None:
        """Tell the others more about this replica."""
        self.member.about |= about
        self._wake.set()

    # For the slots.

    def claim(self, server: str, at: float | None, number: int) -> None:
        """A slot needs the right to probe at that time, or not any more."""
        definition = self._hub().definition_of(server) or ""
        self.member.want_probe(server, at, number, self._now(), definition=definition)
        self._wake.set()

    def release(self, server: str, delay: float) -> None:
        """A slot used its right to probe."""
        self.member.release_probe(server, delay)
        self._wake.set()

    def share(self, server: str, evidence: on.Event) -> None:
        """A slot learned something about its server."""
        definition = self._hub().definition_of(server)
        known = self.member.book.get(evidence_key(server))
        up = isinstance(evidence, on.PeerRecovered)
        if definition is None or (up and (known is None or record_value(known).get("up") is not False)):
            return
        self.member.write(evidence_key(server), evidence_value(evidence, definition), self.time(), again=True)
        self._wake.set()

    # For the hub.

    @property
    def is_settled(self) -> bool:
        """Whether a first sight is one for the whole fleet."""
        return self.member.is_settled(self._now())

    @property
    def is_shared(self) -> bool:
        """Whether the store answers."""
        return self.not_shared_since is None and self.member.is_connected(self._now())

    def published(self, listing: Listing) -> None:
        """This hub published a listing; peers learn it soon."""
        self._listings[listing.server] = listing
        self._wake.set()

    def note_pin(self, server: str, tool: str, text: Mapping[str, Any], approved: bool) -> None:
        """A tool was seen for the first time, or its change was approved."""
        self._write(pin_key(server, tool), {"text": text}, first=not approved)

    def note_switch(self, server: str, disabled: bool) -> None:
        """An operator enabled or disabled a server here."""
        self._write(switch_key(server), {"off": disabled}, again=True)

    def tickets(self, server: str) -> list[Ticket]:
        """The latest switch and approvals of a server."""
        pins = pin_key(server, "")
        return [
            Ticket(record.key, record.stamp)
            for record in self.member.book
            if record.key == switch_key(server) or record.key.startswith(pins)
        ]

    async def everywhere(self, tickets: Iterable[Ticket | None]) -> bool:
        """Wait until every replica that is present has seen these writes; False if that takes too long."""
        if self.not_shared_since is not None or self.member.strangers:
            return False  # known before: an approval of many tools would wait for each of them
        waiting = [ticket for ticket in tickets if ticket is not None]
        assert self._clock is not None  # noqa: S101 - the hub is open
        until = self._now() + EVERYWHERE_SECONDS
        self.member.watch_tickets(until)
        self._wake.set()
        while not all(self.member.is_everywhere(ticket, self._now()) for ticket in waiting):
            changed = self._changed
            if self._now() >= until or not await self._clock.wait(changed, until):
                return all(self.member.is_everywhere(ticket, self._now()) for ticket in waiting)
        return True

    async def look_again(self) -> None:
        """Learn who is present, if the store answers: a request named a replica that is not known here."""
        assert self._clock is not None  # noqa: S101 - the hub is open
        asked_at = self._now()
        if self.not_shared_since is not None or self.member.has_roster(asked_at - NEWS_SECONDS):
            return
        self.member.want_roster()
        self._wake.set()
        while not self.member.has_roster(asked_at):
            if not await self._clock.wait(self._changed, asked_at + ROSTER_SECONDS):
                return

    @property
    def possible_homes(self) -> frozenset[str]:
        """The replicas that can have the connections of clients: those last known, without those that leave."""
        stay = (name for name, peer in self.member.peers.items() if peer.about.get("leaving") is not True)
        return frozenset({*stay} - (self.peers.leaving if self.peers is not None else set()) | {self.replica})

    # For the sessions.

    def listen(self, kind: str, learned: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Call this for each record of a kind that another replica writes: the rest of its key, and its value."""
        self._listeners[kind] = learned

    def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Share a value that ends by itself. It does not wait: the next exchange sends it."""
        self.member.write(key, value, self.time())
        self._wake.set()

    def kept(self, key: str) -> Mapping[str, Any] | None:
        """A value that this or another replica shares."""
        record = self.member.book.get(key)
        return record_value(record) if record is not None else None

    @property
    def keeps_all(self) -> bool:
        """Whether this copy has the state of every session of the fleet."""
        return self.is_settled and not self.member.expiring.crowded

    def watch_peers(self, changed: Callable[[], None]) -> None:
        """Call this when the presence of all replicas was read, and when the store does not answer any more."""
        self._on_peers.append(changed)

    def _tell_peers(self) -> None:
        told = self.member.peers.items() if self.not_shared_since is None else ()
        probes = ((name, peer.about.get("probes")) for name, peer in told if name != self.replica)
        self._probers = {str(server): name for name, many in probes if isinstance(many, list) for server in many}
        for changed in self._on_peers:
            changed()

    def prober_of(self, server: str) -> str:
        """The replica that has the right to probe a server that is down, or gets it next; empty if it is not down."""
        evidence = self.member.book.get(evidence_key(server))
        down = evidence is not None and record_value(evidence).get("up") is False
        return self.probers.get(server) or (self.member.next_prober(server) if down else "")

    @property
    def probers(self) -> dict[str, str]:
        """The replica that has the right to probe a server, for the servers that one has it for."""
        return self._probers | dict.fromkeys(self.member.probes.told(), self.replica)

    @property
    def not_shared(self) -> tuple[str, ...]:
        """The servers whose switch or approvals hold on this replica only, because the store does not answer."""
        if self.is_shared:
            return ()
        return tuple(dict.fromkeys(pinned_tool(key)[0] for key in self.member.unsent_decisions()))

    @property
    def different_configs(self) -> tuple[tuple[str, ...], ...]:
        """The replicas by configuration, if they run different ones for longer than a roll takes; else empty."""
        return self._agreement.groups if self.is_shared else ()

    @property
    def config_notice(self) -> str:
        """What the operator should know about different configurations; empty if there are none."""
        if not (groups := self.different_configs):
            return ""
        more = f", and {len(groups) - MOST_GROUPS} more" if len(groups) > MOST_GROUPS else ""
        return (
            f"the replicas run {len(groups)} different configurations ({'; '.join(map(_named, groups[:MOST_GROUPS]))}"
            f"{more}): what clients get depends on the replica that answers. Give all replicas the same configuration"
        )

    @property
    def wrong_clocks(self) -> dict[str, float]:
        """The replicas whose clock is wrong, and how many seconds it is ahead of the others; a minus is behind."""
        return self.clock.wrong if self.is_shared else {}

    @property
    def clock_notice(self) -> str:
        """What the operator should know about clocks that are wrong; empty if none is."""
        return self.clock.notice if self.is_shared else ""

    def uses_elsewhere(self) -> dict[str, object]:
        """What callers use of the other replicas, by replica; nothing while the store does not answer."""
        if self.not_shared_since is not None:
            return {}
        return {name: peer.about.get("use") for name, peer in self.member.peers.items() if name != self.replica}

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold, in words. It waits, two seconds at most."""
        if not await self.everywhere(self.tickets(server)):
            return "this replica only"
        return f"all {len(self.member.peers)} replicas" if len(self.member.peers) > 1 else "the fleet"

    @property
    def replicas(self) -> tuple[ReplicaView, ...]:
        """The replicas that are present, as of the last good exchange; this one always."""
        peers = self.member.peers
        found = [replica_view(name, peer.about, here=name == self.replica) for name, peer in sorted(peers.items())]
        if self.replica not in peers:
            found.append(replica_view(self.replica, self.member.about, here=True))
        return tuple(found)

    # The task.

    async def run(self) -> None:
        """FleetExchange until cancelled; then tell the others that this replica leaves."""
        assert self._clock is not None  # noqa: S101 - see open()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if self.peers is not None:
                tasks.start_soon(self.peers.run)
            try:
                while True:
                    await self._turn(self._clock)
            finally:
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._leave()
                tasks.cancel_scope.cancel()

    def store_changed(self) -> None:
        """The store says that another replica changed something."""
        self.member.store_changed()
        self._wake.set()

    async def _turn(self, clock: Clock) -> None:
        self._wake = anyio.Event()
        self._prepare_soon()
        tick = self.member.next_tick()
        at = min(self.member.due(), tick if tick is not None else float("inf"))
        if at > self._now():
            await clock.wait(self._wake, at)
            self._prepare_soon()
        if self._now() >= self._next_purge:
            self._next_purge = self._now() + PURGE_SECONDS
            self.member.purge(self.time())
        self._apply(self.member.tick(self._now()))
        if self.member.due() <= self._now():
            await self._exchange()

    def time(self) -> float:
        """The time of day for all that replicas share: a wrong clock must not end the sessions of the others."""
        return self.clock.time(self._wall(), self._count()) if self._clock is not None else self._wall()

    def _count(self) -> float:
        return self._now() + _suspended_seconds()

    def _note_clocks(self, reply: FleetReply) -> None:
        if not reply.wall:
            return
        known = self.replica in self.clock.wrong
        own = self.member.about["ahead"] = round(self._wall() - reply.wall)
        if reply.replicas is not None:
            told = {name: peer.about.get("ahead") for name, peer in self.member.peers.items()}
            self.clock.note(reply.wall, told | {self.replica: own}, self._count())
        if self.replica in self.clock.wrong and not known:
            log.warning("%s: %s", self.store.name, self.clock_notice)

    async def _exchange(self) -> None:
        before = self.store.connections
        self.member.about["probes"] = self.member.probes.told()
        if self.tell_use is not None:
            self.member.about["use"] = self.tell_use()
        asked = self.member.request(self._now(), chance=random.random(), nonce=secrets.token_hex(8))  # noqa: S311 - spreads load
        self.exchanges += 1
        try:
            reply = await self.store.exchange(asked)
        except StoreUnavailable as exc:
            self.problem = str(exc)
            self.failures += 1
            self._apply(self.member.failed(self._now()))
            if self.not_shared_since is not None:
                self._tell_peers()  # what is not shared may have grown
            return
        if before and self.store.connections != before:
            self.member.reconnected()  # this answer is not from the store that the question was for
            return
        self._apply(self.member.receive(asked, reply, self._now()))
        self._note_strangers()
        self._note_clocks(reply)
        if reply.replicas is not None:
            self._compare_configs()
            self._tell_peers()
        if not self._was_settled and self.is_settled:
            self._was_settled = True
            self._share_own()
            self._hub().settled()
        self._changed.set()
        self._changed = anyio.Event()

    def _note_strangers(self) -> None:
        count, before = self.member.strangers, self.problem
        self.problem = ""
        if count:
            many = f"{count} replicas with other session keys use" if count > 1 else "a replica with another key uses"
            self.problem = (
                f"{many} the same part of the store: give all the same session key, or each fleet its ?fleet="
            )
            if self.problem != before:
                log.warning("%s: %s. Switches and approvals hold on this replica only", self.store.name, self.problem)

    def _prepare_soon(self) -> None:
        """Let threads make what is to be shared. No exchange waits for them: it renews leases, which end soon."""
        if self._preparing or self._tasks is None or not (self._listings or self._config_is_new()):
            return
        self._preparing = True
        self._tasks.start_soon(self._prepare)

    async def _prepare(self) -> None:
        try:
            await self._hash_listings()
            await self._digest_config()
        finally:
            self._preparing = False
            self._wake.set()

    def _config_is_new(self) -> bool:
        if self._keys is None:
            return False  # without keys the configuration is not compared
        known = self._digested
        return known is None or known[0] is not self._hub().servers() or known[1] != self._keys()

    async def _digest_config(self) -> None:
        """Tell the others what this replica runs."""
        if self._config_is_new() and self._keys is not None:
            servers, keys = self._hub().servers(), self._keys()
            self.member.about["config"] = await anyio.to_thread.run_sync(config_digests, servers, keys)
            self._digested = servers, keys

    def _compare_configs(self) -> None:
        """A replica that leaves gets no new clients: what it runs does not count."""
        abouts = {name: peer.about for name, peer in self.member.peers.items() if peer.about.get("leaving") is not True}
        told = {name: about.get("config") for name, about in abouts.items()}
        digests = {name: [str(one) for one in many] for name, many in told.items() if isinstance(many, list)}
        if self._agreement.note(digests, self._now()):
            log.warning("%s: %s", self.store.name, self.config_notice)

    async def _leave(self) -> None:
        asked = self.member.request(self._now(), chance=0.0, nonce=secrets.token_hex(8), leaving=True)
        try:
            await self.store.exchange(asked)
        except StoreUnavailable as exc:
            log.debug("the store was not told that this replica leaves: %s", exc)
        await self.store.close()
        if self.events is not None:
            await self.events.close()

    def _share_own(self) -> None:
        """What was decided here before this hub joined, unless the fleet decided otherwise."""
        for server in self._hub().disabled_servers():
            if self.member.book.get(switch_key(server)) is None:
                self.note_switch(server, disabled=True)

    def _apply(self, happened: Iterable[Happening]) -> None:
        host = self._hub()
        for one in happened:
            match one:
                case RecordLearned(record=record):
                    self._learn(host, record)
                case Granted(server=server, until=until):
                    host.handle(server, on.ClaimGranted(until))
                case Unused(server=server):
                    host.handle(server, on.ClaimExpired())
                case Alone():
                    self._lost_store()
                    host.alone()
                case Connected(emptied=emptied):
                    self._connected(emptied=emptied)

    def _lost_store(self) -> None:
        self.not_shared_since = self._wall()
        unknown = "" if self.member.synced else ", and does not know what the others approved and disabled"
        words = "%s does not answer (%s): this replica goes on alone%s"
        log.warning(words, self.store.name, self.problem, unknown)
        self._tell_peers()

    def _connected(self, *, emptied: bool) -> None:
        self._was_settled = False
        first, self._has_answered = not self._has_answered, True
        if first and "worker" not in self.member.about:
            log.info("%s answers: this replica is %s", self.store.name, self.replica)
        elif self.not_shared_since is not None or emptied:
            log.info("%s answers again%s", self.store.name, ", and was emptied" if emptied else "")
        self.not_shared_since = None

    def _learn(self, host: ReplicaHost, record: FleetRecord) -> None:
        kind, _, rest = record.key.partition("/")
        if (listener := self._listeners.get(kind)) is not None:
            listener(rest, record_value(record))
            return
        server, tool = pinned_tool(record.key)
        definition = host.definition_of(server)
        if definition is None:
            return
        value = record_value(record)
        if kind == "switch":
            host.follow_switch(server, value.get("off") is True)
        elif kind == "pin" and isinstance(value.get("text"), dict):
            host.follow_pin(server, tool, value["text"])
        elif kind == "evidence" and (event := evidence_event(record, definition)) is not None:
            host.handle(server, event)
        elif kind == "listing" and value.get("definition") == definition:
            self._learn_listing(host, server, value)

    def _learn_listing(self, host: ReplicaHost, server: str, value: Mapping[str, Any]) -> None:
        if not host.needs_listing(server):
            if value.get("hash") != self._hashes.get(server):
                host.handle(server, on.PeerPublished())
            return
        listing = unpacked(server, value.get("content"))
        if listing is not None:
            host.follow_listing(listing)

    async def _hash_listings(self) -> None:
        """Share the listings that changed."""
        listings, self._listings = self._listings, {}
        for server, listing in listings.items():
            definition = self._hub().definition_of(server)
            if definition is None:
                continue
            digest, content = await anyio.to_thread.run_sync(packed, listing)
            self._hashes[server] = digest
            known = self.member.book.get(listing_key(server))
            if known is None or record_value(known).get("hash") != digest:
                value = {"definition": definition, "hash": digest, "content": content}
                self._write(listing_key(server), value)

    def _write(self, key: str, value: object, *, first: bool = False, again: bool = False) -> Ticket | None:
        ticket = self.member.write(key, value, self.time(), first=first, again=again)
        if ticket is None and not first and (known := self.member.book.get(key)) is not None:
            ticket = Ticket(key, known.stamp)
        self._wake.set()
        return ticket

    def _addresses(self) -> dict[str, str]:
        """Where the replicas that are present can be asked directly."""
        return {name: str(peer.about.get("address", "")) for name, peer in self.member.peers.items()}

    def _is_trying(self, server: str) -> bool:
        return self._host is not None and self._host.is_trying(server)

    def _hub(self) -> ReplicaHost:
        assert self._host is not None  # noqa: S101 - see open()
        return self._host

    def _now(self) -> float:
        assert self._clock is not None  # noqa: S101 - see open()
        return self._clock.now()

    def __repr__(self) -> str:
        return f"<Fleet {self.replica!r} on {self.store.name}: {self.member!r}>"


def _suspended_seconds() -> float:
    """How long this machine was suspended since it started, where the system tells it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC) if boot is not None else 0.0


def _named(replicas: tuple[str, ...]) -> str:
    more = f" and {len(replicas) - MOST_GROUPS} more" if len(replicas) > MOST_GROUPS else ""
    return f"{', '.join(replicas[:MOST_GROUPS])}{more}"
