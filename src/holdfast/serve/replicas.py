"""The fleet of ``holdfast serve``: the store of its replicas, in Redis or in a supervisor, and their links.

A hub is one of four: alone; a replica on Redis; a worker, whose store is its supervisor; or a worker of a fleet, whose
store is Redis, because there are more replicas than those of its machine. The process of the stdio servers is alone: it
is behind the workers, and they share.

What must never happen: two replicas with different keys that look like one fleet. Records are signed with the session
key, so a fleet does not start with a key that this machine made for itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.auth import UserTokens, UserTokenStore, find_user_keys
from holdfast.config import Config, state_folder
from holdfast.errors import HoldfastError, UsageError
from holdfast.fleet import (
    CommandUserTokens,
    Fleet,
    LocalStore,
    PeerAddress,
    Peers,
    RedisAddress,
    RedisEvents,
    RedisLeases,
    RedisStore,
    SignedStore,
    home_name,
    replica_name,
)
from holdfast.front import FleetSessions, SessionIds, SessionKeys, SessionStore
from holdfast.identity import FleetIdentity
from holdfast.keys import KeyRing
from holdfast.serve.options import Serving
from holdfast.serve.worker_link import WorkerTask

__all__ = ["FLEET_VARIABLE", "command_user_tokens", "make_fleet", "session_ids", "user_tokens_of"]

log = logging.getLogger("holdfast.serve")

FLEET_VARIABLE = "HOLDFAST_FLEET"
CA_VARIABLE = "HOLDFAST_FLEET_CA"
"""Names the file with the authority of the store's certificate, where the address does not."""


def make_fleet(serving: Serving, keys: SessionKeys) -> Fleet | None:
    """The fleet of this hub; None if it is alone."""
    worker = serving.worker.task if serving.worker is not None else None
    options = serving.options
    if worker is not None and worker.runs_stdio:
        return None  # the workers share what must be shared, and have this process behind them
    if options.advertise and not options.fleet:
        raise UsageError("--advertise needs --fleet", hint="replicas find each other through the store of a fleet")
    replica = worker.replica_of(os.getpid()) if worker is not None else replica_name()
    number = (worker.group, worker.number) if worker is not None else None
    identity = FleetIdentity(lambda: keys.ring, replica)
    if not options.fleet:
        if worker is None:
            return None
        return Fleet(
            LocalStore(worker.broker),
            replica=replica,
            peers=Peers(identity, advertise=PeerAddress(path=worker.address)),
            events=LocalStore(worker.broker),
            worker=number,
            keys=lambda: keys.ring,
            one_machine=True,
        )
    if not keys.shared:
        raise UsageError(
            "a fleet needs a session key that all its replicas have",
            hint="make one (python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > keys; chmod 600 keys), and "
            "start each replica with --session-key-file keys, or with the same HOLDFAST_SESSION_KEY",
        )
    redis = _with_ca(RedisAddress.parse(options.fleet))
    address = PeerAddress.parse(options.advertise) if options.advertise else None
    succeeds = serving.predecessor is not None
    if worker is not None:
        # During a roll the worker before this one still has the port of this number.
        address, succeeds = _address_of(worker, address), True
    return Fleet(
        SignedStore(RedisStore(redis), lambda: keys.ring, redis.fleet),
        replica=replica,
        peers=_peers(address, identity, succeeds=succeeds),
        events=RedisEvents(redis),
        worker=number,
        keys=lambda: keys.ring,
        leases=RedisLeases(redis),
        user_keys=_user_keys,
    )


def _user_keys() -> KeyRing:
    """The keys of users' logins, which all replicas have."""
    return find_user_keys(state_folder(os.environ), makes=False)


def user_tokens_of(fleet: Fleet | None, config: Config) -> UserTokenStore:
    """The logins of users: those of the fleet, or the file of this machine.

    Where servers are per user, an unusable key ends the start.
    """
    shared = fleet.users if fleet is not None else None
    tokens = shared if shared is not None else UserTokens(keeps=True)
    if any(spec.sharing == "per-user" for spec in config.servers.values()):
        tokens.check()
    return tokens


def command_user_tokens(environ: Mapping[str, str]) -> UserTokenStore:
    """The logins of users for a command: of the fleet that the variables name, or in the file of this machine."""
    if not environ.get(FLEET_VARIABLE):
        return UserTokens()
    session_keys = SessionKeys.find(environ=environ)
    if not session_keys.shared:
        raise UsageError(
            f"{FLEET_VARIABLE} is set, so the logins of users are in Redis, and a command needs the session key too",
            hint="set HOLDFAST_SESSION_KEY to the content of the file that the hubs have",
        )
    redis = _with_ca(RedisAddress.parse(environ[FLEET_VARIABLE]))
    return CommandUserTokens(redis, keys=_user_keys(), session_keys=session_keys.ring)


def _with_ca(redis: RedisAddress) -> RedisAddress:
    """The address with the authority that the variable names, unless the address names one itself."""
    file = redis.ca_file or os.environ.get(CA_VARIABLE) or None
    if file is not None and not os.access(file, os.R_OK):
        raise UsageError(
            f"the authority of the fleet's store cannot be read: {file}",
            hint=f"check `?ca=` of the address, or {CA_VARIABLE}",
        )
    return replace(redis, ca_file=file)


def _address_of(worker: WorkerTask, advertised: PeerAddress | None) -> PeerAddress:
    """Where a worker is reached: at its own Unix socket, or at a port of its own after the advertised one."""
    if advertised is None or advertised.path:
        return PeerAddress(path=worker.address)
    return replace(advertised, port=advertised.port + worker.number - 1) if advertised.port else advertised


def _peers(address: PeerAddress | None, identity: FleetIdentity, *, succeeds: bool) -> Peers:
    """The link to the other replicas. A successor takes a free port while its predecessor has the given one."""
    if address is None:
        log.warning(
            "other replicas cannot pass anything on to this one: answers to questions of servers, cancellations and "
            "broken streams are lost if they come in there; give it --advertise tcp://HOST:PORT"
        )
    try:
        return Peers(identity, advertise=address)
    except HoldfastError:
        if not succeeds or address is None or address.path:
            raise
        peers = Peers(identity, advertise=replace(address, port=0))
        log.info("the hub before this one still uses %s: other replicas reach this one at %s", address, peers.address)
        return peers


def session_ids(keys: SessionKeys, file: Path | None, fleet: Fleet | None) -> SessionIds:
    """The ids and the states of sessions; the replicas of a fleet share what sessions have."""
    if fleet is None:
        return SessionIds(keys, SessionStore(file))
    wall = fleet.state.clock.time
    return SessionIds(
        keys,
        FleetSessions(fleet, keys, file, wall=wall),
        home=home_name(fleet.replica),
        wall=wall,
        events=fleet.events,
        one_machine=fleet.one_machine,
    )
