"""Where clients and servers meet: who is there, whose calls are under way, and who is told what.

A server's request or log message goes to the client whose call it came with. Where that cannot be told
(a pipe, a stream that all share), it goes to the only client there is; if there are several, it is refused
and said so: never guessed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.subscriptions import ServerEvent
from mcp_types import INVALID_REQUEST

from holdfast.config.spec import ServerSpec
from holdfast.core.lifecycle.effects import Transition
from holdfast.core.lifecycle.table import State
from holdfast.errors import HoldfastError
from holdfast.front.board import Board
from holdfast.front.calls import Call
from holdfast.front.clients import Client
from holdfast.front.identity import HOW_TO_BE_KNOWN
from holdfast.front.relays import OwnRelay, Standing
from holdfast.front.rounds import Parking
from holdfast.front.status import STATUS_URI
from holdfast.front.view import View
from holdfast.hub.hub import Hub
from holdfast.hub.journal import HubRecord, Missed, Published
from holdfast.hub.slot import Slot
from holdfast.wire.relay import OF_A_CALL, Caller

__all__ = ["Desk"]

log = logging.getLogger("holdfast.front")

SHARED_CAPABILITIES: Mapping[str, Any] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
"""What a shared server is told that its clients can do, before any of them is known."""

_CHANGED: Mapping[str, tuple[str, ServerEvent]] = {
    "tools": ("notifications/tools/list_changed", ToolsListChanged()),
    "prompts": ("notifications/prompts/list_changed", PromptsListChanged()),
    "resources": ("notifications/resources/list_changed", ResourcesListChanged()),
    "templates": ("notifications/resources/list_changed", ResourcesListChanged()),
}


class Desk:
    """The front's one place for all faces; the hub's relay."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.parking = Parking()
        self.findings: dict[str, str] = {}
        """What an operator should change, by server."""
        self._boards: list[Board] = []
        self._clients: set[Client] = set()
        self._calls: dict[Call, None] = {}
        self._roots_of: dict[str, Client | None] = {}
        """Whose roots a server has that asked for them on its own account; None where nobody could be asked."""
        self._quiet = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self.draining = False
        """Whether no new calls are taken any more."""
        hub.registry.attach(self)

    # Its life.

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Pass on what happens in the hub, until cancelled."""
        records = self.hub.events()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self.parking.watch)
            task_status.started()
            try:
                async for record in records:
                    self._happened(record)
                await anyio.sleep_forever()
            finally:
                self.parking.close()
                self._tasks = None
                tasks.cancel_scope.cancel()

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Do something in the background, for as long as the desk is open."""
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    async def drain(self, within: float) -> bool:
        """Take no new calls, and wait for those under way; False if some are left after so many seconds."""
        self.draining = True
        with anyio.move_on_after(within):
            while self._calls:
                self._quiet = anyio.Event()
                await self._quiet.wait()
        return not self._calls

    # Clients and their calls.

    def put_up(self, board: Board) -> None:
        """Tell a face's listeners of what happens from now on."""
        self._boards.append(board)

    def take_down(self, board: Board) -> None:
        """A face is closed."""
        self._boards.remove(board)

    def attach(self, client: Client) -> None:
        """A client is there."""
        self._clients.add(client)
        self._tell_of_roots()

    def notify(self, slot: Slot, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell a server something, if it is there and of the era that has such notices."""
        lease = slot.lease
        if lease is not None and lease.connection is not None and lease.connection.era == "legacy":
            self.start(lease.connection.notify, method, params)

    def detach(self, client: Client) -> None:
        """A client is gone, and with it all that it wanted."""
        self._clients.discard(client)
        self._tell_of_roots()
        for server, uri in list(client.watched):
            self._unwatch(client, server, uri)
        if not any(call.client is client for call in self._calls):
            self.release(client)

    def release(self, client: Client) -> None:
        """End the connections that were the client's own."""
        if not client.lasting:
            self.hub.registry.clients.release(client.owner)

    @contextmanager
    def under_way(self, call: Call) -> Iterator[None]:
        """A call is under way for the length of the block."""
        if self.draining:
            raise MCPError(INVALID_REQUEST, "Holdfast is shutting down and takes no new calls; try again in a moment")
        self._calls[call] = None
        try:
            with self.hub.registry.clients.using(call.client.owner, call.server):
                yield
        finally:
            self._calls.pop(call, None)
            self._quiet.set()

    def slot(self, client: Client, server: str) -> Slot:
        """The connection that a client uses: the one that all share, or one of its own, begun now if need be."""
        shared = self.hub.registry.slot(server)
        if not isinstance(shared.spec, ServerSpec) or not self.has_own(server):
            return shared
        if self.forgets(client, server):
            self._note_stateless(server)
        relay = OwnRelay(self, client)
        return self.hub.registry.clients.of(client.owner, shared.spec, lambda: relay, expires=client.expires)

    def has_own(self, server: str) -> bool:
        """Whether each client has a connection of its own to a server; none to one that is switched off."""
        slot = self.hub.registry.slot(server)
        per_client = isinstance(slot.spec, ServerSpec) and slot.spec.sharing == "per-client" and slot.spec.enabled
        return per_client and slot.state not in (State.DISABLING, State.DISABLED)

    def forgets(self, client: Client, server: str) -> bool:
        """Whether a server keeps nothing for a client from one call to the next, since it cannot be known again."""
        return client.modern and not client.lasting and server in self.hub.servers and self.has_own(server)

    def existing(self, client: Client, server: str) -> Slot | None:
        """The same as ``slot``, but nothing is begun for it."""
        return (
            self.hub.registry.clients.find(client.owner, server)
            if self.has_own(server)
            else self.hub.registry.slot(server)
        )

    async def first_listing(self, view: View) -> None:
        """Wait a moment, when they are begun, for servers of which nothing is known: many clients list only once."""
        within = self.hub.config.settings.call.ready_timeout
        for server in view.servers:
            source = self.hub.catalog.servers.get(server)
            if source is not None and source.listing is None:
                await self.hub.registry.slot(server).outcome(within)

    # What clients want beside answers.

    async def watch(self, client: Client, server: str, uri: str) -> None:
        """Tell a client from now on when a resource changes; raises if the server refuses."""
        if (server, uri) in client.watched:
            return
        slot = self.slot(client, server)
        first = slot.desired_state.watch(uri)
        client.watched.add((server, uri))
        if first and _era(slot) != "modern":
            try:
                await self.hub.registry.request(server, "resources/subscribe", {"uri": uri}, repeatable=True, slot=slot)
            except BaseException:
                client.watched.discard((server, uri))
                slot.desired_state.unwatch(uri)
                raise
        self.hub.registry.clients.use(client.owner, server)

    def _unwatch(self, client: Client, server: str, uri: str) -> None:
        client.watched.discard((server, uri))
        slot = self.existing(client, server) if server in self.hub.servers else None
        if slot is None:
            return
        if slot.desired_state.unwatch(uri) and _era(slot) == "legacy":
            self.start(self._quietly, server, "resources/unsubscribe", {"uri": uri}, slot)
        self.hub.registry.clients.leave(client.owner, server)

    def unwatch(self, client: Client, server: str, uri: str) -> None:
        """No longer."""
        if (server, uri) in client.watched:
            self._unwatch(client, server, uri)

    def wants_log(self, client: Client, server: str, level: str) -> None:
        """See that a server logs as much as one of its clients wants to be told."""
        slot = self.existing(client, server)
        lease = slot.lease if slot is not None else None
        if slot is None or not slot.desired_state.log(level) or lease is None or lease.connection is None:
            return
        if lease.connection.era == "legacy" and "logging" in lease.connection.capabilities:
            self.start(self._quietly, server, "logging/setLevel", {"level": level}, slot)

    async def _quietly(self, server: str, method: str, params: Mapping[str, Any], slot: Slot) -> None:
        with suppress(HoldfastError):
            await self.hub.registry.request(server, method, params, repeatable=True, slot=slot)

    # What servers ask and tell (the ``Relay`` of the wire).

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What is declared to a server that all clients share."""
        return SHARED_CAPABILITIES

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Ask the client whose call it is, or the only one there is."""
        whose = caller or self._sole(server)
        if method == "roots/list" and caller is None:
            self._roots_of[server] = self._only_one(server)
        if whose is None:
            raise self._unattributed(server, method)
        return await whose.ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass a notice on to whom it concerns."""
        if method == "notifications/resources/updated":
            uri = (params or {}).get("uri")
            if isinstance(uri, str):
                self._updated(server, uri)
        elif method in OF_A_CALL and (whose := self._sole(server)) is not None:
            whose.tell(method, params)

    def tell(self, client: Client, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell a client something on its own stream."""
        if client.note(method, params):
            self.start(client.flush)

    def _sole(self, server: str) -> Caller | None:
        """The only one whose it can be; None if there is none, or more than one."""
        under_way, here = self._candidates(server)
        if len({client.owner for client in (*here, *(call.client for call in under_way))}) != 1:
            return None
        return under_way[-1] if under_way else Standing(self, here[0])

    def _only_one(self, server: str) -> Client | None:
        """The only client that stands before a server."""
        here = self._candidates(server)[1]
        return here[0] if len({client.owner for client in here}) == 1 else None

    def _tell_of_roots(self) -> None:
        """A server that asked for roots when nobody was there, or somebody else, asks again when told of a change."""
        for server, before in list(self._roots_of.items()):
            client = self._only_one(server)
            if client in (None, before) or client.modern or "roots" not in client.capabilities:
                continue
            self._roots_of[server] = client
            if server in self.hub.servers:
                self.notify(self.hub.registry.slot(server), "notifications/roots/list_changed", None)

    def _candidates(self, server: str) -> tuple[list[Call], list[Client]]:
        under_way = [call for call in self._calls if call.server == server]
        return under_way, [client for client in self._clients if client.view.covers(server)]

    def standing(self, client: Client, server: str) -> Caller:
        """One client, by a call of its own to this server if one is under way."""
        own = [call for call in self._calls if call.server == server and call.client.owner == client.owner]
        return own[-1] if own else Standing(self, client)

    def _note_stateless(self, server: str) -> None:
        words = (
            "a client of protocol 2026-07-28 over HTTP that does not say who it is has a connection for each of its "
            f"calls, and nothing is kept for it from one to the next. {HOW_TO_BE_KNOWN}"
        )
        if server not in self.findings:
            log.warning("%s: %s", server, words)
        self.findings[server] = words

    def _unattributed(self, server: str, method: str) -> MCPError:
        if not any(self._candidates(server)):
            return MCPError(INVALID_REQUEST, f"there is no client that could answer {method}")
        if server not in self.findings:
            log.warning(
                "%s: %s cannot be attributed to one of several clients and was refused; "
                'set "sharing": "per-client" on this server',
                server,
                method,
            )
        self.findings[server] = (
            f"{method} from this server cannot be attributed to one of several clients, so it is refused. "
            'Set "sharing": "per-client" to give each client a connection of its own.'
        )
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed to one of several clients")

    # What happens in the hub.

    def _happened(self, record: HubRecord) -> None:
        match record:
            case Published(server=server, kinds=kinds):
                self._changed(server, kinds)
            case Missed():
                self._changed(None, tuple(_CHANGED))
            case Transition():
                self._post(None, ResourceUpdated(STATUS_URI))
                self._tell_watchers("", STATUS_URI)
            case _:
                pass

    def _changed(self, server: str | None, kinds: tuple[str, ...]) -> None:
        for method, event in {_CHANGED[kind] for kind in kinds}:
            self._post(server, event)
            for client in self._clients:
                if not client.modern and (server is None or client.view.covers(server)):
                    self.tell(client, method)

    def _updated(self, server: str, uri: str) -> None:
        self.post_updated(server, uri)
        self._tell_watchers(server, uri)

    def post_updated(self, server: str, uri: str, *, only: Hashable = None) -> None:
        """Tell those who listen that a resource changed: all of them, or one client's."""
        for board in self._boards:
            if board.view.covers(server):
                board.post(ResourceUpdated(board.view.shown_uri(server, uri)), only=only)

    def _tell_watchers(self, server: str, uri: str) -> None:
        for client in self._clients:
            if not client.modern and (server, uri) in client.watched:
                self.tell(client, "notifications/resources/updated", {"uri": client.view.shown_uri(server, uri)})

    def _post(self, server: str | None, event: ServerEvent) -> None:
        for board in self._boards:
            if server is None or board.view.covers(server):
                board.post(event)


def _era(slot: Slot) -> str | None:
    lease = slot.lease
    return lease.connection.era if lease is not None and lease.connection is not None else None
