"""One replica in the simulation: performs the effects of the production code in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.core import (
    Alone,
    BreakerPolicy,
    Catalog,
    CheckAddress,
    CheckLiveness,
    ClaimProbe,
    Close,
    Connected,
    Dial,
    Effect,
    FleetExchange,
    FleetMember,
    FleetRecord,
    FleetReply,
    Granted,
    Happening,
    IllegalTransition,
    Kind,
    LifecyclePolicy,
    Machine,
    NameKey,
    Outcome,
    Publish,
    RecordLearned,
    RefreshNow,
    Refusal,
    Reinstate,
    ReleaseProbe,
    ShareEvidence,
    Unused,
    WakeAt,
    Withdraw,
    events as on,
    evidence_event,
    evidence_value,
    home_of,
    keyed_tool,
    record_key,
    record_value,
)
from holdfast.front.session_id import TicketSeal
from tests.simulation.world import Broken, SimServer, World

__all__ = ["Answer", "Replica", "SimConfig"]

DIAL_TIMEOUT = 15.0
STORE_TIMEOUT = 2.0
"""An exchange that gets no answer takes a second, and the end of its connection another one."""
PING_SECONDS = 5.0
CALL_TIMEOUT = 8.0
DEFINITION = "same"
SESSION_SECONDS = 3_600.0


@dataclass(frozen=True)
class SimConfig:
    """The configuration that a replica uses: prefixes by server, in order."""

    version: int
    prefixes: Mapping[str, str | None]


@dataclass(frozen=True)
class Answer:
    """What a caller was told."""

    kind: str
    """``served``, ``unavailable``, ``disabled``, ``held``, ``unknown``, ``uncertain`` or ``elsewhere``."""
    server: str = ""
    text: int = 0


@dataclass
class _Slot:
    machine: Machine
    connections: dict[int, int] = field(default_factory=dict)
    """The incarnation of the server behind each connection."""
    wake: int = 0
    dialing: set[int] = field(default_factory=set)


class Replica:
    """A hub without a network."""

    machine_type: type[Machine] = Machine
    member_type: type[FleetMember] = FleetMember
    ring_type: type[TicketSeal] = TicketSeal

    def __init__(
        self, name: str, world: World, config: SimConfig, *, seed: str, skew: float, kept: tuple[FleetRecord, ...] = ()
    ) -> None:
        self.name = name
        self.world = world
        self.config = config
        self.skew = skew
        self.chance = random.Random(seed)
        self.member = self.member_type(name, records=kept, using=self._using)
        self.unpinned: set[str] = set()
        self._exchanging = False
        self._exchange_number = 0
        self._under_way: FleetExchange | None = None
        self.catalog = Catalog().arrange(config.prefixes)
        self.slots: dict[str, _Slot] = {}
        self.off: set[str] = set()
        self.alive = True
        self.paused_until = 0.0
        self.connected_since: float | None = None
        self.started = world.now
        self.published = 0
        self.store_era = world.store.era
        self.waiting_for: list[tuple[FleetRecord, float, Callable[[bool], None]]] = []
        for record in kept:
            self._apply(record)
        for server in config.prefixes:
            self._add(server)
        self.plan_exchange()

    # Time. A paused process does nothing until it is resumed, and then everything at once.

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Do something in this process."""

        def run() -> None:
            if not self.alive:
                return
            if self.world.now < self.paused_until:
                self.world.after(self.paused_until - self.world.now, run)
                return
            act()

        self.world.after(delay, run)

    @property
    def wall(self) -> float:
        """Its wall clock, which may be wrong."""
        return 1_700_000_000.0 + self.world.now + self.skew

    @property
    def runs(self) -> bool:
        """Whether the process does anything now."""
        return self.alive and self.world.now >= self.paused_until

    # Servers.

    def _add(self, server: str) -> None:
        machine = self.machine_type(
            server,
            breaker=BreakerPolicy(),
            lifecycle=LifecyclePolicy(claims=True, watchable=server.endswith("w"), refresh=60.0),
        )
        self.slots[server] = _Slot(machine)
        self.handle(server, on.DisableRequested() if server in self.off else on.StartRequested())

    def adopt(self, config: SimConfig) -> None:
        """Use another configuration."""
        self.config = config
        self.catalog = self.catalog.arrange(config.prefixes)
        for server in [one for one in self.slots if one not in config.prefixes]:
            self.handle(server, on.RemoveRequested())
            del self.slots[server]
        for server in config.prefixes:
            if server not in self.slots:
                self._add(server)

    def handle(self, server: str, event: on.Event) -> None:
        """Give an event to a server's machine and perform the effects."""
        slot = self.slots.get(server)
        if slot is None:
            return
        try:
            effects = slot.machine.handle(event, self.world.now, chance=self.chance.random())
        except IllegalTransition as exc:
            raise Broken(f"{server} on {self.name}: {exc}") from exc
        for effect in effects:
            self._do(server, slot, effect)

    def _do(self, server: str, slot: _Slot, effect: Effect) -> None:  # noqa: PLR0912 - one arm for each effect
        peer = self.world.servers[server]
        match effect:
            case Dial(generation=generation, cause=cause):
                self._dial(server, slot, peer, generation, cause.value)
            case Close(generation=generation):
                slot.connections.pop(generation, None)
                slot.dialing.discard(generation)
                self.later(0.001, lambda: self.handle(server, on.Closed(generation)))
            case WakeAt(at=at):
                slot.wake += 1
                if at is not None:
                    self._wake(server, slot, slot.wake, at)
            case Publish(listing=listing):
                self.published += 1
                self.catalog = self.catalog.publish(listing)
                told = {"text": listing.tools[0].raw["description"]}
                self.member.write(record_key("listing", server), told, self.wall)
                self._pin(server)
            case Withdraw(removed=False):
                self.catalog = self.catalog.withdraw(server)
            case Reinstate():
                self.catalog = self.catalog.reinstate(server)
            case CheckAddress(number=number):
                listens = peer.mode != "refuses" and self.world.reaches(self.name, server)
                self.later(0.002 if listens else 0.01, lambda: self.handle(server, on.AddressChecked(number, listens)))
            case RefreshNow(generation=generation):
                self._refresh(server, slot, peer, generation)
            case CheckLiveness(generation=generation):
                well = self._stands(slot, peer, server, generation) and peer.mode != "hangs"
                event = on.LivenessConfirmed(generation) if well else on.LivenessFailed(generation, "no answer")
                self.later(0.002 if well else PING_SECONDS, lambda: self.handle(server, event))
            case ClaimProbe(at=at, round=number):
                self.member.probes.want(server, at, number, self.world.now)
                self.plan_exchange()
            case ReleaseProbe(delay=delay):
                self.member.probes.release(server, delay)
                self.plan_exchange()
            case ShareEvidence(evidence=evidence):
                self._share(server, evidence)

    def _pin(self, server: str) -> None:
        """Pin what is seen for the first time."""
        source = self.catalog.servers.get(server)
        if source is None or source.listing is None or not self._may_pin():
            self.unpinned.add(server)
            return
        self.unpinned.discard(server)
        for item in source.listing.tools:
            pinned = {"text": item.raw["description"]}
            if self.member.write(record_key("pin", server, item.name), pinned, self.wall, first=True) is not None:
                self.world.first_seen.setdefault(record_key("pin", server, item.name), int(str(pinned["text"])[1:]))

    def _share(self, server: str, evidence: on.Event) -> None:
        known = self.member.book.get(record_key("evidence", server))
        if isinstance(evidence, on.PeerRecovered) and (known is None or record_value(known).get("up") is not False):
            return
        self.member.write(record_key("evidence", server), evidence_value(evidence, DEFINITION), self.wall, again=True)
        self.plan_exchange()

    def _wake(self, server: str, slot: _Slot, number: int, at: float) -> None:
        def tick() -> None:
            if slot.wake == number and self.slots.get(server) is slot:
                self.handle(server, on.Tick())

        self.later(at - self.world.now, tick)

    def _dial(self, server: str, slot: _Slot, peer: SimServer, generation: int, cause: str) -> None:
        peer.dials.append((self.world.now, self.name, cause))
        slot.dialing.add(generation)
        reached = self.world.reaches(self.name, server)
        slow = peer.mode == "hangs" and reached
        took = DIAL_TIMEOUT if slow else 0.005 + 0.02 * self.chance.random()

        def ended() -> None:
            if generation not in slot.dialing or self.slots.get(server) is not slot:
                if self.slots.get(server) is slot and peer.accepts and reached and not slow:
                    # The dial was given up in the same moment: its success arrives all the same.
                    self.handle(server, on.DialSucceeded(generation, peer.listing(generation)))
                return
            slot.dialing.discard(generation)
            if peer.accepts and reached and not slow and self.world.reaches(self.name, server):
                slot.connections[generation] = peer.incarnation
                self.handle(server, on.DialSucceeded(generation, peer.listing(generation)))
            else:
                self.handle(server, self._failure(peer, generation, reached=reached))

        self.later(took, ended)

    def _failure(self, peer: SimServer, generation: int, *, reached: bool) -> on.DialFailed:
        if not reached or peer.mode in ("refuses", "up", "calls_fail"):
            return on.DialFailed(generation, "transient", "refused", unreachable=True)
        if peer.mode == "denies":
            return on.DialFailed(generation, "denied", "denied by a rule")
        return on.DialFailed(generation, "transient", peer.mode, answers=peer.mode == "not_ready")

    def _refresh(self, server: str, slot: _Slot, peer: SimServer, generation: int) -> None:
        def ended() -> None:
            if self._stands(slot, peer, server, generation) and peer.accepts:
                self.handle(server, on.RefreshSucceeded(generation, peer.listing(generation)))
            else:
                self.handle(server, on.RefreshFailed(generation, "transient", "no answer"))

        self.later(0.004, ended)

    def _stands(self, slot: _Slot, peer: SimServer, server: str, generation: int) -> bool:
        alive = slot.connections.get(generation) == peer.incarnation
        return alive and self.world.reaches(self.name, server)

    def server_restarted(self, server: str) -> None:
        """Notice that the connections to a server are dead."""
        slot = self.slots.get(server)
        if slot is not None and self.world.reaches(self.name, server):
            for generation in list(slot.connections):
                self.later(0.002, lambda g=generation: self.handle(server, on.TransportLost(g, "reset")))  # type: ignore[misc]

    def reaches_again(self, server: str) -> None:
        """Notice that a connection died while the way to its server was cut: the next packet is answered by a reset."""
        slot, peer = self.slots.get(server), self.world.servers.get(server)
        if slot is None or peer is None:
            return
        for generation in [one for one, incarnation in slot.connections.items() if incarnation != peer.incarnation]:
            self.later(0.002, lambda g=generation: self.handle(server, on.TransportLost(g, "reset")))  # type: ignore[misc]

    # The fleet.

    def _using(self, server: str) -> bool:
        slot = self.slots.get(server)
        return slot is not None and slot.machine.life.claim_used

    def _may_pin(self) -> bool:
        """A first sight counts only while the fleet can say whether it is one."""
        return self.member.is_settled(self.world.now)

    def plan_exchange(self) -> None:
        """Exchange when it is due, which may be sooner than it was."""
        due = self.member.due()
        tick = self.member.next_tick()
        at = due if tick is None else min(due, tick)
        self._exchange_number = number = self._exchange_number + 1
        if self._exchanging:
            return

        def turn() -> None:
            if number == self._exchange_number and not self._exchanging:
                self._turn()

        self.later(at - self.world.now, turn)

    def _turn(self) -> None:
        now = self.world.now
        self._happened(self.member.tick(now))
        if self.member.due() > now:
            self.plan_exchange()
            return
        if self.store_era != self.world.store.era:
            self.store_era = self.world.store.era
            self.member.reconnected()
        asked = self.member.request(now, chance=self.chance.random(), nonce=f"{self.name}@{now}")
        self._exchanging = True
        self._under_way = asked
        self._send(asked)

    def _send(self, asked: FleetExchange) -> None:
        world, era = self.world, self.store_era

        def arrived() -> None:
            if world.store.mode == "stuck":
                world.store.unread.append(arrived)
                return
            if world.store.mode != "up" or era != world.store.era or not world.reaches(self.name, "store"):
                return
            reply = world.store.exchange(asked, world.now)
            self.later(world.latency() + world.store.lag, lambda: self._ended(asked, reply))

        world.after(world.latency(), arrived)
        if world.store.mode == "down" or not world.reaches(self.name, "store"):
            self.later(0.002, lambda: self._ended(asked, None))
        else:
            self.later(STORE_TIMEOUT, lambda: self._ended(asked, None))

    def _ended(self, asked: FleetExchange, reply: FleetReply | None) -> None:
        if self._under_way is not asked:
            return  # it ended before: an answer came, or its time was over
        self._under_way = None
        self._exchanging = False
        now = self.world.now
        if reply is None:
            self._happened(self.member.failed(now))
        else:
            self._happened(self.member.receive(asked, reply, now))
        self.connected_since = (self.connected_since or now) if self.member.is_connected(now) else None
        if reply is not None and self.unpinned and self._may_pin():
            for server in list(self.unpinned):
                self._pin(server)
        self._settle_writtens()
        self.plan_exchange()

    def _happened(self, happened: tuple[Happening, ...]) -> None:
        for one in happened:
            match one:
                case RecordLearned(record=record):
                    self._apply(record)
                case Granted(server=server, until=until):
                    self.handle(server, on.ClaimGranted(until))
                case Unused(server=server):
                    self.handle(server, on.ClaimExpired())
                case Connected() | Alone():
                    pass

    def killed(self) -> None:
        """The process dies."""
        self.alive = False

    def _apply(self, record: FleetRecord) -> None:
        kind = record.key.partition("/")[0]
        server = keyed_tool(record.key)[0]
        if kind == "switch":
            self._follow(server, off=record_value(record).get("off") is True)
        elif kind == "evidence" and server in self.slots:
            event = evidence_event(record, DEFINITION)
            if event is not None:
                self.handle(server, event)
        elif kind == "listing" and server in self.config.prefixes:
            self._learn_listing(server, str(record_value(record)["text"]))

    def _learn_listing(self, server: str, text: str) -> None:
        """Show what a peer listed of a server that this replica has not listed; else list again soon."""
        source = self.catalog.servers[server]
        if source.listing is None or source.listing.generation == 0:
            listing = self.world.servers[server].listing(0)
            items = tuple(replace(item, raw={"description": text}) for item in listing.tools)
            catalog = self.catalog.publish(replace(listing, tools=items))
            self.catalog = catalog.withdraw(server) if source.withdrawn else catalog
            self.published += 1
        elif source.listing.tools[0].raw["description"] != text:
            self.handle(server, on.PeerPublished())

    def _follow(self, server: str, *, off: bool) -> None:
        if off == (server in self.off):
            return
        (self.off.add if off else self.off.discard)(server)
        if server in self.slots:
            self.handle(server, on.DisableRequested() if off else on.EnableRequested())

    def switch(self, server: str, *, off: bool, answer: Callable[[bool], None]) -> str:
        """An operator disables or enables a server here; ``answer`` gets whether it holds everywhere."""
        self.member.write(record_key("switch", server), {"off": off}, self.wall, again=True)
        self._follow(server, off=off)
        record = self.member.book.get(record_key("switch", server))
        assert record is not None
        self._await(record, answer)
        return record.stamp

    def approve(self, server: str, tool: str, text: int, answer: Callable[[bool], None]) -> str:
        """An operator approves the current version of a tool here."""
        self.member.write(record_key("pin", server, tool), {"text": f"v{text}"}, self.wall)
        record = self.member.book.get(record_key("pin", server, tool))
        assert record is not None
        self._await(record, answer)
        return record.stamp

    def end_session(self, key: str, answer: Callable[[bool], None]) -> str:
        """A client ends its session here."""
        self.member.write(key, {"until": self.wall + SESSION_SECONDS}, self.wall)
        record = self.member.book.get(key)
        assert record is not None
        self._await(record, answer)
        return record.stamp

    def _await(self, written: FleetRecord, answer: Callable[[bool], None]) -> None:
        until = self.world.now + 2.0
        self.member.pace.watch_writes(until)
        self.waiting_for.append((written, until, answer))
        self.plan_exchange()
        self.later(2.0, self._settle_writtens)

    def _settle_writtens(self) -> None:
        now, waiting = self.world.now, []
        for written, until, answer in self.waiting_for:
            if self.member.is_everywhere(written, now):
                answer(True)
            elif now >= until:
                answer(False)
            else:
                waiting.append((written, until, answer))
        self.waiting_for = waiting

    def kept(self) -> tuple[FleetRecord, ...]:
        """What its state file has: switches and pins."""
        return tuple(r for r in self.member.book.values() if r.key.startswith(("switch/", "pin/")))

    # Calls.

    def home_of(self, client: str) -> str:
        """The replica with the connections of a client, by what this one knows."""
        return home_of(client, "", {*self.member.peers, self.name})

    def call(self, number: int, name: str, settled: Callable[[Answer], None]) -> Answer | None:
        """A client calls a tool; an answer at once, or ``settled`` later."""
        found = self.catalog.resolve(name, Kind.TOOL)
        if not isinstance(found, NameKey):
            return Answer("unknown")
        server = found.server
        if server in self.off:
            return Answer("disabled", server)
        return self.execute(number, found, settled)

    def execute(self, number: int, key: NameKey, settled: Callable[[Answer], None]) -> Answer | None:
        """Run a call on a connection of this replica."""
        server, slot = key.server, self.slots.get(key.server)
        if slot is None:
            return Answer("unknown")
        entry = self.catalog.entry(self.catalog.names.get(key, ""), Kind.TOOL)
        text = int(str(entry.item.raw["description"])[1:]) if entry is not None else 0
        pin = self.member.book.get(record_key("pin", server, key.original))
        if pin is None or record_value(pin) != {"text": f"v{text}"}:
            return Answer("held", server, text)
        decision, effects = slot.machine.admit(self.world.now)
        for effect in effects:
            self._do(server, slot, effect)
        if isinstance(decision, Refusal):
            return Answer("disabled" if decision.reason.value == "disabled" else "unavailable", server)
        if decision.connection is None and slot.machine.connection is None:
            for effect in slot.machine.settle(decision, Outcome.NEUTRAL, self.world.now):
                self._do(server, slot, effect)
            return Answer("unavailable", server)
        if decision.connection is None:
            decision.connection = slot.machine.connection
        generation, peer = decision.connection, self.world.servers[server]
        assert generation is not None
        hangs = peer.mode == "hangs" or not self.world.reaches(self.name, server)
        stands = slot.connections.get(generation) == peer.incarnation
        if stands and not hangs and peer.mode != "calls_fail":
            peer.executed[number] = peer.executed.get(number, 0) + 1

        def ended() -> None:
            if hangs:
                outcome, answer = Outcome.TIMED_OUT, Answer("uncertain", server, text)
            elif not stands:
                outcome, answer = Outcome.CONNECTION_LOST, Answer("uncertain", server, text)
            elif peer.mode == "calls_fail":
                outcome, answer = Outcome.TRANSPORT_FAILURE, Answer("unavailable", server, text)
            else:
                outcome, answer = Outcome.COMPLETED, Answer("served", server, text)
            for effect in slot.machine.settle(decision, outcome, self.world.now, chance=self.chance.random()):
                self._do(server, slot, effect)
            settled(answer)

        self.later(CALL_TIMEOUT if hangs else 0.003, ended)
        return None
