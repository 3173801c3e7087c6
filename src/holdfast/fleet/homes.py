"""Which replica a request belongs to: the home of a client with connections of its own, and the owner of a tag.

The rule is in ``core/replicas/homes``. Here it is asked with what this replica knows, and what follows is done: a
client whose home moved away loses its connections here, so that two replicas never serve one client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Final

from holdfast.access import ClientKey
from holdfast.core import home_of, replica_tag, replicas_with_tag
from holdfast.endpoint import Client, LivesElsewhere
from holdfast.fleet.fleet import Fleet
from holdfast.hub import Hub

__all__ = ["ClientHomeFinder", "home_name"]

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
        if client.rebuilt or not isinstance(client.owner, ClientKey):
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
        return f"key\0{len(owner.principal)}:{owner.principal}{owner.key}"
    return f"session\0{owner!r}"
