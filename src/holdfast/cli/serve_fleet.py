"""The fleet options of ``holdfast serve``: a store in Redis, or the broker of a supervisor."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.front import SessionKeys
from holdfast.hub import Fleet, LocalStore, RedisAddress, RedisStore, SignedStore

__all__ = ["FLEET_VARIABLE", "WORKER_VARIABLE", "WorkerLink", "make_fleet", "worker_link"]

FLEET_VARIABLE = "HOLDFAST_FLEET"
WORKER_VARIABLE = "HOLDFAST_WORKER"
"""Set by the supervisor for its workers: the descriptor of the listening socket, and the path of the broker."""


@dataclass(frozen=True)
class WorkerLink:
    """What a worker gets from its supervisor."""

    listener: socket.socket
    broker: Path
    number: int
    waits: bool
    """Whether it connects its servers before it accepts: it takes the place of another worker."""


def worker_link(environ: MutableMapping[str, str]) -> WorkerLink | None:
    """The supervisor's message to this process; None if there is no supervisor.

    The variable is removed, so that no child process takes it for its own.
    """
    text = environ.pop(WORKER_VARIABLE, "")
    if not text:
        return None
    read = json.loads(text)
    listener = socket.socket(fileno=int(read["fd"]))
    listener.set_inheritable(False)
    return WorkerLink(listener, Path(read["broker"]), int(read["number"]), bool(read["waits"]))


def make_fleet(url: str | None, keys: SessionKeys, worker: WorkerLink | None) -> Fleet | None:
    """The fleet of this hub; None if it is alone."""
    if url is not None:
        if not keys.shared:
            raise UsageError(
                "a fleet needs a session key that all its replicas have",
                hint="give each of them the same --session-key-file FILE, or the same HOLDFAST_SESSION_KEY",
            )
        address = RedisAddress.parse(url)
        return Fleet(SignedStore(RedisStore(address), lambda: keys.material, address.fleet))
    if worker is not None:
        name = f"{socket.gethostname()}-worker-{worker.number}-{os.getpid()}"
        return Fleet(LocalStore(worker.broker), replica=name)
    return None
