"""Which replica a request belongs to: the home of a client with connections of its own, and the owner of a tag."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import partial
from typing import Final

from holdfast.access import ClientKey
from holdfast.core import replica_tag, replicas_with_tag
from holdfast.endpoint import Client, LivesElsewhere
from holdfast.fleet.fleet import Fleet
from holdfast.hub import Hub

__all__ = ["ClientHomeFinder"]

_TASK_LOST: Final = "the task is on a replica that does not answer"


class ClientHomeFinder:
    """Finds the replica of a request; one for all endpoints of a hub."""

    def __init__(self, hub: Hub, fleet: Fleet) -> None:
        self._hub = hub
        self._fleet = fleet
        self._owners: dict[str, Hashable] = {}
        fleet.member.homes.using = self._is_used
        fleet.on_home_lost = self._lost

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""
        return replica_tag(self._fleet.replica)

    async def replica_of(self, tag: str) -> str | None:
        """The other replica with this tag, if it is present; its first, should two have the same."""
        if tag != self.tag and not replicas_with_tag(tag, self._fleet.member.peers):
            await self._fleet.look_again()
        found = replicas_with_tag(tag, self._fleet.member.peers)
        return next((name for name in found if name != self._fleet.replica), None)

    @property
    def long_tag(self) -> str:
        """Names this replica where another one with the same short tag must not be meant."""
        return _long_tag(self._fleet.replica)

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""
        if home == self.long_tag:
            return True
        for replica in self._fleet.member.peers:
            if _long_tag(replica) == home:
                raise LivesElsewhere(replica, _TASK_LOST)
        return False

    async def check(self, client: Client) -> None:
        """Raise ``LivesElsewhere`` if another replica has the connections of this client."""
        key = _key_of(client.owner)
        if key is None or self._fleet.peers is None or not self._fleet.peers.address:
            return  # the others could not send anything here
        home = await self._fleet.find_home(key)
        if home != self._fleet.replica:
            raise LivesElsewhere(home, find_again=partial(self._find_again, key, home))
        self._owners[key] = client.owner

    def known_elsewhere(self, client: Client) -> str | None:
        """The other replica that has the connections of a client, if one is known."""
        key = _key_of(client.owner)
        home = self._fleet.member.homes.holder(key) if key is not None else ""
        return home if home and home != self._fleet.replica else None

    def lost_connection(self, client: Client) -> bool:
        """Whether a client had connections that are gone: on an earlier home, or before its session was rebuilt."""
        key, homes = _key_of(client.owner), self._fleet.member.homes
        if key is None:
            return client.rebuilt
        return homes.is_again(key) or (client.rebuilt and not homes.is_first(key))

    async def _find_again(self, key: str, home: str, dead: bool) -> None:
        if dead:
            await self._fleet.find_home(key, instead_of=home)
        else:
            self._fleet.member.homes.forget(key)

    def _is_used(self, key: str) -> bool:
        owner = self._owners.get(key)
        if owner is not None and self._hub.registry.clients.servers_of.get(owner):
            return True
        self._owners.pop(key, None)
        return False

    def _lost(self, key: str) -> None:
        """Another replica took over: two of them must not serve one client."""
        owner = self._owners.pop(key, None)
        if owner is not None:
            self._hub.registry.clients.release(owner)


def _long_tag(replica: str) -> str:
    return hashlib.blake2s(replica.encode(), digest_size=8, person=b"task").hexdigest()


def _key_of(owner: Hashable) -> str | None:
    """Names a client in the store; None for one that is not known beyond its request."""
    if isinstance(owner, bytes):
        return hashlib.sha256(b"session\0" + owner).hexdigest()[:32]
    if isinstance(owner, ClientKey):
        said = f"key\0{len(owner.principal)}:{owner.principal}{owner.key}"
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return None
