"""Where replicas reach each other: ``tcp://HOST:PORT``, or ``unix:/PATH`` among the workers of one machine."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, UsageError

__all__ = ["PeerAddress", "bind_peer"]

_HINT = "write tcp://HOST:PORT with an address that the other replicas reach, or unix:/PATH on one machine"
_LONGEST_PATH = 100
"""Bytes. Systems allow 103 to 107 for a Unix socket."""


@dataclass(frozen=True)
class PeerAddress:
    """The address of one replica for its peers."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Read an address; raises ``UsageError``."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or len(os.fsencode(path)) > _LONGEST_PATH or "\0" in path:
                raise UsageError(f"{text!r} is no path of a Unix socket", hint=_HINT)
            return cls(path=path)
        if text.count(":") > 2 and "[" not in text and text.startswith("tcp://"):
            number, _, last = text.removeprefix("tcp://").rpartition(":")
            text = f"tcp://[{number}]:{last}"  # the address of a pod has no brackets
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise UsageError(f"{text!r} is no address for replicas", hint=_HINT) from exc
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme != "tcp" or not host or port is None or extra:
            raise UsageError(f"{text!r} is no address for replicas", hint=_HINT)
        return cls(host=host, port=port)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def bind_peer(address: PeerAddress) -> tuple[socket.socket, PeerAddress]:
    """A listening socket for an address, and the address to advertise: port 0 takes a free one.

    An address of another machine (a name, or one behind a translation) is listened for on all interfaces.
    """
    try:
        if address.path:
            return _bind_path(address.path), address
        listener = _bind_host(address)
    except OSError as exc:
        raise HoldfastError(
            f"cannot listen for other replicas on {address}: {exc.strerror or exc}",
            hint="give --advertise another port, or end the program that uses it",
        ) from exc
    return listener, replace(address, port=listener.getsockname()[1])


def _bind_host(address: PeerAddress) -> socket.socket:
    try:
        number = ipaddress.ip_address(address.host)
    except ValueError:
        return socket.create_server(("", address.port))
    family = socket.AF_INET6 if number.version == 6 else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as exc:
        if exc.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("::" if number.version == 6 else "", address.port), family=family)


def _bind_path(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()  # of a replica that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
