"""The fleet option of ``holdfast serve``: a store in Redis that the replicas share."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.front import FleetSessions, SessionIds, SessionKeys, SharedEvents
from holdfast.hub import Fleet, RedisAddress, RedisEvents, RedisStore, SignedStore

__all__ = ["FLEET_VARIABLE", "make_fleet", "share_sessions"]

FLEET_VARIABLE = "HOLDFAST_FLEET"


def make_fleet(url: str | None, keys: SessionKeys) -> Fleet | None:
    """The fleet of this hub; None if it is alone."""
    if url is None:
        return None
    if not keys.shared:
        raise UsageError(
            "a fleet needs a session key that all its replicas have",
            hint="give each of them the same --session-key-file FILE, or the same HOLDFAST_SESSION_KEY",
        )
    address = RedisAddress.parse(url)
    store = SignedStore(RedisStore(address), lambda: keys.material, address.fleet)
    return Fleet(store, events=RedisEvents(address))


def share_sessions(ids: SessionIds, fleet: Fleet | None) -> None:
    """Let the replicas of a fleet share what sessions have; before the front is made."""
    if fleet is None:
        return
    ids.store = FleetSessions(fleet, ids.keys, ids.store)
    if fleet.events is not None:
        ids.events = SharedEvents(
            fleet.events, ids.keys, replica=fleet.replica, replicas=lambda: tuple(fleet.member.peers)
        )
