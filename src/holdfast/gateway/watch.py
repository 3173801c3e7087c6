"""Reads the loaded config of the gateway from its admin address.

It reads ``/config_dump``, which shows the config that runs. ``/config`` shows the file on disk, also when the
gateway did not load it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.classify import classify
from holdfast.errors import ServerFailure
from holdfast.gateway.decide import GatewayDown, GatewayRunning, GatewayView, NotWatched
from holdfast.wire.fetch import fetch

__all__ = ["AdminAddressWatch", "GatewayWatch", "NoAdminAddress"]

WITHIN = 5.0
LARGEST = 64 << 20
"""A dump repeats each route with all its policies."""


class GatewayWatch(Protocol):
    """A way to see the state of the gateway."""

    async def look(self) -> GatewayView:
        """The current state of the gateway."""


class AdminAddressWatch:
    """The admin address of a gateway, such as ``http://127.0.0.1:15000``."""

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/config_dump"

    async def look(self) -> GatewayView:
        """Read the loaded config."""
        try:
            return GatewayRunning(await fetch(self._url, within=WITHIN, largest=LARGEST))
        except ServerFailure as exc:
            return GatewayDown(classify(exc.evidence).reason)


class NoAdminAddress:
    """Used without an admin address."""

    async def look(self) -> GatewayView:
        """Report that the gateway is not watched."""
        return NotWatched()
