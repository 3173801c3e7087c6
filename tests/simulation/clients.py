"""Clients with connections of their own: each call runs at the home of its client, and once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.replica import Replica
from tests.simulation.world import Broken, World

__all__ = ["CLIENTS", "SimClients"]

CLIENTS = {"k1": "ada", "k2": "ada", "k3": "bob", "k4": "bob"}
"""The principal of each client."""
MOST_TRIES = 3
LOOK_SECONDS = 0.3
"""How long a replica takes to learn who is present."""
CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class _Call:
    number: int
    client: str
    principal: str


@dataclass
class SimClients:
    """The calls of all clients, and what must hold for them."""

    world: World
    executed: Counter[int] = field(default_factory=Counter)
    principals: dict[tuple[str, str], str] = field(default_factory=dict)
    """By client and replica: whose connections they are."""
    served: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """By client: the replica that served it last, and the replicas that this one knew then."""

    def call(self, number: int, client: str, at: Replica) -> None:
        """A call comes in."""
        self._try(_Call(number, client, CLIENTS[client]), at, MOST_TRIES)

    def _try(self, call: _Call, at: Replica, tries: int) -> None:
        if tries == 0 or not at.runs:
            return  # refused, or lost with its replica
        home = at.home_of(call.client)
        if home == at.name:
            self._execute(call, at)
            return
        there = self.world.replicas.get(home)
        if there is None or not there.alive or not self.world.talk(at.name, home):
            at.later(LOOK_SECONDS, lambda: self._try(call, at, tries - 1))
            return
        if not there.runs:
            at.later(CONNECT_SECONDS, lambda: self._try(call, at, tries - 1))
            return

        def arrived() -> None:
            if there.home_of(call.client) == there.name:
                self._execute(call, there)
            else:  # one of the two has not heard yet that a replica came or left
                at.later(LOOK_SECONDS, lambda: self._try(call, at, tries - 1))

        there.later(self.world.latency(), arrived)

    def _execute(self, call: _Call, at: Replica) -> None:
        self.executed[call.number] += 1
        if self.executed[call.number] > 1:
            raise Broken(f"call {call.number} of {call.client} ran twice")
        if self.principals.setdefault((call.client, at.name), call.principal) != call.principal:
            raise Broken(f"the connections of {call.client} on {at.name} served another principal")
        knows = frozenset({*at.member.peers, at.name})
        before = self.served.get(call.client)
        if before is not None and before[1] == knows and before[0] != at.name:
            raise Broken(f"{call.client} is served by {at.name} and {before[0]}, which know the same replicas")
        self.served[call.client] = at.name, knows
