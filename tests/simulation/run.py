"""A run: what happens when (from a seed), the invariants, and the search for the shortest failing run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.core import FleetRecord, NameKey, State, record_key, record_value
from holdfast.front.session_id import SessionTicket
from holdfast.keys import KeyRing
from tests.simulation.clients import CLIENTS, SimClients
from tests.simulation.replica import Answer, Replica, SimConfig
from tests.simulation.world import Broken, SimServer, World

__all__ = ["Action", "Failure", "Plan", "Result", "make_client_plan", "make_plan", "play", "shrunk"]

KEY = b"the key of the session ids of all replicas"
ACTIVE_SECONDS = 150.0
QUIET_SECONDS = 130.0
RECOVERY_SECONDS = 100.0
"""Two slow self-probes and a claim that a dead replica held."""
EVERYWHERE_SECONDS = 2.0
SLACK_SECONDS = 0.6
"""An exchange that is under way, and a slow store."""

CONFIGS = (
    SimConfig(1, {"plain": "", "bare": "", "files": None, "gitw": "git"}),
    SimConfig(2, {"plain": "", "bare": "", "files": None, "gitw": "git", "a": None}),
    SimConfig(3, {"bare": "", "plain": "", "files": "a", "gitw": "git", "a": None}),
)
SERVERS = ("plain", "bare", "files", "gitw", "a")
MODES = ("refuses", "hangs", "not_ready", "denies", "calls_fail")
PRINCIPALS = ("ada", "bob")
TOOLS = ("search", "bare__search", "files__search", "git__search", "a__x", "a__a__x", "a__search")


@dataclass(frozen=True)
class Action:
    """Something that happens at a time; everything about it follows from the seed."""

    at: float
    what: str
    who: int = 0
    server: str = ""
    value: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    replicas: int
    actions: tuple[Action, ...]


@dataclass
class Result:
    """What a run yielded."""

    steps: int = 0
    seconds: float = 0.0
    served: int = 0
    calls: int = 0
    acknowledged: int = 0
    alone: int = 0


@dataclass(frozen=True)
class Failure:
    """An invariant that did not hold."""

    plan: Plan
    message: str


def make_plan(seed: int) -> Plan:
    """The run of a seed."""
    chance = random.Random(seed)
    replicas = chance.choice((2, 3, 3, 4, 5))
    made: list[Action] = []

    def at() -> float:
        return chance.uniform(5.0, ACTIVE_SECONDS)

    def who() -> int:
        return chance.randrange(replicas)

    made += [Action(at(), "call", who(), text=chance.choice(TOOLS)) for _ in range(int(ACTIVE_SECONDS * 1.5))]
    for server in SERVERS:
        for _ in range(chance.randrange(3)):
            begin = at()
            made.append(Action(begin, "mode", server=server, text=chance.choice(MODES)))
            made.append(Action(begin + chance.choice((0.5, 3.0, 20.0, 60.0)), "mode", server=server, text="up"))
        made += [Action(at(), "restart", server=server) for _ in range(chance.randrange(3))]
        if chance.random() < 0.5:
            made.append(Action(20.0 + chance.uniform(0, 60), "text", server=server))
    made += [
        Action(at(), "switch", who(), chance.choice(SERVERS[:4]), chance.randrange(2))
        for _ in range(chance.randrange(3, 10))
    ]
    made += [
        Action(at(), "approve", who(), chance.choice(SERVERS[:4]), text="search") for _ in range(chance.randrange(4))
    ]
    made += [
        Action(at(), "crash", who(), value=chance.choice((0.2, 2.0, 10.0)), text=chance.choice(("", "kept")))
        for _ in range(chance.randrange(5))
    ]
    made += [Action(at(), "pause", who(), value=chance.choice((0.5, 4.0, 12.0))) for _ in range(chance.randrange(4))]
    for _ in range(chance.randrange(4)):
        place = chance.choice(("store", "peers", *SERVERS[:4]))
        made.append(Action(at(), "cut", who(), place, value=chance.choice((1.0, 5.0, 30.0))))
    for _ in range(chance.randrange(5)):
        what = chance.choice(("store_down", "store_stuck", "store_lag", "flush", "save", "older", "emptied"))
        made.append(Action(at(), what, value=chance.choice((0.5, 4.0, 15.0))))
    if chance.random() < 0.5:
        begin = chance.uniform(10, 60)
        for config in (1, 2):
            made += [Action(begin + chance.uniform(0, 4), "config", index, value=config) for index in range(replicas)]
            begin += 40.0
    made += _session_actions(random.Random(f"{seed}/sessions"), replicas)
    return Plan(seed, replicas, tuple(sorted(made, key=lambda one: one.at)))


def make_client_plan(seed: int) -> Plan:
    """A run of clients with connections of their own; servers are well, and all else may fail."""
    chance = random.Random(f"{seed}/clients")
    replicas = chance.choice((2, 3, 4))

    def at() -> float:
        return chance.uniform(5.0, ACTIVE_SECONDS)

    def who() -> int:
        return chance.randrange(replicas)

    made = [Action(at(), "client", who(), text=chance.choice([*CLIENTS])) for _ in range(200)]
    made += [Action(at(), "crash", who(), value=chance.choice((0.2, 2.0, 10.0))) for _ in range(chance.randrange(6))]
    made += [Action(at(), "pause", who(), value=chance.choice((0.5, 4.0, 12.0))) for _ in range(chance.randrange(4))]
    for _ in range(chance.randrange(6)):
        made.append(
            Action(at(), "cut", who(), chance.choice(("store", "peers")), value=chance.choice((1.0, 5.0, 30.0)))
        )
    for _ in range(chance.randrange(5)):
        what = chance.choice(("store_down", "store_stuck", "store_lag", "flush", "save", "older", "emptied"))
        made.append(Action(at(), what, value=chance.choice((0.5, 4.0, 15.0))))
    return Plan(seed, replicas, tuple(sorted(made, key=lambda one: one.at)))


def _session_actions(chance: random.Random, replicas: int) -> list[Action]:
    """Sessions of two principals, used and ended on any replica."""
    made = [Action(chance.uniform(5.0, 30.0), "open", chance.randrange(replicas), text=name) for name in PRINCIPALS * 2]
    for _ in range(60):
        at, who = chance.uniform(30.0, ACTIVE_SECONDS), chance.randrange(replicas)
        made.append(Action(at, "use", who, value=chance.randrange(4), text=chance.choice(PRINCIPALS)))
    made += [
        Action(chance.uniform(40.0, ACTIVE_SECONDS), "end", chance.randrange(replicas), value=chance.randrange(4))
        for _ in range(chance.randrange(4))
    ]
    return made


@dataclass
class _Decision:
    """What an operator decided."""

    key: str
    stamp: str
    acknowledged_at: float | None = None
    refused: bool = False


@dataclass
class _Session:
    """A session of a client."""

    id: str
    principal: str
    key: str
    """The key of the record that says that it is over."""


@dataclass
class _Run:
    plan: Plan
    world: World
    replica_type: type[Replica]
    result: Result = field(default_factory=Result)
    decisions: list[_Decision] = field(default_factory=list)
    sessions: list[_Session] = field(default_factory=list)
    approved: dict[str, set[int]] = field(default_factory=dict)
    configs: dict[int, SimConfig] = field(default_factory=dict)
    healthy_since: dict[str, float] = field(default_factory=dict)
    next_check: float = 0.0
    names_at: int = -1
    calls: int = 0
    serial: int = 0

    def __post_init__(self) -> None:
        self.clients = SimClients(self.world)

    def start(self) -> None:
        for server in SERVERS:
            self.world.servers[server] = SimServer(server)
        for index in range(self.plan.replicas):
            self.configs[index] = CONFIGS[0]
            self.boot(index)

    def boot(self, index: int, kept: tuple[FleetRecord, ...] = ()) -> None:
        self.serial += 1
        chance = random.Random(f"{self.plan.seed}/{index}/{self.serial}")
        name = f"r{index}.{self.serial}"
        replica = self.replica_type(
            name,
            self.world,
            self.configs[index],
            seed=f"{self.plan.seed}/{name}",
            skew=chance.uniform(-300, 300),
            kept=kept,
        )
        self.world.replicas = {k: v for k, v in self.world.replicas.items() if not k.startswith(f"r{index}.")}
        self.world.replicas[name] = replica

    def replica(self, index: int) -> Replica:
        return next(v for k, v in self.world.replicas.items() if k.startswith(f"r{index}."))

    # What happens.

    def do(self, action: Action) -> None:
        getattr(self, f"_{action.what}")(action)

    def _call(self, action: Action) -> None:
        replica = self.replica(action.who)
        if not replica.runs:
            return
        self.calls += 1
        number, self.result.calls = self.calls, self.result.calls + 1
        must_work = self._must_work(replica, action.text)
        answer = replica.call(number, action.text, partial(self._answered, number, must_work))
        if answer is not None:
            self._answered(number, must_work, answer)

    def _client(self, action: Action) -> None:
        replica = self.replica(action.who)
        if replica.runs:
            self.calls += 1
            self.clients.call(self.calls, action.text, replica)

    def _must_work(self, replica: Replica, name: str) -> bool:
        """Whether nothing but the store can be a reason for this call to fail."""
        found = replica.catalog.resolve(name)
        if not isinstance(found, NameKey) or found.server in replica.off:
            return False
        server, slot = self.world.servers[found.server], replica.slots[found.server]
        well = server.mode == "up" and self.world.reaches(replica.name, server.name)
        generation = slot.machine.connection
        stands = generation is not None and slot.connections.get(generation) == server.incarnation
        pin = replica.member.book.get(record_key("pin", found.server, found.original))
        entry = replica.catalog.entry(name)
        same = entry is not None and pin is not None and record_value(pin) == {"text": entry.item.raw["description"]}
        return well and stands and same and slot.machine.breaker.state.value == "closed"

    def _answered(self, number: int, must_work: bool, answer: Answer) -> None:
        if must_work and answer.kind != "served":
            raise Broken(f"call {number} had all that it needs, and its answer is {answer}")
        if answer.kind == "served":
            self.result.served += 1
        if answer.kind == "served" and answer.text:
            allowed = self.approved.get(answer.server, set())
            first = self.world.first_seen.get(record_key("pin", answer.server, "search"))
            if first is not None and answer.text != first and answer.text not in allowed:
                raise Broken(
                    f"call {number} ran v{answer.text} of {answer.server}: seen first v{first}, approved {allowed}"
                )
        ran = self.world.servers[answer.server].executed.get(number, 0) if answer.server else 0
        if ran > 1:
            raise Broken(f"call {number} ran {ran} times")

    def _mode(self, action: Action) -> None:
        server = self.world.servers[action.server]
        if server.mode == action.text:
            return
        dies = action.text == "refuses"
        server.mode = action.text
        if dies:
            self._restart(action)

    def _restart(self, action: Action) -> None:
        self.world.servers[action.server].incarnation += 1
        for replica in self.world.replicas.values():
            if replica.alive:
                replica.server_restarted(action.server)

    def _text(self, action: Action) -> None:
        self.world.servers[action.server].text += 1

    def _switch(self, action: Action) -> None:
        replica = self.replica(action.who)
        if replica.runs and action.server in replica.config.prefixes:
            decision = _Decision(record_key("switch", action.server), "")
            decision.stamp = replica.switch(action.server, off=bool(action.value), answer=partial(self._told, decision))
            self.decisions.append(decision)

    def _approve(self, action: Action) -> None:
        replica = self.replica(action.who)
        if not replica.runs or action.server not in replica.config.prefixes:
            return
        text = self.world.servers[action.server].text
        self.approved.setdefault(action.server, set()).add(text)
        decision = _Decision(record_key("pin", action.server, action.text), "")
        decision.stamp = replica.approve(action.server, action.text, text, partial(self._told, decision))
        self.decisions.append(decision)

    def _open(self, action: Action) -> None:
        replica = self.replica(action.who)
        if replica.runs:
            number = len(self.sessions).to_bytes(16)
            ticket = SessionTicket(number, "2025-11-25", int(replica.wall), replica.name, {}, {})
            sealed = self.replica_type.ring_type(KeyRing([KEY])).seal(ticket, endpoint=None, principal=action.text)
            self.sessions.append(_Session(sealed, action.text, f"ended/{number.hex()}"))

    def _use(self, action: Action) -> None:
        replica = self.replica(action.who)
        if not replica.runs or int(action.value) >= len(self.sessions):
            return
        session = self.sessions[int(action.value)]
        opened = self.replica_type.ring_type(KeyRing([KEY])).open(session.id, endpoint=None, principal=action.text)
        if (opened is not None) != (action.text == session.principal):
            raise Broken(f"{replica.name} opens a session of {session.principal} for {action.text}: {opened}")

    def _end(self, action: Action) -> None:
        replica = self.replica(action.who)
        if replica.runs and int(action.value) < len(self.sessions):
            decision = _Decision(self.sessions[int(action.value)].key, "")
            decision.stamp = replica.end_session(decision.key, partial(self._told, decision))
            self.decisions.append(decision)

    def _told(self, decision: _Decision, shared: bool) -> None:
        if shared:
            decision.acknowledged_at = self.world.now
            self.result.acknowledged += 1
            self._every_replica_has(decision)
        else:
            decision.refused = True
            self.result.alone += 1

    def _every_replica_has(self, decision: _Decision) -> None:
        for replica in self.world.replicas.values():
            new = replica.connected_since is None or self.world.now - replica.connected_since < EVERYWHERE_SECONDS
            if not replica.runs or new or not replica.member.is_connected(self.world.now):
                continue
            record = replica.member.book.get(decision.key)
            if record is None or record.stamp < decision.stamp:
                raise Broken(f"{decision.key} is acknowledged, and {replica.name} does not know it")

    def _crash(self, action: Action) -> None:
        replica = self.replica(action.who)
        if not replica.alive:
            return
        replica.killed()
        kept = replica.kept() if action.text == "kept" else ()
        self._forgive(*kept)
        self.world.after(action.value, partial(self.boot, action.who, kept))

    def _pause(self, action: Action) -> None:
        replica = self.replica(action.who)
        replica.paused_until = max(replica.paused_until, self.world.now + action.value)

    def _cut(self, action: Action) -> None:
        pair = (self.replica(action.who).name, action.server)
        self.world.cut.add(pair)
        self.world.after(action.value, partial(self._joined, pair))

    def _joined(self, pair: tuple[str, str]) -> None:
        self.world.cut.discard(pair)
        if (replica := self.world.replicas.get(pair[0])) is not None:
            replica.reaches_again(pair[1])

    def _store_down(self, action: Action) -> None:
        self._store(action, "down")

    def _store_stuck(self, action: Action) -> None:
        self._store(action, "stuck")

    def _store(self, action: Action, mode: str) -> None:
        store = self.world.store
        store.mode = mode
        self.world.after(action.value, store.go_on)

    def _store_lag(self, action: Action) -> None:
        store = self.world.store
        store.lag = 0.1

        def back() -> None:
            store.lag = 0.0

        self.world.after(action.value, back)

    def _flush(self, _: Action) -> None:
        self.world.store.flush()
        self._forgive()

    def _save(self, _: Action) -> None:
        self.world.store.save()

    def _older(self, _: Action) -> None:
        self.world.store.restart(older=True)
        self._forgive()

    def _emptied(self, _: Action) -> None:
        self.world.store.restart(older=False)
        self._forgive()

    def _config(self, action: Action) -> None:
        config = CONFIGS[int(action.value)]
        self.configs[action.who] = config
        replica = self.replica(action.who)
        if replica.alive:
            replica.later(0.0, lambda: replica.adopt(config) if config.version > replica.config.version else None)

    def _forgive(self, *kept: FleetRecord) -> None:
        """What is in no process, in no store and in no file any more is gone: that is not the protocol's fault."""
        held: dict[str, str] = {record.key: record.stamp for record in kept}
        for replica in self.world.replicas.values():
            for record in replica.member.book.values() if replica.alive else ():
                held[record.key] = max(record.stamp, held.get(record.key, ""))
        for key, (_, record) in self.world.store.state.records.items():
            held[key] = max(record.stamp, held.get(key, ""))
        self.decisions = [one for one in self.decisions if held.get(one.key, "") >= one.stamp]
        for key in [key for key in self.world.first_seen if key not in held]:
            del self.world.first_seen[key]

    # What must hold.

    def check(self) -> None:
        """After every step."""
        published = sum(replica.published for replica in self.world.replicas.values())
        if published != self.names_at:
            self.names_at = published
            self._one_name_means_one_server()
        if self.world.now >= self.next_check:
            self.next_check = self.world.now + 0.2
            self._acknowledged_decisions_hold()

    def _one_name_means_one_server(self) -> None:
        owners: dict[tuple[int, str], NameKey] = {}
        for replica in self.world.replicas.values():
            for entry in replica.catalog.tools:
                at = (replica.config.version, entry.name)
                if owners.setdefault(at, entry.key) != entry.key:
                    raise Broken(f"{entry.name} means {entry.key} on {replica.name}, and {owners[at]} elsewhere")

    def _acknowledged_decisions_hold(self) -> None:
        latest: dict[str, _Decision] = {}
        for one in self.decisions:
            if one.acknowledged_at is not None and one.stamp > getattr(latest.get(one.key), "stamp", ""):
                latest[one.key] = one
        for key, one in latest.items():
            for replica in self.world.replicas.values():
                self._holds(replica, key, one)

    def _holds(self, replica: Replica, key: str, one: _Decision) -> None:
        now, since = self.world.now, replica.connected_since
        settled = EVERYWHERE_SECONDS + SLACK_SECONDS
        if not replica.runs or since is None or not replica.member.is_connected(now) or now - since < settled:
            return
        if now < replica.paused_until + settled or one.acknowledged_at is None or now - one.acknowledged_at < settled:
            return
        record = replica.member.book.get(key)
        if record is None or record.stamp < one.stamp:
            if not self._is_at_hand(key, one.stamp):
                return  # it learns it when the replica that has it reaches the store again
            raise Broken(f"{replica.name} does not know {key}, acknowledged at {one.acknowledged_at:.2f}")
        if key.startswith("switch/"):
            server = key.partition("/")[2]
            off = '"off":true' in record.value
            if off != (server in replica.off):
                raise Broken(f"{replica.name} does not follow {record}")

    def _is_at_hand(self, key: str, stamp: str) -> bool:
        """Whether the store has a decision, or a replica that has reached the store for long enough to send it.

        Else a replica that is cut off has it alone: the store lost it, and the others were started again without it.
        """
        known = self.world.store.state.records.get(key)
        if known is not None and known[1].stamp >= stamp:
            return True
        long_ago = self.world.now - EVERYWHERE_SECONDS - SLACK_SECONDS
        reaching = (
            one for one in self.world.replicas.values() if one.alive and one.member.is_connected(self.world.now)
        )
        held = (one.member.book.get(key) for one in reaching if (one.connected_since or self.world.now) < long_ago)
        return any(record is not None and record.stamp >= stamp for record in held)

    def heal(self) -> None:
        world = self.world
        for pair in list(world.cut):
            self._joined(pair)
        world.store.go_on()
        world.store.lag = 0.0
        for server in world.servers.values():
            server.mode = "up"

    def _settled(self) -> None:
        """At the end, without faults: everything is up, equal, and served."""
        replicas = list(self.world.replicas.values())
        for replica in replicas:
            if not replica.alive or not replica.member.is_connected(self.world.now):
                raise Broken(f"{replica.name} does not find the store at the end")
            for server, slot in replica.slots.items():
                wanted = State.DISABLED if server in replica.off else State.CONNECTED
                if _is_denied(replica, server):
                    continue  # a denied server is asked again after five minutes, in a single hub too
                if slot.machine.state is not wanted:
                    raise Broken(f"{server} is {slot.machine!r} on {replica.name} at the end")
        self._all_equal(replicas)
        for replica in replicas:
            for server, slot in replica.slots.items():
                generation = slot.machine.connection
                peer = self.world.servers[server]
                lease = slot.machine.life.lease
                if lease is not None and lease.failures:
                    continue  # without a call, three failed refreshes end a connection that nothing reported as dead
                if generation is not None and slot.connections.get(generation) != peer.incarnation:
                    raise Broken(f"{replica.name} believes in a dead connection to {server}")

    def _all_equal(self, replicas: list[Replica]) -> None:
        for server in CONFIGS[0].prefixes:
            offs = {server in replica.off for replica in replicas}
            if len(offs) > 1:
                raise Broken(f"{server} is disabled on some replicas at the end")
        same = [replica for replica in replicas if replica.config.version == replicas[0].config.version]
        first = same[0].catalog
        for replica in same[1:]:
            for kind_name, key in replica.catalog.owners.items():
                if kind_name in first.owners and first.owners[kind_name] != key:
                    raise Broken(f"{kind_name} means {key} on {replica.name}, and {first.owners[kind_name]} elsewhere")


