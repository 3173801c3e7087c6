"""The listening socket: bound here, or inherited from systemd; and what systemd is told about it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import NoReturn

from holdfast.errors import HoldfastError, UsageError

__all__ = ["bind", "inherited_socket", "notify_ready", "notify_successor"]

FIRST_INHERITED = 3
"""The descriptor of the first socket that systemd passes."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens. Each error has a hint."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (socket.gaierror, UnicodeError) as exc:
        raise HoldfastError(
            f"the host `{host}` cannot be resolved", hint="use an address of this machine, for example --host 127.0.0.1"
        ) from exc
    # asyncio disables Nagle's algorithm only if the protocol is IPPROTO_TCP. Else an answer in two parts waits 40 ms.
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
            hint = "a hub may already run there. Use another port, or --port 0 for a free one"
        case errno.EACCES:
            what, hint = f"no permission to use port {port}", "use a port above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is not an address of this machine", "use 127.0.0.1, or 0.0.0.0 for all addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "use another --host or --port"
    raise HoldfastError(what, hint=hint) from exc


def inherited_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd passes to this process; None if there is none.

    The variables are removed, so that no child process takes the socket for its own.
    """
    meant, count = environ.get("LISTEN_PID") == str(os.getpid()), environ.get("LISTEN_FDS", "")
    if not meant:
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    if count != "1":
        raise UsageError(f"systemd passes {count} sockets", hint="the socket unit must have exactly one ListenStream")
    listener = socket.socket(fileno=FIRST_INHERITED)
    listener.set_inheritable(False)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        raise UsageError("systemd passes a socket that is not TCP", hint="write ListenStream=127.0.0.1:4653")
    return listener


def notify_ready(environ: Mapping[str, str]) -> None:
    """Tell systemd that the hub listens (``Type=notify``). Does nothing without systemd."""
    _notify(environ, "READY=1")


def notify_successor(environ: Mapping[str, str], pid: int) -> None:
    """Tell systemd which process is the hub from now on. It believes that only of a process of the same unit."""
    _notify(environ, f"MAINPID={pid}")


def _notify(environ: Mapping[str, str], message: str) -> None:
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notify.send(message.encode())
