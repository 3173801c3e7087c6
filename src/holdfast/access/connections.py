"""How many connections clients may hold, before and after their first valid request (SEC-11, SEC-10).

A connection waits until a request on it was accepted. Few may wait: in all, and from one peer. Over a limit the oldest
one that waits is closed, of the peer that has the most: so a peer that opens connections and sends nothing pushes out
itself, and a client that sends its request at once is served. After that a connection counts for its principal.

A peer is a user of this machine where the kernel names one, else an address; an IPv6 network of 64 bits is one peer,
because one host has it whole.

``PeerUids`` says which user of this machine is at the other end of a TCP connection. Linux answers it; other systems do
not. For a Unix socket every system does, without this module: see ``wire.http.pool``. The kernel is asked by
``sock_diag`` for the one socket whose address and port are those of the peer. It must be in the state ESTABLISHED: a
socket whose owner closed it has no owner any more, and reads as root. So an answer that is not clear is no answer, and
the caller must refuse the connection.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final

__all__ = ["Admission", "ClientPeer", "ConnectionLimits", "PeerUids", "connections_allowed", "has_left", "peer_at"]

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
        if self.principal is not None:
            return True
        if most is not None and self.limits.held[principal] >= most:
            return False
        # A connection that was pushed out while its request was judged is not counted: it is closed already.
        if self.limits.leave(self):
            self.principal = principal
            self.limits.held[principal] += 1
        return True

    def end(self) -> None:
        """The connection is closed. Idempotent."""
        if self.principal is None:
            self.limits.leave(self)
            return
        held, principal, self.principal = self.limits.held, self.principal, None
        held[principal] -= 1
        if not held[principal]:
            del held[principal]


class ConnectionLimits:
    """The places of all connections of one listener. Half of them may wait, a quarter for one peer, within a bound."""

    def __init__(self, most: Callable[[], int] = connections_allowed) -> None:
        self._most = most
        self._waiting: dict[str, dict[Admission, None]] = {}
        """By peer, the oldest first."""
        self.held: Counter[str] = Counter()
        """The accepted connections of each principal."""
        self.closed = 0
        """How many connections were closed, or not taken, because there were too many."""

    @property
    def open(self) -> int:
        """How many connections are open."""
        return self._waiting_in_all() + self.held.total()

    def enter(self, peer: ClientPeer) -> Admission | None:
        """Return a place for a new connection; None if every place belongs to a principal."""
        most = self._most()
        if self.held.total() >= most:
            self.closed += 1
            return None
        admission = Admission(peer, self, peer.key)
        own = self._waiting.get(admission.key, {})
        if len(own) >= max(min(most // 4, MOST_WAITING // 2), 2):
            self._close_oldest(own)
        elif self._waiting_in_all() >= max(min(most // 2, MOST_WAITING), 4) or self.open >= most:
            self._close_oldest(max(self._waiting.values(), key=len))
        self._waiting.setdefault(admission.key, {})[admission] = None
        return admission

    def close_one(self) -> bool:
        """Close a connection that waits, because there are no descriptors left; False if none waits."""
        if not self._waiting:
            return False
        self._close_oldest(max(self._waiting.values(), key=len))
        return True

    def _waiting_in_all(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _close_oldest(self, waiting: dict[Admission, None]) -> None:
        oldest = next(iter(waiting))
        self.leave(oldest)
        self.closed += 1
        oldest.close()

    def leave(self, admission: Admission) -> bool:
        """A connection waits no more; False if it did not wait."""
        waiting = self._waiting.get(admission.key)
        if waiting is None or admission not in waiting:
            return False
        del waiting[admission]
        if not waiting:
            del self._waiting[admission.key]
        return True


_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_ESTABLISHED: Final = 1
_CLOSE_WAIT: Final = 8
_ANY_COOKIE: Final = b"\xff" * 8

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_INTERFACE = struct.Struct("=I")
_OWNER = struct.Struct("=II")
"""In the answer: the uid and the inode."""

_ID_BYTES: Final = 48
_OWNER_AT: Final = _HEADER.size + 4 + _ID_BYTES + 12

ANSWER_SECONDS: Final = 1.0
"""The kernel answers in microseconds, while the question is sent. More is a fault."""


class PeerUids:
    """Asks the kernel who owns the other end of a connection. Use ``open()`` to make one."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink
        self._sequence = 0
        self._unknown = _uid_of_unmapped_users()

    @classmethod
    def open(cls) -> PeerUids | None:
        """Return one that was tried on a connection of this process; None where the system cannot answer."""
        with suppress(OSError, AttributeError):
            netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
            netlink.settimeout(ANSWER_SECONDS)
            uids = cls(netlink)
            if uids._knows_itself():
                return uids
            netlink.close()
        return None

    def close(self) -> None:
        """Ask no more."""
        self._netlink.close()

    def of(self, connection: socket.socket) -> int | None:
        """Return the uid of the peer; None if it is not clear, or if the peer is on another machine."""
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            question = _question(connection.family, connection.getpeername(), connection.getsockname())
            self._sequence = (self._sequence + 1) & 0xFFFFFFFF
            header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._sequence, 0)
            self._netlink.send(header + question)
            return self._answer(question)
        except (OSError, ValueError, struct.error):
            return None

    def _answer(self, question: bytes) -> int | None:
        """Read answers up to that of this question; one of an earlier question, which was given up, is passed over."""
        while True:
            data = self._netlink.recv(4096)
            _, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if sequence == self._sequence:
                break
        if kind != _SOCK_DIAG_BY_FAMILY or len(data) < _OWNER_AT + _OWNER.size:
            return None  # the kernel knows no such socket
        state = data[_HEADER.size + 1]
        asked = question[_REQUEST.size : _REQUEST.size + _PORTS.size]
        if state != _ESTABLISHED or data[_HEADER.size + 4 : _HEADER.size + 4 + _PORTS.size] != asked:
            return None  # a listening socket on that port, or one that is being closed
        uid, inode = _OWNER.unpack_from(data, _OWNER_AT)
        return int(uid) if inode and uid != self._unknown else None

    def _knows_itself(self) -> bool:
        with socket.socket() as listener, socket.socket() as client:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            client.settimeout(ANSWER_SECONDS)
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                return self.of(accepted) == os.geteuid()


