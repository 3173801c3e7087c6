"""The broker connects clients and servers. One is made for a hub, and all of its endpoints use it.

It has the table of clients and the lifetime of all that runs for them; each of its parts has one concern:

- ``attribution``: whose a message of a server is. It is the hub's relay.
- ``servers``: which connection a client uses, its subscriptions and its log level.
- ``announcer``: what clients are told of changes.
- ``pending``: calls that wait for answers of modern clients.

A client is attached when it sent its first message after its handshake, and detached when it left. The owner of its
connections may come back (a session that was dropped from memory, a client key): then its own connections linger.
Calls are counted from ``begin`` to ``end``: ``drain`` waits for them, and refuses new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.access import AuditTrail
from holdfast.endpoint.announcements import Announcer
from holdfast.endpoint.attribution import Attribution, ClientRelay, Served, notify
from holdfast.endpoint.call_audit import CallAudit
from holdfast.endpoint.client_servers import ClientServers
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.homes import RequestHomes
from holdfast.endpoint.input_required import PendingCalls
from holdfast.endpoint.tasks import TaskIds
from holdfast.hub import Hub
from holdfast.keys import KeyRing

__all__ = ["Broker"]


class Broker:
    """The clients of a hub, and their calls."""

    def __init__(
        self,
        hub: Hub,
        homes: RequestHomes | None = None,
        *,
        keys: Callable[[], KeyRing] | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        """``keys`` sign the ids of tasks, where replicas share them."""
        self.hub = hub
        self.audit = CallAudit(audit) if audit is not None else None
        self.homes = homes
        """Finds requests that belong to another replica; None without others."""
        self.pending = PendingCalls(self.homes, self.start)
        self.task_ids = TaskIds(keys, self.homes.long_tag) if self.homes is not None else TaskIds()
        self.findings: dict[str, str] = {}
        """What an operator should change, by server."""
        self._clients: dict[Hashable, Client] = {}
        """By their owner: one that comes back takes the place of the one that left."""
        self.announcer = Announcer(hub, self._clients)
        self.attribution = Attribution(hub, self._clients, self.announcer, self.findings)
        self.servers = ClientServers(
            hub,
            self.homes,
            self.attribution,
            self.findings,
            relay_of=partial(ClientRelay, self.attribution, self.announcer, self._clients),
            start=self.start,
        )
        self._quiet = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self.draining = False
        """Whether new calls are refused."""
        hub.registry.attach(self.attribution)

    # Lifetime.

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Forward the hub's records to clients, until cancelled."""
        records = self.hub.events()
        self.announcer.begin()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.pending.expire)
            task_status.started()
            try:
                async for record in records:
                    self.announcer.handle(record)
                await anyio.sleep_forever()
            finally:
                self.pending.close()
                self._tasks = None
                tasks.cancel_scope.cancel()

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Run a task in the background, for as long as the broker runs."""
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    async def drain(self, within: float) -> bool:
        """Refuse new calls, and wait for those in flight; False if some are left after ``within`` seconds."""
        self.draining = True
        calls = self.attribution.calls
        with anyio.move_on_after(within):
            while calls:
                self._quiet = anyio.Event()
                await self._quiet.wait()
        return not calls

    # Clients and their calls.

    def attach(self, client: Client) -> None:
        """A client is there: servers may ask it, and it learns of changes."""
        self._clients[client.owner] = client
        self.hub.registry.clients.keep(client.owner)
        self._announce_roots()

    def detach(self, client: Client, *, lingering: bool = False) -> None:
        """A client left: end its subscriptions and its own connections; those of one that may come back linger."""
        if self._clients.get(client.owner) is client:
            del self._clients[client.owner]
            self._announce_roots()
        for server, uri in list(client.subscribed):
            self.servers.unsubscribe(client, server, uri)
        if lingering:
            self.hub.registry.clients.keep(client.owner, until_unused=True)
        elif not client.calls:
            self.release(client)

    def release(self, client: Client) -> None:
        """Close the client's own connections, unless its owner goes on."""
        if not client.persistent:
            self.hub.registry.clients.release(client.owner)

    def begin(self, call: Call) -> tuple[Served, object]:
        """The call is at its server, until ``end`` gets what this returns."""
        if self.draining:
            raise MCPError(INVALID_REQUEST, "Holdfast is shutting down and takes no new calls; try again in a moment")
        call.client.calls += 1
        return self.attribution.begin(call), self.hub.registry.clients.use(call.client.owner, call.server)

    def end(self, call: Call, begun: tuple[Served, object]) -> None:
        """The call is over."""
        served, use = begun
        self.attribution.end(call, served)
        self.hub.registry.clients.unuse(use)
        call.client.calls -= 1
        if call.client.modern:
            self.release(call.client)  # a modern client without a key ends with its call
        if self.draining:
            self._quiet.set()

    def _announce_roots(self) -> None:
        for slot in self.attribution.announce_roots():
            self.start(notify, slot, "notifications/roots/list_changed", None)

    def __repr__(self) -> str:
        state = " draining" if self.draining else ""
        return f"<Broker of {len(self._clients)} clients, {len(self.attribution.calls)} calls{state}>"
