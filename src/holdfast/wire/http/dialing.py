"""A connection to a name, whose addresses are tried one after the other (RFC 8305), or to a Unix socket.

A Unix socket has no TLS: the kernel says who is at the other end, to both sides. A peer of another user is refused
here as it is by the hub's listener, so what comes over such a connection is said by a program of this user.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

__all__ = ["NO_LIMIT", "Dialed", "dial", "dial_unix", "unix_peer_uid"]

STAGGER_SECONDS: Final = 0.25
"""Before the next address of a name is tried beside the first (RFC 8305)."""

NO_LIMIT: Final = 24 * 3600.0
"""For a TLS handshake. An event loop ends one after a minute otherwise, and the caller may allow more."""


class Dialed(Protocol):
    """The protocol of a connection, which can be closed at once."""

    def abort(self) -> None:
        """Close it now."""


_P = TypeVar("_P", bound=Any)


async def dial(make: Callable[[], _P], host: str, port: int, tls: ssl.SSLContext | None) -> _P:
    """A connection to whichever address of a name answers first; each next one is tried a moment later.

    The caller bounds the time.
    """
    loop = asyncio.get_running_loop()
    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"ssl": tls, "server_hostname": host, "ssl_handshake_timeout": NO_LIMIT}

    async def one(address: str) -> _P:
        _, protocol = await loop.create_connection(make, address, port, **secure)
        return protocol

    addresses = deque(await _addresses(host, port))
    if len(addresses) == 1:
        return await one(addresses[0])
    under_way: set[asyncio.Task[_P]] = set()
    failures: list[BaseException] = []
    try:
        while addresses or under_way:
            if addresses:
                under_way.add(loop.create_task(one(addresses.popleft())))
            wait = STAGGER_SECONDS if addresses else None
            done, _ = await asyncio.wait(under_way, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (failure := task.exception()) is None:
                    under_way.discard(task)
                    return task.result()
                under_way.discard(task)
                failures.append(failure)
        raise failures[0]
    finally:
        for task in under_way:
            task.cancel()
        for outcome in await asyncio.gather(*under_way, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.abort()


async def dial_unix(make: Callable[[], _P], path: str) -> _P:
    """A connection to a Unix socket of this user. The caller bounds the time."""
    try:
        transport, protocol = await asyncio.get_running_loop().create_unix_connection(make, path)
    except FileNotFoundError as exc:  # no socket at that path means the same as a port on which nothing listens
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from exc
    if unix_peer_uid(transport.get_extra_info("socket")) != os.geteuid():
        transport.abort()
        raise PermissionError(errno.EACCES, "another user listens on the Unix socket")
    return protocol


_LINUX_CREDENTIALS: Final = struct.Struct("=iII")
"""``struct ucred``: pid, uid, gid."""
_BSD_CREDENTIALS: Final = struct.Struct("=II")
"""The beginning of ``struct xucred``: its version, and the uid."""


def unix_peer_uid(connection: Any) -> int | None:
    """The user at the other end of a Unix socket, as the kernel noted it at ``connect``; None if it is not known."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            noted = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX_CREDENTIALS.size)
            return int(_LINUX_CREDENTIALS.unpack(noted)[1])
        noted = connection.getsockopt(0, 1, _BSD_CREDENTIALS.size)  # SOL_LOCAL, LOCAL_PEERCRED
        return int(_BSD_CREDENTIALS.unpack(noted)[1])
    except (OSError, struct.error):
        return None


async def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a name, the families in turn: one that does not work must not hold up the other."""
    if ":" in host or host.replace(".", "").isdigit():
        return [host]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, []).append(str(address[0]))
    lists = [list(dict.fromkeys(addresses)) for addresses in by_family.values()]
    longest = max(map(len, lists), default=0)
    return [addresses[turn] for turn in range(longest) for addresses in lists if turn < len(addresses)]
