"""Hubs for the tests: on real peers, with a clock of the test's own where it matters, and ways to wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from holdfast.config.read import config_from_mapping
from holdfast.config.spec import Config
from holdfast.core.lifecycle.events import BreakerChanged, RetryPlanned, Transition
from holdfast.core.lifecycle.table import State
from holdfast.fleet.fleet import Fleet
from holdfast.hub.hub import Hub
from holdfast.hub.hub_clock import Clock
from holdfast.hub.journal import HubRecord
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.stdio import StdioPeer

__all__ = [
    "config",
    "defined",
    "fleet_of",
    "reaches",
    "records",
    "retries",
    "running",
    "settled",
    "states",
    "trips",
    "until",
]

PATIENCE = 15.0
"""For things that take a fraction of a second on an idle machine."""


def defined(peer: object, **more: object) -> dict[str, object]:
    """A peer as an entry of ``mcpServers``; a mapping is one already."""
    if isinstance(peer, Mapping):
        return {**peer, **more}
    if isinstance(peer, StdioPeer):
        return {"command": peer.command, "args": list(peer.args), **more}
    if isinstance(peer, SsePeer):
        return {"type": "sse", "url": peer.url, **more}
    assert isinstance(peer, McpPeer)
    return {"type": "http", "url": peer.url, **more}


def fleet_of(hub: Hub) -> Fleet:
    """The fleet of a hub that has one."""
    assert isinstance(hub.registry.fleet, Fleet)
    return hub.registry.fleet


def config(servers: Mapping[str, object], **settings: object) -> Config:
    """A configuration of these peers; ``settings`` are the keys under ``holdfast``."""
    entries = {name: defined(peer) for name, peer in servers.items()}
    return config_from_mapping({"mcpServers": entries, "holdfast": settings})


@asynccontextmanager
async def running(
    servers: Mapping[str, object],
    *,
    clock: Clock | None = None,
    hub: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Hub]:
    """A hub of these peers, open and without jitter; ``hub`` is what else its constructor is to be told."""
    options: dict[str, Any] = {"chance": lambda: 0.0, **(hub or {})}
    async with Hub(config(servers, **settings), clock=clock, **options) as opened:
        yield opened


async def settled(hub: Hub, *peers: McpPeer) -> None:
    """Wait until every server has an outcome, and each of these peers was asked for its stream of notices."""
    with anyio.fail_after(PATIENCE):
        await hub.ready()
        for peer in peers:
            await peer.until(lambda peer=peer: {"GET", "subscriptions/listen"} & {*peer.methods})  # type: ignore[misc]


async def until(hub: Hub, name: str, condition: Callable[[], object]) -> None:
    """Wait until something is true that comes true with a change of a server."""
    slot = hub.registry.slots[name]
    with anyio.fail_after(PATIENCE):
        while not condition():
            await slot.changed()


async def reaches(hub: Hub, name: str, *wanted: State) -> None:
    """Wait until a server is in one of these states; connected, if none is named."""
    among = wanted or (State.CONNECTED,)
    await until(hub, name, lambda: hub.server_health(name).state in among)


def records(hub: Hub) -> list[HubRecord]:
    """A list that every record from now on is added to."""
    told: list[HubRecord] = []
    hub.listen(told.append)
    return told


def states(told: list[HubRecord]) -> list[State]:
    """The states that were entered, in order."""
    return [record.new for record in told if isinstance(record, Transition)]


def trips(told: list[HubRecord]) -> int:
    """How often a breaker opened."""
    return sum(isinstance(record, BreakerChanged) and hasattr(record.change, "retry_in") for record in told)


def retries(told: list[HubRecord]) -> list[float]:
    """The waits that were planned, in order."""
    return [record.delay for record in told if isinstance(record, RetryPlanned)]
