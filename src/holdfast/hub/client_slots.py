"""Slots that belong to one client each, for servers with ``sharing: per-client``. Their keys are of scope ``client``.

Each is a slot with the same machine as a shared one, so a lost connection comes back for its client. It publishes
nothing to the catalog: the shared slot lists the server. Their number is limited per server. A slot whose client
can leave without notice ends when it is unused for too long.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import anyio

from holdfast.config import ServerSpec, Settings
from holdfast.core import Listing, events as on
from holdfast.errors import ServerBusy
from holdfast.hub.lease import FindRelay
from holdfast.hub.slot import Slot, SlotContext, SlotHost
from holdfast.hub.slot_key import SlotKey
from holdfast.wire import Fields

__all__ = ["ClientSlots"]


@dataclass(eq=False)
class _Own:
    """One owner's slot for one server."""

    slot: Slot
    expires: bool
    """Whether the owner can leave without notice."""
    principal: str
    unused_since: float
    uses: int = 0


class ClientSlots:
    """The slots of all clients that have slots of their own."""

    def __init__(self) -> None:
        self._context: SlotContext | None = None
        self._own: dict[SlotKey, _Own] = {}
        self.servers_of: dict[Hashable, set[str]] = {}
        """By owner, the servers that it has a slot for: a call of one client looks at no other client."""
        self._changed = anyio.Event()
        self._next_look = math.inf
        """When unused slots are looked for again, unless something changes."""

    def open(self, context: SlotContext) -> None:
        """Start; ``context`` is that of the shared slots."""
        self._context = replace(context, host=_ClientSlotHost(context.host), one_client=True, fleet=None)
        context.tasks.start_soon(self._expire, name="unused connections")

    def adopt(self, settings: Settings) -> None:
        """Use other settings, for existing connections too."""
        if self._context is not None:
            self._context = replace(self._context, settings=settings)
            self._changed.set()

    def of(
        self, owner: Hashable, spec: ServerSpec, relay: FindRelay, *, expires: bool = False, principal: str = ""
    ) -> Slot:
        """The owner's slot for a server; started if it is new, replaced if the definition changed.

        ``principal`` is whose quota it counts for; empty where there is one user alone.
        """
        key = SlotKey(spec.id, "client", owner)
        own = self._own.get(key)
        if own is not None and own.slot.spec == spec:
            return own.slot
        assert self._context is not None  # noqa: S101 - the hub is open
        if own is not None and spec.connects_like(own.slot.spec):
            own.slot.adopt(spec, self._context.settings)
            return own.slot
        if own is not None:
            own.slot.handle(on.RemoveRequested())
        else:
            principals = [one.principal for other, one in self._own.items() if other.server == spec.id]
            _refuse_too_many(spec.id, principals, principal, self._context.settings)
        slot = Slot(spec, replace(self._context, relay=relay))
        self._own[key] = _Own(slot, expires, principal, unused_since=self._context.clock.now())
        self.servers_of.setdefault(owner, set()).add(spec.id)
        self._context.tasks.start_soon(slot.run, name=f"{spec.id} of one client")
        slot.handle(on.StartRequested())
        self._changed.set()
        return slot

    def find(self, owner: Hashable, server: str) -> Slot | None:
        """The owner's slot for a server, or None."""
        own = self._own.get(SlotKey(server, "client", owner))
        return own.slot if own is not None else None

    def use(self, owner: Hashable, server: str) -> _Own | None:
        """Count one more use of the owner's slot, until ``leave``."""
        if (own := self._own.get(SlotKey(server, "client", owner))) is not None:
            own.uses += 1
        return own

    def leave(self, owner: Hashable, server: str) -> None:
        """Count one use less."""
        self.unuse(self._own.get(SlotKey(server, "client", owner)))

    def unuse(self, own: object) -> None:
        """End a use that ``use`` began."""
        if isinstance(own, _Own) and self._context is not None:
            own.uses = max(own.uses - 1, 0)
            own.unused_since = self._context.clock.now()
            # The next look is at all slots: not after each call, unless this one is due before.
            if own.expires and own.unused_since + self._context.settings.per_client.idle < self._next_look:
                self._changed.set()

    def keep(self, owner: Hashable, *, until_unused: bool = False) -> None:
        """The owner is there, and its slots stay. ``until_unused``: it may come back; they end when unused for long."""
        found = [self._own[SlotKey(server, "client", owner)] for server in self.servers_of.get(owner, ())]
        if found and self._context is not None:
            for own in found:
                own.expires, own.unused_since = until_unused, self._context.clock.now()
            self._changed.set()

    def release(self, owner: Hashable) -> None:
        """End all slots of an owner that has left."""
        if owner in self.servers_of:
            self._end([SlotKey(server, "client", owner) for server in self.servers_of[owner]])

    def end(self, server: str) -> None:
        """End all clients' slots for a server that was removed or disabled."""
        self._end([key for key in self._own if key.server == server])

    def all(self) -> list[Slot]:
        """Every client slot."""
        return [own.slot for own in self._own.values()]

    def _end(self, keys: list[SlotKey]) -> None:
        for key in keys:
            servers = self.servers_of[key.owner]
            servers.discard(key.server)
            if not servers:
                del self.servers_of[key.owner]
            self._own.pop(key).slot.handle(on.RemoveRequested())

    def __repr__(self) -> str:
        return f"<ClientSlots {len(self._own)} of {len(self.servers_of)} clients>"

    async def _expire(self) -> None:
        """End the slots that are unused for too long; runs until cancelled."""
        while (context := self._context) is not None:
            self._changed = anyio.Event()
            idle, now = context.settings.per_client.idle, context.clock.now()
            due = {key: own.unused_since + idle for key, own in self._own.items() if own.expires and not own.uses}
            self._end([key for key, at in due.items() if at <= now])
            following = min((at for at in due.values() if at > now), default=None)
            self._next_look = following if following is not None else math.inf
            await context.clock.wait(self._changed, following)


def _refuse_too_many(server: str, principals: list[str], principal: str, settings: Settings) -> None:
    share, most = settings.quotas.client_connections, settings.per_client.connections
    if principal and principals.count(principal) >= share:
        raise ServerBusy(
            f"the clients of this caller have {share} connections to MCP server '{server}', which is their quota; "
            "end a client, or raise `holdfast.quotas.clientConnections`",
            server_id=server,
            state="connected",
        )
    if len(principals) >= most:
        raise ServerBusy(
            f"MCP server '{server}' has reached its limit of {most} client connections; "
            "wait until a client leaves, or raise `holdfast.perClient.connections`",
            server_id=server,
            state="connected",
        )


class _ClientSlotHost:
    """The host of client slots: it publishes nothing, because the shared slot lists the server."""

    def __init__(self, shared: SlotHost) -> None:
        self._shared = shared

    def publish(self, listing: Listing) -> None:
        """Do nothing: the shared slot publishes."""

    def withdraw(self, server: str, *, removed: bool) -> None:
        """Do nothing: nothing was published."""

    def reinstate(self, server: str) -> None:
        """Do nothing: nothing was published."""

    def prepared(self, server: str, method: str, params: Fields, *, late: bool) -> Fields:
        """The names and what is held are those of the server, whichever connection a call uses."""
        return self._shared.prepared(server, method, params, late=late)
