"""Fleets without random faults: dials of a dead server, the spread of exchanges, and the traffic of a large fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from holdfast.core import FleetExchange, FleetMember, FleetReply, SharedStore, State
from tests.simulation.replica import Replica, SimConfig
from tests.simulation.world import SimServer, World

__all__ = ["Capacity", "dials_of_a_dead_server", "fleet_of", "measure", "most_in_step", "seconds_until_back"]

_BY_COMMAND = frozenset({"start", "manual", "enable", "login", "config", "first_use"})


def fleet_of(
    replicas: int,
    servers: tuple[str, ...],
    mode: str,
    replica_type: type[Replica] = Replica,
    *,
    apart: float = 0.0,
) -> World:
    world = World(replicas)
    for server in servers:
        world.servers[server] = SimServer(server, mode=mode)
    config = SimConfig(1, dict.fromkeys(servers))
    for index in range(replicas):

        def boot(name: str = f"r{index}") -> None:
            world.replicas[name] = replica_type(name, world, config, seed=name, skew=0.0)

        world.after(index * apart, boot)
    return world


def dials_of_a_dead_server(
    replicas: int, mode: str, seconds: float = 300.0, replica_type: type[Replica] = Replica
) -> int:
    """How often a server that is dead from the start is dialed, after the first dial of each replica."""
    world = fleet_of(replicas, ("dead",), mode, replica_type, apart=0.3)
    world.run(seconds, lambda: None)
    return len(world.servers["dead"].dials) - replicas


def seconds_until_back(
    replicas: int, down: float, server: str = "portw", replica_type: type[Replica] = Replica
) -> float:
    """How long after a server listens again it is back at every replica; it was up first, then refused for a while."""
    world = fleet_of(replicas, (server,), "up", replica_type, apart=0.3)
    world.run(10.0, lambda: None)
    peer = world.servers[server]
    peer.mode, peer.incarnation = "refuses", peer.incarnation + 1
    for replica in world.replicas.values():
        replica.server_restarted(server)
    world.run(10.0 + down, lambda: None)
    peer.mode = "up"
    return _until_connected(world)


def _until_connected(world: World) -> float:
    """How long it takes until every replica is connected to every server."""
    begun = world.now
    while not all(slot.machine.state is State.CONNECTED for r in world.replicas.values() for slot in r.slots.values()):
        world.run(world.now + 0.05, lambda: None)
    return world.now - begun


def most_in_step(replicas: int, member: type[FleetMember] = FleetMember) -> int:
    """The most exchanges in 5 ms, a minute after all replicas started in the same moment."""
    kind = type("Quiet", (Replica,), {"member_type": member})
    world = fleet_of(replicas, (), "up", kind)
    world.run(60.0, lambda: None)
    world.store.recent.clear()
    world.run(90.0, lambda: None)
    return max(Counter(int(at / 0.005) for at in world.store.recent).values())


@dataclass(frozen=True)
class Capacity:
    """What a large fleet costs, extrapolated from a part of its servers where it says so."""

    replicas: int
    servers: int
    simulated: int
    """The dead servers that were simulated; the figures per second are for all of them."""
    first_dials: int
    dials_a_minute: float
    """Of all dead servers together, after the first dial of each replica."""
    exchanges_a_second: float
    records_a_second: float
    claims_a_second: float
    recovery_seconds: float
    """Until every replica was connected to every server again."""


def measure(replicas: int, servers: int, *, simulated: int = 20) -> Capacity:
    """Every server is dead for five minutes and comes back."""
    names = tuple(f"s{index}" for index in range(min(simulated, servers)))
    counted = Counter[str]()

    class Counting(SharedStore):
        def exchange(self, asked: FleetExchange, now: float) -> FleetReply:
            counted["claims"] += len(asked.claims)
            return super().exchange(asked, now)

    world = fleet_of(replicas, names, "not_ready", apart=0.05)
    world.store.state = Counting()
    world.run(180.0, lambda: None)
    before, moved, exchanges = (
        sum(len(s.dials) for s in world.servers.values()),
        world.store.moved,
        world.store.exchanges,
    )
    counted.clear()
    world.run(300.0, lambda: None)
    dials = sum(len(s.dials) for s in world.servers.values()) - before
    records, claims = world.store.moved - moved, counted["claims"]
    per_second = (world.store.exchanges - exchanges) / 120.0
    for server in world.servers.values():
        server.mode = "up"
    recovery = _until_connected(world)
    scale = servers / len(names)
    return Capacity(
        replicas=replicas,
        servers=servers,
        simulated=len(names),
        first_dials=replicas * servers,
        dials_a_minute=dials * scale / 2.0,
        exchanges_a_second=per_second,
        records_a_second=records * scale / 120.0,
        claims_a_second=claims * scale / 120.0,
        recovery_seconds=recovery,
    )
