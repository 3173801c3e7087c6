"""What this process knows of servers from earlier connections: their protocol era, and that they were up."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config.spec import ServerSpec

if TYPE_CHECKING:
    from holdfast.wire.handshake import Era

__all__ = ["CachedServer", "Memory"]

CACHE_SIZE = 4096
"""How many servers are remembered; the least recently used is dropped first."""


@dataclass
class CachedServer:
    """What is known of one server."""

    era: Era | None = None
    connected: bool = False


class Memory:
    """Keyed by what a server is (its address or command), not by its name."""

    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[object, ...], CachedServer] = OrderedDict()

    def of(self, spec: ServerSpec) -> CachedServer:
        """The entry of a server; the code that dials keeps it up to date."""
        key = (spec.transport, spec.url, spec.command, spec.args, spec.cwd)
        known = self._servers.setdefault(key, CachedServer())
        self._servers.move_to_end(key)
        while len(self._servers) > CACHE_SIZE:
            self._servers.popitem(last=False)
        return known
