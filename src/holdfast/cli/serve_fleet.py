"""The fleet of ``holdfast serve``: a store in Redis that replicas share, or the broker of a supervisor."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.front import SessionKeys
from holdfast.hub import Fleet, LocalStore, RedisAddress, RedisStore, SignedStore

if TYPE_CHECKING:
    from holdfast.cli.worker_link import WorkerLink

__all__ = ["FLEET_VARIABLE", "make_fleet"]

FLEET_VARIABLE = "HOLDFAST_FLEET"


def make_fleet(url: str | None, keys: SessionKeys, worker: WorkerLink | None = None) -> Fleet | None:
    """The fleet of this hub; None if it is alone. A worker can be reached at its Unix socket."""
    replica, address = None, ""
    if worker is not None:
        replica = f"{socket.gethostname()}-worker-{worker.task.number}-{os.getpid()}"
        address = f"unix:{worker.task.address}"
    if url is None:
        return Fleet(LocalStore(worker.task.broker), replica=replica, address=address) if worker is not None else None
    if not keys.shared:
        raise UsageError(
            "a fleet needs a session key that all its replicas have",
            hint="give each of them the same --session-key-file FILE, or the same HOLDFAST_SESSION_KEY",
        )
    redis = RedisAddress.parse(url)
    store = SignedStore(RedisStore(redis), lambda: keys.material, redis.fleet)
    return Fleet(store, replica=replica, address=address)
