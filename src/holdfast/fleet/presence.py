"""Who is present: the replicas of the fleet, what each tells about itself, and which of them can have clients.

Each replica tells with every exchange that it is there, where the others reach it, and what its callers use. A replica
that shuts down tells that it leaves. What was read last counts, also while the store does not answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast._version import __version__
from holdfast.core import home_of
from holdfast.fleet.peers import Peers
from holdfast.fleet.replica_state import ReplicaState

__all__ = ["Presence", "ReplicaView", "first_words"]

ROSTER_SECONDS: Final = 1.0
"""How long the question who is present may take."""
NEWS_SECONDS: Final = 0.1
"""Who is present is not asked again within this time, however often unknown replicas are named."""


@dataclass(frozen=True, kw_only=True)
class ReplicaView:
    """One replica, for people."""

    replica: str
    here: bool
    host: str = ""
    pid: int = 0
    version: str = ""
    started: float = 0.0
    address: str = ""
    group: str = ""
    """Equal for the workers of one supervisor; empty for a replica that is none."""
    worker: int = 0
    leaving: bool = False


def first_words(started: float, address: str, worker: tuple[str, int] | None) -> dict[str, object]:
    """What a replica tells about itself. Of a worker: its supervisor, and its number there."""
    own = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "started": round(started, 3)}
    return own | {"address": address} | ({"group": worker[0], "worker": worker[1]} if worker is not None else {})


class Presence:
    """The replicas that are present, this one included."""

    def __init__(self, state: ReplicaState, peers: Peers | None) -> None:
        self._state = state
        self._peers = peers
        self._watchers: list[Callable[[], None]] = []
        self._told: dict[str, Callable[[], object]] = {}
        if peers is not None:
            peers.join(self)

    # What this replica tells.

    def tell(self, key: str, said: Callable[[], object]) -> None:
        """Tell the others this with each exchange: what callers use of this replica."""
        self._told[key] = said

    def describe(self, **about: object) -> None:
        """Tell the others more about this replica, soon."""
        self._state.member.about |= about
        self._state.member.pace.hurry()
        self._state.wake.set()

    def refresh(self) -> None:
        """An exchange begins."""
        self._state.member.about |= {key: said() for key, said in self._told.items()}

    # What the others tell.

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this when the presence of all replicas was read, and when the store does not answer any more."""
        self._watchers.append(changed)

    def read(self) -> None:
        """The presence of all replicas was read, or the store does not answer."""
        for changed in self._watchers:
            changed()

    async def look_again(self) -> None:
        """Learn who is present, if the store answers: a request named a replica that is not known here."""
        state, member = self._state, self._state.member
        asked_at = state.now()
        if state.not_shared_since is not None or member.pace.has_roster(asked_at - NEWS_SECONDS):
            return
        member.pace.want_roster()
        state.wake.set()
        while not member.pace.has_roster(asked_at):
            if not await state.waiting.wait(state.changed, asked_at + ROSTER_SECONDS):
                return

    def addresses(self) -> dict[str, str]:
        """Where the replicas that are present can be asked directly."""
        return {name: str(peer.about.get("address", "")) for name, peer in self._state.member.peers.items()}

    @property
    def staying(self) -> dict[str, Mapping[str, object]]:
        """What each replica tells that does not leave."""
        peers = self._state.member.peers
        return {name: peer.about for name, peer in peers.items() if peer.about.get("leaving") is not True}

    @property
    def possible_homes(self) -> frozenset[str]:
        """The replicas that can have the connections of clients: those last known, without those that leave."""
        leaving = self._peers.leaving if self._peers is not None else frozenset()
        return (frozenset(self.staying) - leaving) | {self._state.member.replica}

    def user_home(self, principal: str) -> str | None:
        """The address of the replica that runs the processes of a user; None if it is this one.

        It is a hash of the principal over the replicas that others can reach, and no session names it: a user may have
        several sessions, and has one process of a server. Workers of one supervisor have one process that runs all.
        """
        own, staying = self._state.member.replica, self.staying
        host, group = socket.gethostname(), self._state.member.about.get("group")
        known = {name: address for name, address in self.addresses().items() if name in self.possible_homes}
        if self._peers is not None:
            known[own] = self._peers.address
        reached = {
            name: address
            for name, address in known.items()
            if address and (name == own or address.startswith("tcp:") or staying[name].get("host") == host)
        }
        home = home_of(f"user\0{principal}", "", reached) if reached else own
        if home == own or (group and staying[home].get("group") == group):
            return None
        return reached[home].removeprefix("tcp://")

    @property
    def others(self) -> dict[str, Mapping[str, object]]:
        """What each other replica tells; nothing while the store does not answer."""
        if self._state.not_shared_since is not None:
            return {}
        member = self._state.member
        return {name: peer.about for name, peer in member.peers.items() if name != member.replica}

    @property
    def replicas(self) -> tuple[ReplicaView, ...]:
        """The replicas that are present, as of the last good exchange; this one always."""
        member = self._state.member
        found = [_view(name, peer.about, here=name == member.replica) for name, peer in sorted(member.peers.items())]
        if member.replica not in member.peers:
            found.append(_view(member.replica, member.about, here=True))
        return tuple(found)

    def __repr__(self) -> str:
        return f"<Presence of {sorted(self._state.member.peers)}>"


def _view(name: str, about: Mapping[str, object], *, here: bool) -> ReplicaView:
    """What a replica tells, as far as it is of the right kind."""

    def text(key: str) -> str:
        return str(about.get(key, ""))[:200]

    pid, started, worker = about.get("pid"), about.get("started"), about.get("worker")
    return ReplicaView(
        replica=name,
        here=here,
        host=text("host"),
        pid=pid if isinstance(pid, int) else 0,
        version=text("version"),
        started=float(started) if isinstance(started, int | float) else 0.0,
        address=text("address"),
        group=text("group"),
        worker=worker if isinstance(worker, int) else 0,
        leaving=about.get("leaving") is True,
    )
