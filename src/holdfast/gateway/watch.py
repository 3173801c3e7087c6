"""Look at what the gateway has loaded, at its admin address.

``/config_dump`` is asked, which shows what runs. ``/config`` would not do: there, gateways show
the file as it stands on disk, whether they took it or not.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.classify import classify
from holdfast.errors import ServerFailure
from holdfast.gateway.decide import Down, NotWatched, Running, Sight
from holdfast.wire.fetch import fetch

__all__ = ["Admin", "Unwatched", "Watch"]

WITHIN = 5.0
LARGEST = 64 << 20
"""A dump names every route with all its policies, several times over."""


class Watch(Protocol):
    """Something that can look at the gateway."""

    async def look(self) -> Sight:
        """What the gateway shows now."""


class Admin:
    """A gateway's admin address: ``http://127.0.0.1:15000``."""

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/config_dump"

    async def look(self) -> Sight:
        """Ask for everything that it has loaded."""
        try:
            return Running(await fetch(self._url, within=WITHIN, largest=LARGEST))
        except ServerFailure as exc:
            return Down(classify(exc.evidence).reason)


class Unwatched:
    """Stands where no admin address was given."""

    async def look(self) -> Sight:
        """There is nothing to look at."""
        return NotWatched()
