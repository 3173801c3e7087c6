"""How many connections clients may hold, before and after their first valid request (SEC-11, SEC-10).

A connection waits until a request on it was accepted. Few may wait: in all, and from one peer. Over a limit the oldest
one that waits is closed, of the peer that has the most: so a peer that opens connections and sends nothing pushes out
itself, and a client that sends its request at once is served. After that a connection counts for its principal.

A peer is a user of this machine where the kernel names one, else an address; an IPv6 network of 64 bits is one peer,
because one host has it whole.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["Admission", "ClientPeer", "ConnectionLimits", "connections_allowed", "peer_at"]

MOST_CONNECTIONS: Final = 8_192
FEWEST_CONNECTIONS: Final = 16

MOST_WAITING: Final = 1_024
"""Connections without an accepted request, at most; half of them for one peer. Each may hold what it sent last."""


@dataclass(frozen=True, slots=True)
class ClientPeer:
    """The other end of a connection."""

    address: str
    """Its IP address, as text; a Unix socket has none."""
    uid: int | None = None
    """The user, if it is on this machine and the kernel names one."""
    left: bool = False
    """Whether it had closed the connection when that was accepted: then the kernel names no user."""

    @property
    def name(self) -> str:
        """What stands in logs: ``uid 1000 at 127.0.0.1``."""
        return self.address if self.uid is None else f"uid {self.uid} at {self.address}"

    @property
    def key(self) -> str:
        """Equal for connections that count together."""
        if self.uid is not None:
            return f"uid {self.uid}"
        try:
            found = ip_address(self.address.partition("%")[0])
        except ValueError:
            return self.address
        if isinstance(found, IPv6Address):
            return str(found.ipv4_mapped) if found.ipv4_mapped else str(IPv6Network((found, 64), strict=False))
        return str(found)


def peer_at(name: object, uid: int | None = None, *, left: bool = False) -> ClientPeer:
    """Return the peer with this socket name."""
    return ClientPeer(str(name[0]) if isinstance(name, tuple) and name else "a Unix socket", uid, left)


def connections_allowed() -> int:
    """Return how many connections leave half of the process's descriptors to its servers and files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    half = soft // 2 if soft != resource.RLIM_INFINITY else MOST_CONNECTIONS
    return max(FEWEST_CONNECTIONS, min(half, MOST_CONNECTIONS))


@dataclass(eq=False, slots=True)
class Admission:
    """One connection's place. It starts among those that wait."""

    peer: ClientPeer
    limits: ConnectionLimits = field(repr=False)
    key: str = ""
    principal: str | None = None
    """For whom it counts, once a request on it was accepted."""
    close: Callable[[], object] = lambda: None
    """Closes the connection."""

    def accepted(self, principal: str, most: int | None) -> bool:
        """Count the connection for a principal; False if that one has its most. The first principal keeps it."""
        return self.principal is not None or self.limits.accept(self, principal, most)

    def end(self) -> None:
        """The connection is closed."""
        self.limits.end(self)


class ConnectionLimits:
    """The places of all connections of one listener. Half of them may wait, a quarter for one peer, within a bound."""

    def __init__(self, most: Callable[[], int] = connections_allowed) -> None:
        self._most = most
        self._waiting: dict[str, dict[Admission, None]] = {}
        self._number_waiting = 0
        self._held: Counter[str] = Counter()
        self._number_held = 0
        self.closed = 0
        """How many connections were closed, or not taken, because there were too many."""

    @property
    def open(self) -> int:
        """How many connections are open."""
        return self._number_waiting + self._number_held

    def enter(self, peer: ClientPeer) -> Admission | None:
        """Return a place for a new connection; None if every place belongs to a principal."""
        most = self._most()
        if self._number_held >= most:
            self.closed += 1
            return None
        admission = Admission(peer, self, peer.key)
        own = self._waiting.get(admission.key, {})
        if len(own) >= max(min(most // 4, MOST_WAITING // 2), 2):
            self._close_oldest(own)
        elif self._number_waiting >= max(min(most // 2, MOST_WAITING), 4) or self.open >= most:
            self._close_oldest(max(self._waiting.values(), key=len))
        self._waiting.setdefault(admission.key, {})[admission] = None
        self._number_waiting += 1
        return admission

    def close_one(self) -> bool:
        """Close a connection that waits, because there are no descriptors left; False if none waits."""
        if not self._waiting:
            return False
        self._close_oldest(max(self._waiting.values(), key=len))
        return True

    def accept(self, admission: Admission, principal: str, most: int | None) -> bool:
        """Count a connection for a principal; see ``Admission.accepted``."""
        if most is not None and self._held[principal] >= most:
            return False
        if self._leave(admission):
            admission.principal = principal
            self._held[principal] += 1
            self._number_held += 1
        return True

    def end(self, admission: Admission) -> None:
        """A connection is closed. Idempotent."""
        if admission.principal is None:
            self._leave(admission)
            return
        self._held[admission.principal] -= 1
        if not self._held[admission.principal]:
            del self._held[admission.principal]
        self._number_held -= 1
        admission.principal = None

    def _close_oldest(self, waiting: dict[Admission, None]) -> None:
        oldest = next(iter(waiting))
        self._leave(oldest)
        self.closed += 1
        oldest.close()

    def _leave(self, admission: Admission) -> bool:
        waiting = self._waiting.get(admission.key)
        if waiting is None or admission not in waiting:
            return False
        del waiting[admission]
        self._number_waiting -= 1
        if not waiting:
            del self._waiting[admission.key]
        return True
