"""Which user of this machine is at the other end of a TCP connection (SEC-10). Linux answers it; other systems do not.

For a Unix socket every system does, without this module: see ``wire.http.pool``.

The kernel is asked by ``sock_diag`` for the one socket whose address and port are those of the peer. It must be in the
state ESTABLISHED: a socket whose owner closed it has no owner any more, and reads as root. So an answer that is not
clear is no answer, and the caller must refuse the connection.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

__all__ = ["PeerUids", "has_left"]

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
