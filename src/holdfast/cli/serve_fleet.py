"""The fleet options of ``holdfast serve``: a store in Redis that the replicas share, and where they reach this one."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, UsageError
from holdfast.front import SessionKeys
from holdfast.hub import Fleet, PeerAddress, Peers, RedisAddress, RedisStore, SignedStore

if TYPE_CHECKING:
    from holdfast.cli.serve_run import ServeOptions

__all__ = ["FLEET_VARIABLE", "make_fleet"]

log = logging.getLogger("holdfast.serve")

FLEET_VARIABLE = "HOLDFAST_FLEET"


def make_fleet(serving: ServeOptions, keys: SessionKeys) -> Fleet | None:
    """The fleet of this hub; None if it is alone."""
    if serving.fleet is None:
        if serving.advertise is not None:
            raise UsageError("--advertise needs --fleet", hint="replicas find each other through the store of a fleet")
        return None
    if not keys.shared:
        raise UsageError(
            "a fleet needs a session key that all its replicas have",
            hint="give each of them the same --session-key-file FILE, or the same HOLDFAST_SESSION_KEY",
        )
    address = RedisAddress.parse(serving.fleet)
    peers = _peers(serving.advertise, keys, address.fleet, succeeds=serving.predecessor is not None)
    return Fleet(SignedStore(RedisStore(address), lambda: keys.material, address.fleet), peers=peers)


def _peers(advertise: str | None, keys: SessionKeys, fleet: str, *, succeeds: bool) -> Peers:
    """The link to the other replicas. A successor takes a free port while its predecessor has the given one."""
    address = PeerAddress.parse(advertise) if advertise is not None else None
    try:
        return Peers(lambda: keys.material, fleet, advertise=address)
    except HoldfastError:
        if not succeeds or address is None or address.path:
            raise
        peers = Peers(lambda: keys.material, fleet, advertise=replace(address, port=0))
        log.info("the hub before this one still uses %s: other replicas reach this one at %s", address, peers.address)
        return peers
