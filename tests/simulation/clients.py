"""Clients with connections of their own: their calls come in at any replica, and belong to the client's home."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.core.replicas.homes import HOME_SECONDS
from tests.simulation.replica import Replica
from tests.simulation.world import Broken, World

__all__ = ["CLIENTS", "SimClients"]

CLIENTS = {"k1": "ada", "k2": "ada", "k3": "bob"}
"""The principal of each client."""
MOST_TRIES = 3
SEARCH_SECONDS = 1.0
CONNECT_SECONDS = 2.0
LEARNS_SECONDS = HOME_SECONDS / 2 + 2.0
"""After this long a connected replica knows that another one took a home over."""


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
    doubled: dict[str, tuple[float, list[tuple[str, int]]]] = field(default_factory=dict)
    """Since when the same two connected replicas are the home of a client, with the same claims."""

    def call(self, number: int, client: str, at: Replica) -> None:
        """A call comes in."""
        self._try(_Call(number, client, CLIENTS[client]), at, MOST_TRIES, "")

    def _try(self, call: _Call, at: Replica, tries: int, dead: str) -> None:
        if tries == 0 or not at.runs:
            return  # refused, or lost with its replica
        home = at.member.find_home(call.client, self.world.now, instead_of=dead)
        if home is None:
            at.plan_exchange()
            at.later(0.02, lambda: self._wait(call, at, tries, dead, self.world.now + SEARCH_SECONDS))
        else:
            self._go(call, at, tries, home)

    def _wait(self, call: _Call, at: Replica, tries: int, dead: str, until: float) -> None:
        if at.member.homes.is_asking(call.client) and self.world.now < until:
            at.later(0.02, lambda: self._wait(call, at, tries, dead, until))
            return
        found = at.member.homes.holder(call.client)
        self._go(call, at, tries, found if found and found != dead else at.name)

    def _go(self, call: _Call, at: Replica, tries: int, home: str) -> None:
        if home == at.name:
            self._execute(call, at)
            return
        there = self.world.replicas.get(home)
        if there is None or not there.alive or not self.world.talk(at.name, home):
            at.later(self.world.latency(), lambda: self._try(call, at, tries - 1, home))
            return
        if not there.runs:
            at.later(CONNECT_SECONDS, lambda: self._try(call, at, tries - 1, home))
            return

        def arrived() -> None:
            if there.member.homes.holder(call.client) == there.name:
                self._execute(call, there)
                return
            at.member.homes.forget(call.client)
            at.later(self.world.latency(), lambda: self._try(call, at, tries - 1, ""))

        there.later(self.world.latency(), arrived)

    def _execute(self, call: _Call, at: Replica) -> None:
        self.executed[call.number] += 1
        if self.executed[call.number] > 1:
            raise Broken(f"call {call.number} of {call.client} ran twice")
        if self.principals.setdefault((call.client, at.name), call.principal) != call.principal:
            raise Broken(f"the connections of {call.client} on {at.name} served another principal")

    def check(self, *, at_the_end: bool = False) -> None:
        """Two replicas that are connected are the home of one client for a moment only."""
        now = self.world.now
        for client in CLIENTS:
            homes = [
                (replica.name, replica.member.homes.token(client))
                for replica in self.world.replicas.values()
                if replica.runs
                and replica.member.is_connected(now)
                and replica.member.homes.holder(client) == replica.name
            ]
            since, before = self.doubled.get(client, (now, homes))
            self.doubled[client] = since, before = (since if homes == before else now), homes
            if len(homes) > 1 and (at_the_end or now - since > LEARNS_SECONDS):
                raise Broken(f"{client} has the homes {homes} at {now:.1f}")