def has_left(connection: socket.socket) -> bool:
    """Whether the peer has closed its end already, as a probe of a port does. Linux alone tells it."""
    with suppress(OSError, AttributeError):
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
    return False


def _question(family: int, peer: tuple[object, ...], own: tuple[object, ...]) -> bytes:
    """The question for the socket of the peer, as the kernel stores it: a mapped IPv4 address is IPv4."""
    source, target = _packed(family, str(peer[0])), _packed(family, str(own[0]))
    asked = socket.AF_INET if len(source) == len(target) == 4 else socket.AF_INET6
    interface = peer[3] if family == socket.AF_INET6 and asked == socket.AF_INET6 and len(peer) > 3 else 0
    ports = _PORTS.pack(peer[1], own[1])
    addresses = source.ljust(16, b"\0") + target.ljust(16, b"\0")
    return (
        _REQUEST.pack(asked, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED)
        + ports
        + addresses
        + _INTERFACE.pack(interface)
        + _ANY_COOKIE
    )


def _packed(family: int, address: str) -> bytes:
    if family == socket.AF_INET:
        return socket.inet_aton(address)
    if family != socket.AF_INET6:
        raise ValueError("not TCP")
    plain = IPv6Address(address.partition("%")[0])
    return plain.ipv4_mapped.packed if plain.ipv4_mapped is not None else plain.packed


def _uid_of_unmapped_users() -> int | None:
    """The uid that stands for every user that this user namespace does not know; None if it knows all users."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        if lines == ["0", "0", "4294967295"]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
