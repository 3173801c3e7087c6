"""The running hub that serves this configuration. It is asked once, while the checks run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio

from holdfast.control.client import Control
from holdfast.control.find import Found, find_hub, running_hubs
from holdfast.control.models import HubView, Server
from holdfast.errors import HoldfastError, NoHub

__all__ = ["LiveHub", "hub_of"]

ASKING_SECONDS = 3.0
"""A hub on this machine answers in milliseconds."""


def hub_of(config: Path | None) -> Found | None:
    """The hub that serves this file, or the one that the environment names, or None."""
    try:
        named = find_hub(config=config)
    except NoHub:
        named = None
    path = str(config.absolute()) if config is not None else None
    if named is not None and named not in running_hubs():
        return named  # the environment names its address
    return next((hub for hub in running_hubs() if path is not None and hub.config == path), None)


class LiveHub:
    """The state of a running hub at the time of the question."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.view: HubView | None = None
        self.error = ""
        self._servers: Mapping[str, Server] = {}
        self._asked = anyio.Event()

    async def ask(self) -> None:
        """Ask it for all servers; a failure is kept as a message."""
        try:
            with anyio.fail_after(ASKING_SECONDS):
                async with Control(self.found) as hub:
                    self.view = await hub.hub()
                    self._servers = {server.id: server for server in (await hub.servers()).servers}
        except TimeoutError:
            self.error = f"it did not answer within {ASKING_SECONDS:g} s"
        except HoldfastError as exc:
            self.error = exc.message
        finally:
            self._asked.set()

    async def server(self, name: str) -> Server | None:
        """The hub's state of this server; None if the hub does not have it or did not answer."""
        await self._asked.wait()
        return self._servers.get(name)
