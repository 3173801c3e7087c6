"""The listening socket: bound here, or inherited from systemd; and what systemd is told about it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NoReturn

from holdfast.core import Redactor, plain
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
        _cannot_bind(host, port, str(address[0]), exc)
    return listener


def _cannot_bind(host: str, port: int, address: str, exc: OSError) -> NoReturn:
    match exc.errno:
        case errno.EADDRINUSE:
            owner = _owner(port, address)
            what = f"port {port} of {host} is in use{f' by {owner}' if owner else ''}"
            first = "end that process" if owner else "a hub may already run there: end it"
            hint = f"{first}, use another port, or --port 0 for a free one"
        case errno.EACCES:
            what, hint = f"no permission to use port {port}", "use a port above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is not an address of this machine", "use 127.0.0.1, or 0.0.0.0 for all addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "use another --host or --port"
    raise HoldfastError(what, hint=hint) from exc


PROC = Path("/proc")
LISTENS = "0A"
"""The state of a listening socket, as ``/proc/net/tcp`` has it."""


def _owner(port: int, address: str) -> str:
    """The process that listens there; empty where the system does not tell, as for that of another user."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, address)}
    for folder in PROC.glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):  # a process of another user, or one that just ended
            if any(os.readlink(one) in sockets for one in folder.iterdir()):  # noqa: PTH115 - the target is no path
                return f"process {folder.parent.name} (`{_program(folder.parent)}`)"
    return ""


def _listening(port: int, address: str) -> Iterator[str]:
    """The inodes of the listening sockets that have this port at this address, or at all addresses."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    for table in ("tcp", "tcp6"):
        lines: list[str] = []
        with suppress(OSError):
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        for _, local, _, state, *_, inode in (line.split()[:10] for line in lines):
            host, _, number = local.partition(":")
            if state == LISTENS and int(number, 16) == port:
                found = _from_kernel(host)
                if found == wanted or found.is_unspecified or wanted.is_unspecified:
                    yield inode


def _from_kernel(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of ``/proc/net/tcp``: words of four bytes, each in the order of the machine."""
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _program(process: Path) -> str:
    """What runs: the program, and its script, module or command. More of a command line may hold a secret."""
    words = (process / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    named = [PurePath(words[0]).name, *words[1 : 3 if words[1:2] == ["-m"] else 2]]
    return Redactor().mask(plain(" ".join(word for word in named if word == "-m" or not word.startswith("-"))))


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
