"""The socket that the hub listens on: who could reach it is checked first, and whatever goes wrong is said."""

from __future__ import annotations

import errno
import socket
from typing import NoReturn

from holdfast.core.hosts import is_loopback
from holdfast.errors import HoldfastError, UsageError

__all__ = ["bind", "refuse_strangers"]


def refuse_strangers(host: str, *, can_verify: bool) -> None:
    """Beyond this machine nobody is served whom a token does not tell apart (SEC-2)."""
    if not is_loopback(host) and not can_verify:
        raise UsageError(
            f"{host} can be reached from other machines, and there is no token to tell callers apart",
            hint="give --token-file FILE, or listen on 127.0.0.1",
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens; whatever goes wrong is said with what to do."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (socket.gaierror, UnicodeError) as exc:
        raise HoldfastError(
            f"the host `{host}` cannot be resolved", hint="write an address of this machine, as in --host 127.0.0.1"
        ) from exc
    # The protocol is named: asyncio turns Nagle's algorithm off for no other, and an answer in two parts waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        _cannot_bind(host, port, exc)
    return listener


def _cannot_bind(host: str, port: int, exc: OSError) -> NoReturn:
    match exc.errno:
        case errno.EADDRINUSE:
            what = f"port {port} of {host} is in use"
            hint = "is a hub running there already? Choose another port, or --port 0 for any that is free"
        case errno.EACCES:
            what, hint = f"port {port} may not be used", "choose one above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is no address of this machine", "use 127.0.0.1, or 0.0.0.0 for all of its addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "choose another --host or --port"
    raise HoldfastError(what, hint=hint) from exc