def _is_denied(replica: Replica, server: str) -> bool:
    """Whether a server denied the latest dial, of this replica or of another one."""
    evidence = replica.member.book.get(record_key("evidence", server))
    told = evidence is not None and record_value(evidence).get("status") == "denied"
    return told or replica.slots[server].machine.state is State.DENIED


def play(plan: Plan, replica_type: type[Replica] = Replica) -> Result:
    """Play a run; raises ``Broken`` if an invariant does not hold."""
    world = World(plan.seed)
    run = _Run(plan, world, replica_type)
    run.start()
    for action in plan.actions:
        world.after(action.at, partial(run.do, action))
    world.run(ACTIVE_SECONDS + 5.0, run.check)
    run.heal()
    world.run(world.now + RECOVERY_SECONDS, run.check)
    run._settled()
    run.result.steps, run.result.seconds = world.steps, world.now
    return run.result


def shrunk(plan: Plan, replica_type: type[Replica] = Replica, *, tries: int = 200) -> Plan:
    """The shortest run that still breaks: parts of the actions are left out as long as it does."""
    size = len(plan.actions) // 2
    while size >= 1 and tries > 0:
        position = 0
        while position < len(plan.actions) and tries > 0:
            shorter = replace(plan, actions=plan.actions[:position] + plan.actions[position + size :])
            tries -= 1
            if _breaks(shorter, replica_type):
                plan = shorter
            else:
                position += size
        size //= 2
    return plan


def _breaks(plan: Plan, replica_type: type[Replica]) -> bool:
    try:
        play(plan, replica_type)
    except Broken:
        return True
    return False


def search(seeds: Sequence[int], replica_type: type[Replica] = Replica) -> Failure | None:
    """The first seed that breaks, if one does."""
    for seed in seeds:
        plan = make_plan(seed)
        try:
            play(plan, replica_type)
        except Broken as exc:
            return Failure(plan, str(exc))
    return None
