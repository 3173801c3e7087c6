"""Bare TCP connects to the address of a server that was not there: they find out when it listens again (LIFE-22).

A look is no dial: it sends nothing, uses no budget and counts for nothing. The lifecycle says when to look.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.abc

from holdfast.config import UNIX, ServerSpec
from holdfast.core import events as on

__all__ = ["AddressChecks", "is_listening", "watch_address"]


def watch_address(server: ServerSpec) -> tuple[str, int] | None:
    """The address for a bare TCP connect; None behind a proxy, for a child process and for a Unix socket."""
    if server.transport == "stdio" or server.hub.startswith(UNIX):
        return None
    url = urlsplit(server.url)
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (KeyError, ValueError):
        return None
    if url.hostname is None or (url.scheme in getproxies() and not proxy_bypass(url.hostname)):
        return None
    return url.hostname, port


ADDRESS_CHECK_SECONDS = 1.0
"""A host that takes longer to accept a connection is not listening yet."""


async def is_listening(host: str, port: int) -> bool:
    """Whether a connection was accepted."""
    try:
        with anyio.fail_after(ADDRESS_CHECK_SECONDS):
            stream = await anyio.connect_tcp(host, port, happy_eyeballs_delay=0.1)
    except (OSError, TimeoutError, ValueError):  # ValueError: a host name that no resolver accepts
        return False
    await anyio.aclose_forcefully(stream)
    return True


class AddressChecks:
    """The looks of one slot that are under way. Each ends with an event."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, handle: Callable[[on.Event], object]) -> None:
        self._tasks = tasks
        self._handle = handle
        self._scopes: dict[int, anyio.CancelScope] = {}

    def __repr__(self) -> str:
        return f"<AddressChecks {sorted(self._scopes)}>"

    def start(self, spec: ServerSpec, number: int) -> None:
        """Look once whether the server listens."""
        self._tasks.start_soon(self._look, watch_address(spec), number, name=f"{spec.id} address check {number}")

    def stop(self, number: int) -> None:
        """End a look; it reports nothing."""
        if (scope := self._scopes.get(number)) is not None:
            scope.cancel()

    async def _look(self, address: tuple[str, int] | None, number: int) -> None:
        with anyio.CancelScope() as scope:
            self._scopes[number] = scope
            listening = address is not None and await is_listening(*address)
            self._handle(on.AddressChecked(number, listening))
        self._scopes.pop(number, None)
