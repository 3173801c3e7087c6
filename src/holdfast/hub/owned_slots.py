"""Slots that belong to one owner each: a client (``sharing: per-client``) or a user (``sharing: per-user``).

Each is a slot with the same machine as a shared one, so a lost connection comes back for its owner. Their number is
limited per server. A slot whose owner can leave without notice ends when it is unused for too long; a user always can.

``OwnedSlots`` has the slots and their use. What differs between clients and users is in an ``Owners``: the scope of
their keys, the limits, and what their slots are given. ``ClientOwners`` is here, ``UserOwners`` in user_slots.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Protocol

import anyio

from holdfast.config import ServerSpec, Settings
from holdfast.core import Listing, events as on
from holdfast.errors import ServerBusy
from holdfast.hub.lease import FindRelay
from holdfast.hub.slot import Slot, SlotContext, SlotHost, SlotKey, SlotScope
from holdfast.wire import Fields

__all__ = ["ClientOwners", "OwnedSlots", "Owners"]


@dataclass(eq=False)
class _Own:
    """One owner's slot for one server."""

    slot: Slot
    expires: bool
    """Whether the owner can leave without notice."""
    principal: str
    unused_since: float
    uses: int = 0


class Owners(Protocol):
    """What the slots of one kind of owner have in common."""

    @property
    def scope(self) -> SlotScope:
        """The scope of their keys."""

    def idle(self, settings: Settings) -> float:
        """How long a slot may be unused, in seconds."""

    def context(self, shared: SlotContext, key: SlotKey) -> SlotContext:
        """What the slot of an owner is given; ``shared`` is what the shared slots have."""

    def check(self, spec: ServerSpec, principals: list[str], principal: str, settings: Settings) -> None:
        """Raise ``ServerBusy`` if there may be no more slots; ``principals`` have one each already."""


class OwnedSlots:
    """The slots of all owners that have slots of their own."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._key: Callable[[Hashable, str], SlotKey] = lambda owner, server: SlotKey(server, owners.scope, owner)
        self._context: SlotContext | None = None
        self._own: dict[SlotKey, _Own] = {}
        self.servers_of: dict[Hashable, set[str]] = {}
        """By owner, the servers that it has a slot for: a call of one client looks at no other client."""
        self._changed = anyio.Event()
        self._next_look = math.inf
        """When unused slots are looked for again, unless something changes."""

    def open(self, context: SlotContext) -> None:
        """Start; ``context`` is that of the shared slots."""
        self._context = context
        context.tasks.start_soon(self._expire, name=f"unused connections of {self._owners.scope}s")

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
        key = self._key(owner, spec.id)
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
            self._owners.check(spec, principals, principal, self._context.settings)
        slot = Slot(spec, replace(self._owners.context(self._context, key), relay=relay))
        self._own[key] = _Own(slot, expires, principal, unused_since=self._context.clock.now())
        self.servers_of.setdefault(owner, set()).add(spec.id)
        self._context.tasks.start_soon(slot.run, name=f"{spec.id} of one {key.scope}")
        slot.handle(on.StartRequested())
        self._changed.set()
        return slot

    def find(self, owner: Hashable, server: str) -> Slot | None:
        """The owner's slot for a server, or None."""
        own = self._own.get(self._key(owner, server))
        return own.slot if own is not None else None

    def use(self, owner: Hashable, server: str) -> _Own | None:
        """Count one more use of the owner's slot, until ``leave``."""
        if (own := self._own.get(self._key(owner, server))) is not None:
            own.uses += 1
        return own

    def leave(self, owner: Hashable, server: str) -> None:
        """Count one use less."""
        self.unuse(self._own.get(self._key(owner, server)))

    def unuse(self, own: object) -> None:
        """End a use that ``use`` began."""
        if isinstance(own, _Own) and self._context is not None:
            own.uses = max(own.uses - 1, 0)
            own.unused_since = self._context.clock.now()
            # The next look is at all slots: not after each call, unless this one is due before.
            if own.expires and own.unused_since + self._owners.idle(self._context.settings) < self._next_look:
                self._changed.set()

    def keep(self, owner: Hashable, *, until_unused: bool = False) -> None:
        """The owner is there, and its slots stay. ``until_unused``: it may come back; they end when unused for long."""
        found = [self._own[self._key(owner, server)] for server in self.servers_of.get(owner, ())]
        if found and self._context is not None:
            for own in found:
                own.expires, own.unused_since = until_unused, self._context.clock.now()
            self._changed.set()

    def release(self, owner: Hashable, server: str | None = None) -> None:
        """End all slots of an owner that has left, or the one for a server."""
        servers = self.servers_of.get(owner, set())
        self._end([self._key(owner, one) for one in servers if server in (None, one)])

    def end(self, server: str) -> None:
        """End all slots for a server that was removed or disabled."""
        self._end([key for key in self._own if key.server == server])

    def all(self) -> list[Slot]:
        """Every slot."""
        return [own.slot for own in self._own.values()]

    def _end(self, keys: list[SlotKey]) -> None:
        for key in keys:
            servers = self.servers_of[key.owner]
            servers.discard(key.server)
            if not servers:
                del self.servers_of[key.owner]
            self._own.pop(key).slot.handle(on.RemoveRequested())

    def __repr__(self) -> str:
        return f"<OwnedSlots {len(self._own)} of {len(self.servers_of)} {self._owners.scope}s>"

    async def _expire(self) -> None:
        """End the slots that are unused for too long; runs until cancelled."""
        while (context := self._context) is not None:
            self._changed = anyio.Event()
            idle, now = self._owners.idle(context.settings), context.clock.now()
            due = {key: own.unused_since + idle for key, own in self._own.items() if own.expires and not own.uses}
            self._end([key for key, at in due.items() if at <= now])
            following = min((at for at in due.values() if at > now), default=None)
            self._next_look = following if following is not None else math.inf
            await context.clock.wait(self._changed, following)


class ClientOwners:
    """Clients as owners: their slots publish nothing, because the shared slot lists the server."""

    scope: SlotScope = "client"

    def idle(self, settings: Settings) -> float:
        """See ``Owners``."""
        return settings.per_client.idle

    def context(self, shared: SlotContext, key: SlotKey) -> SlotContext:
        """See ``Owners``."""
        return replace(shared, host=_ClientSlotHost(shared.host), one_client=True, fleet=None)

    def check(self, spec: ServerSpec, principals: list[str], principal: str, settings: Settings) -> None:
        """See ``Owners``."""
        share, most = settings.quotas.client_connections, settings.per_client.connections
        if principal and principals.count(principal) >= share:
            raise ServerBusy(
                f"the clients of this caller have {share} connections to MCP server '{spec.id}', which is their quota; "
                "end a client, or raise `holdfast.quotas.clientConnections`",
                server_id=spec.id,
                state="connected",
            )
        if len(principals) >= most:
            raise ServerBusy(
                f"MCP server '{spec.id}' has reached its limit of {most} client connections; "
                "wait until a client leaves, or raise `holdfast.perClient.connections`",
                server_id=spec.id,
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
