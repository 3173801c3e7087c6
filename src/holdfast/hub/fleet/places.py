"""Where the servers of a hub run: here, or on another replica, which then gets the requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from holdfast.config import BadServer, ServerSpec
from holdfast.core import NetworkFailure, NetworkFault
from holdfast.errors import ServerFailure
from holdfast.hub.fleet.fleet import Fleet
from holdfast.hub.fleet.forwarding import HeldServers, HolderLink
from holdfast.wire import Caller, Relay, RemoteServer

if TYPE_CHECKING:
    from holdfast.hub.registry import SlotRegistry

__all__ = ["ServerPlaces"]

log = logging.getLogger("holdfast.fleet")

LOOK_SECONDS = 0.02
"""Between two looks whether calls and processes have ended: the path of a call tells no one."""


_NOT_KNOWN = "neither the store of the fleet nor another replica says which replica runs it"


class ServerPlaces:
    """The placement of a hub's servers. Only stdio servers that say so, or whose fleet says so, live on one replica."""

    def __init__(self, registry: SlotRegistry, fleet: Fleet) -> None:
        self._registry = registry
        self._fleet = fleet
        self._held = HeldServers(registry, self._runs, fleet)
        self._is_open = False

    def open(self) -> None:
        """Let other replicas use the servers that run here."""
        if self._fleet.peers is not None:
            self._held.serve(self._fleet.peers)
        self._warn()

    def configured(self, server: ServerSpec | BadServer) -> None:
        """A server is new, or its definition changed."""
        known = self._fleet.leases.is_placed(server.id)
        self._fleet.leases.place(server.id, wanted=self._lives_on_one(server))
        if self._is_open and self._fleet.leases.is_placed(server.id) and not known:
            self._warn()

    def _warn(self) -> None:
        self._is_open = True
        if self._fleet.leases.notice:
            log.warning("%s", self._fleet.leases.notice)

    def removed(self, server: str) -> None:
        """A server is not configured any more."""
        self._fleet.leases.place(server, wanted=False)

    def _lives_on_one(self, server: ServerSpec | BadServer) -> bool:
        if not isinstance(server, ServerSpec) or server.transport != "stdio":
            return False
        return (server.placement or self._fleet.default_placement) == "one"

    def _runs(self, server: str) -> bool:
        return self._fleet.leases.is_placed(server) and self._fleet.leases.runs(server)

    async def find(self, spec: ServerSpec, relay: Relay | None) -> RemoteServer | None:
        """See ``FindServer``."""
        fleet = self._fleet
        if not fleet.leases.is_placed(spec.id):
            return None
        home = await fleet.leases.find_runner(spec.id)
        if home == fleet.replica:
            return None
        if not home:
            why = "" if fleet.is_shared else _NOT_KNOWN
            raise ServerFailure(NetworkFailure(fault=NetworkFault.REFUSED, sent=False, replica="", detail=why))
        assert fleet.peers is not None  # noqa: S101 - another replica runs it, so there is a link
        own = None
        if relay is not None and not isinstance(relay, _PlacedRelay):
            own = {"capabilities": dict(relay.capabilities)}  # a connection that belongs to one client
        return HolderLink(fleet.peers, home, spec.id, own=own)

    async def hand_over(self, within: float, *, with_group: bool = False) -> None:
        """Let other replicas run what runs here: this one leaves. Calls in flight end first, new ones wait.

        ``with_group``: all workers of its supervisor leave too, and take nothing.
        """
        if not self._fleet.can_be_replaced(with_group=with_group):
            self._fleet.leases.take_nothing()  # no replica takes over: what runs here does so until the end
            return
        servers = self._fleet.leases.retire()
        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(self._hand_over, server, within)

    async def _hand_over(self, server: str, within: float) -> None:
        slot = self._registry.slots.get(server)
        if slot is None:
            return
        own = [one for one in self._registry.clients.all() if one.id == server]
        slot.hold()
        self._held.hold(server)
        with anyio.move_on_after(within):
            while any(one.is_used for one in (slot, *own)):  # noqa: ASYNC110 - see LOOK_SECONDS
                await anyio.sleep(LOOK_SECONDS)
        self._registry.moved(server, "it moves to another replica")
        for one in own:
            await one.closed.wait()
        while slot.process_groups:  # noqa: ASYNC110 - see LOOK_SECONDS
            await anyio.sleep(LOOK_SECONDS)
        self._fleet.leases.give_back(server)

    def relay(self, relay: Relay | None) -> Relay | None:
        """The relay of the shared connections: what belongs to no call goes to other replicas too."""
        return _PlacedRelay(relay, self._held) if relay is not None else None


class _PlacedRelay(Relay):
    """The hub's relay, and the replicas that forward to this one."""

    def __init__(self, relay: Relay, held: HeldServers) -> None:
        self._relay = relay
        self._held = held

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the hub declares."""
        return self._relay.capabilities

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """The answer to a server's request."""
        return await self._relay.asked(server, method, params, caller)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification that belongs to no call."""
        self._held.told(server, method, params)
        self._relay.told(server, method, params)
