"""Loaders for the tests: real transports, a memory of their own, and sleeps that are noted, not slept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.read import spec_from_connection
from holdfast.config.settings import LoadPolicy, Settings
from holdfast.config.spec import Config
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from tests.peers.http_fault import Exchange
from tests.peers.mcp_http import McpPeer

__all__ = ["Naps", "StallingPeer", "http", "loader"]


class Naps:
    """Stands for ``anyio.sleep``: keeps what was asked for and returns at once."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


class StallingPeer(McpPeer):
    """A healthy server that leaves its ``nth`` request without an answer, for as long as the client waits."""

    def __init__(self, nth: int, **options: Any) -> None:
        super().__init__(**options)
        self._nth = nth

    async def _answer(self, exchange: Exchange) -> None:
        if len(self.requests) == self._nth:
            self.slow_started.set()
            await exchange.gone()
        else:
            await super()._answer(exchange)


def http(url: str, **more: object) -> dict[str, object]:
    """A connection to a streamable HTTP server."""
    return {"transport": "streamable_http", "url": url, **more}


def loader(
    connections: Mapping[str, Mapping[str, Any]],
    *,
    memory: ServerCache | None = None,
    naps: Naps | None = None,
    chance: float = 0.0,
    **policy: Any,
) -> Loader:
    """A loader of these connections that knows nothing yet; ``policy`` is a ``LoadPolicy``'s."""
    servers = {name: spec_from_connection(name, connection) for name, connection in connections.items()}
    config = Config(servers=servers, settings=Settings(load=LoadPolicy(**policy)))
    return Loader(config, memory=memory or ServerCache(), chance=lambda: chance, sleep=naps or Naps())
