"""Who is present: the replicas of the fleet, what each tells about itself, and which of them has which client.

Each replica tells with every exchange that it is there, where the others reach it, and what its callers use. A replica
that shuts down tells that it leaves. What was read last counts, also while the store does not answer.

A client with connections of its own has a *home*: the one replica that has these connections. The processes of a user
have one too. No replica assigns homes. Each computes them alike, as a hash over the replicas that are present
(``core/replicas/agreement``), so that no request waits for an agreement. A session that names its home keeps it for as
long as that replica is there.

What must never happen: two replicas serve one client with two connections, each with a state of its own. Two replicas
may know different presences for a moment, so ``ClientHomeFinder`` looks whenever the presence was read, and closes the
connections of clients whose home is another replica by now. A request that comes to the wrong replica is sent on
(``LivesElsewhere``). A replica that leaves closes none of them: what is in use there stays to the end.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final

from holdfast._version import __version__
from holdfast.access import ClientKey
from holdfast.core import home_of, replica_tag, replicas_with_tag
from holdfast.endpoint import Client, LivesElsewhere
from holdfast.fleet.peers import Peers
from holdfast.hub import Hub

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet, ReplicaState

__all__ = ["ClientHomeFinder", "Presence", "first_words", "home_name"]

ROSTER_SECONDS: Final = 1.0
"""How long the question who is present may take."""
NEWS_SECONDS: Final = 0.1
"""Who is present is not asked again within this time, however often unknown replicas are named."""


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
        # A name that no replica has would otherwise cost the store a question for each request of a stranger.
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
        # Every replica must find the same home: all of it follows from what replicas share, and from a hash.
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
    def replicas(self) -> dict[str, Mapping[str, object]]:
        """What each replica tells that is present, as of the last good exchange; this one always."""
        member = self._state.member
        known = {name: peer.about for name, peer in sorted(member.peers.items())}
        return known if member.replica in known else {**known, member.replica: member.about}

    def __repr__(self) -> str:
        return f"<Presence of {sorted(self._state.member.peers)}>"


_TASK_LOST: Final = "the task is on a replica that does not answer"


class ClientHomeFinder:
    """Finds the replica of a request; one for all endpoints of a hub."""

    def __init__(self, hub: Hub, fleet: Fleet) -> None:
        self._hub = hub
        self._fleet = fleet
        self._owners: dict[Hashable, str] = {}
        """The clients whose connections are here, and the home that the session of each names."""
        self._before: frozenset[str] = frozenset()
        """The replicas that could have homes, before the last one came or left."""
        self._now: frozenset[str] = frozenset()
        fleet.presence.watch(self._review)

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""
        return replica_tag(self._fleet.replica)

    @property
    def long_tag(self) -> str:
        """Names this replica where another one with the same short tag must not be meant."""
        return home_name(self._fleet.replica)

    async def replica_of(self, tag: str) -> str | None:
        """The other replica with this tag, if it is present; its first, should two have the same."""
        if tag != self.tag and not replicas_with_tag(tag, self._fleet.member.peers):
            await self._fleet.presence.look_again()
        found = replicas_with_tag(tag, self._fleet.member.peers)
        return next((name for name in found if name != self._fleet.replica), None)

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""
        if home == self.long_tag:
            return True
        for replica in self._fleet.member.peers:
            if home_name(replica) == home:
                raise LivesElsewhere(replica, _TASK_LOST)
        return False

    async def check(self, client: Client) -> None:
        """Raise ``LivesElsewhere`` if another replica has the connections of this client."""
        if not _is_known(client.owner) or self._fleet.peers is None or not self._fleet.peers.address:
            return  # the others could not send anything here
        self._review()  # one that said that it leaves may not be known by its presence yet
        home = self._home(client.owner, client.home)
        if home != self._fleet.replica:

            async def moves() -> bool:
                await self._fleet.presence.look_again()
                return self._home(client.owner, client.home) != home

            raise LivesElsewhere(home, moves=moves)
        self._owners[client.owner] = client.home

    def known_elsewhere(self, client: Client) -> str | None:
        """The other replica that has the connections of a client, if it is one."""
        home = self._home(client.owner, client.home) if _is_known(client.owner) else self._fleet.replica
        return home if home != self._fleet.replica else None

    def lost_connection(self, client: Client) -> bool:
        """Whether a client had connections that are gone: before its session was rebuilt, or on an earlier home.

        A client without a session may have begun a moment ago. If a replica left lately that would have been its home,
        the answer is yes too: what the client may have lost there is not known.
        """
        if not isinstance(client.owner, ClientKey):
            return client.rebuilt
        before = self._before | {self._fleet.replica}
        return home_of(_key_of(client.owner), "", before) != self._fleet.replica

    def _home(self, owner: Hashable, named: str) -> str:
        replicas = self._fleet.presence.possible_homes
        by_name = {home_name(replica): replica for replica in replicas}
        return home_of(_key_of(owner), by_name.get(named, ""), replicas)

    def _review(self) -> None:
        """Replicas may have come or left: close the connections of clients whose home is another one now."""
        if self._fleet.presence.possible_homes == self._now or self._fleet.member.about.get("leaving") is True:
            return  # of a replica that leaves, connections in use stay to the end
        # The set before the last change is kept: it says which clients may have lost something by it.
        self._before, self._now = self._now, self._fleet.presence.possible_homes
        for owner, named in list(self._owners.items()):
            here = self._home(owner, named) == self._fleet.replica
            if not here:
                self._hub.registry.clients.release(owner)
            if not here or not self._hub.registry.clients.servers_of.get(owner):
                del self._owners[owner]
        self._hub.registry.users.review_homes()


def home_name(replica: str) -> str:
    """Names a replica in ids that live long: of tasks, and of sessions."""
    return hashlib.blake2s(replica.encode(), digest_size=8, person=b"task").hexdigest()


def _is_known(owner: Hashable) -> bool:
    """Whether a client is known beyond its request."""
    return isinstance(owner, bytes | ClientKey)


def _key_of(owner: Hashable) -> str:
    """Names a client for the hash that every replica computes alike."""
    if isinstance(owner, ClientKey):
        # With the length: "ab" + "c" and "a" + "bc" are two clients.
        return f"key\0{len(owner.principal)}:{owner.principal}{owner.key}"
    return f"session\0{owner!r}"
