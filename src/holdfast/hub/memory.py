"""What this process has learned of servers: which era they speak, and that they were up."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config.spec import ServerSpec

if TYPE_CHECKING:
    from holdfast.wire.handshake import Era

__all__ = ["Memory", "Remembered"]

ROOM = 4096
"""How many servers are remembered; the longest unused is forgotten first."""


@dataclass
class Remembered:
    """One server, as this process knows it."""

    era: Era | None = None
    connected: bool = False


class Memory:
    """Remembers by what a server is (its address or command), not by what it is called."""

    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[object, ...], Remembered] = OrderedDict()

    def of(self, spec: ServerSpec) -> Remembered:
        """What is known of a server; kept up to date by whoever dials it."""
        key = (spec.transport, spec.url, spec.command, spec.args, spec.cwd)
        known = self._servers.setdefault(key, Remembered())
        self._servers.move_to_end(key)
        while len(self._servers) > ROOM:
            self._servers.popitem(last=False)
        return known
