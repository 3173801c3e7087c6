"""Whose a message of a server is.

A server's request or log message goes to the client whose call it belongs to. If the transport does not show that
(stdio, a shared stream), it goes to the client with calls in flight, if that is one client, else to the only client
there is. In every other case it is refused and reported as a finding: nothing here guesses.

What must never happen: a message reaches a principal that it may not concern. So a connection that served more than
one principal gets no answer at all outside a call: a late message may belong to an earlier call of another principal.
A new process has served only the calls in flight. A server over HTTP goes on behind a new connection, and may ask late
for a call of the one before; it keeps its principals.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp import MCPError
from mcp_types import INVALID_REQUEST

from holdfast.endpoint.announcements import Announcer
from holdfast.endpoint.clients import Call, Client, require_capability
from holdfast.hub import Hub, Slot
from holdfast.wire import CALL_NOTIFICATIONS, Caller, Era, Relay, without_task_capabilities

__all__ = ["Attribution", "ClientRelay", "UserRelay", "notify"]

log = logging.getLogger("holdfast.front")

SHARED_CAPABILITIES: Final[Mapping[str, Any]] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
"""What the hub declares to a shared server, before any client is known."""


class IdleCaller:
    """A connected client without a call in flight; messages go to its notification stream."""

    client_key: str | None = None
    via: tuple[str, ...] = ()
    trace_id: str = ""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.era: Era = "modern" if client.modern else "legacy"
        self.capabilities = client.capabilities
        self.principal = client.principal

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a request; a modern client can receive one only in the result of its own call."""
        require_capability(self._client, method, params)
        if self._client.modern:
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach this client now: it has no call in flight")
        return await self._client.questions.ask(self._client.outlet, method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, if the client wants it."""
        if method != "notifications/message" or self._client.wants_log((params or {}).get("level")):
            self._client.outlet.tell(method, params)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Nothing: progress belongs to a call, and none of it is in flight."""

    def __repr__(self) -> str:
        return f"<IdleCaller {self._client!r}>"


class OwnerRelay(Relay):
    """What the relays of all connections have in common; each knows whose a message is that names no call."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the hub declares to a server whose clients come and go."""
        return SHARED_CAPABILITIES

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client whose call it belongs to, or to the one that it must mean."""
        whose = caller or self._whose(server)
        if whose is None:
            raise self._unattributed(server, method)
        return await whose.ask(method, params)

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Forward a server's notification to the clients that it concerns."""
        uri = (params or {}).get("uri")
        if method == "notifications/resources/updated":
            if isinstance(uri, str):
                self._updated(server, uri)
        elif method in CALL_NOTIFICATIONS and (whose := self._whose(server)) is not None:
            whose.tell(method, params)

    @abstractmethod
    def _whose(self, server: str) -> Caller | None:
        """Whose a message of a server is that names no call; None if that is not certain."""

    @abstractmethod
    def _updated(self, server: str, uri: str) -> None:
        """A resource changed."""

    def _unattributed(self, server: str, method: str) -> MCPError:
        """The refusal of a request that may be any client's."""
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed to one client of this user")


@dataclass
class Served:
    """The principals that one connection of a server served."""

    lease: object
    principals: set[str]


class Attribution(OwnerRelay):
    """The relay of shared connections: it knows the calls at every server, and who was served."""

    def __init__(
        self, hub: Hub, clients: Mapping[Hashable, Client], announcer: Announcer, findings: dict[str, str]
    ) -> None:
        self._registry = hub.registry
        self._clients = clients
        self._announcer = announcer
        self._findings = findings
        self.calls: dict[Call, Served] = {}
        """The calls that are at servers now, each with whom the connection served when it began."""
        self._served: dict[str, Served] = {}
        self._roots_of: dict[str, Client | None] = {}
        """Whose roots a server has that asked outside a call; None where no client could be asked."""

    # The calls.

    def begin(self, call: Call, *, shares: bool) -> None:
        """A call goes to its server, over the shared connection or over one of its own."""
        served = self.served_by(call.server)
        if shares:
            served.principals.add(call.principal)
        self.calls[call] = served

    def end(self, call: Call) -> None:
        """A call is over."""
        served = self.calls.pop(call)
        if served.lease is None and self._shares(call.principal, call.server):
            # It waited for its connection, and the connection may stand now.
            self.served_by(call.server).principals.add(call.principal)

    def served_by(self, server: str) -> Served:
        """Whom the shared connection of a server served."""
        slot = self._registry.slots.get(server)
        lease = slot.lease if slot is not None else None
        served = self._served.get(server)
        if served is None or served.lease is not lease:
            using = (call.principal for call in self.calls if call.server == server)
            here = {one for one in using if self._shares(one, server)}
            if served is not None and slot is not None and slot.spec.transport != "stdio":
                here |= served.principals
            served = self._served[server] = Served(lease, here)
        return served

    def _shares(self, principal: str, server: str) -> bool:
        """Whether a principal's calls use the shared connection of a server."""
        return not self._registry.users.has_own(principal, server)

    # Requests and notifications of servers (the ``Relay`` of the wire).

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """Send a server's request to the client whose call it belongs to, or to the only client."""
        if method == "roots/list" and caller is None:
            self._roots_of[server] = self._only_client(server)
        whose = caller or self._whose(server)
        if isinstance(whose, IdleCaller):
            self.served_by(server).principals.add(whose.principal)
        return await super().asked(server, method, params, whose)

    def _whose(self, server: str) -> Caller | None:
        return only_caller(*self._candidates(server))

    def _updated(self, server: str, uri: str) -> None:
        self._announcer.updated(server, uri)

    def caller_of(self, client: Client, server: str) -> Caller:
        """A client's call to this server if one is in flight, else the client itself."""
        own = [call for call in self.calls if call.server == server and call.client.owner == client.owner]
        return own[-1] if own else IdleCaller(client)

    def announce_roots(self) -> list[Slot]:
        """The servers that read the roots of no client or of another one: once they are told, they ask again."""
        found = []
        for server, before in list(self._roots_of.items()):
            client = self._only_client(server)
            if client in (None, before) or client.modern or "roots" not in client.capabilities:
                continue
            self._roots_of[server] = client
            if server in self._registry.slots:
                found.append(self._registry.slot(server))
        return found

    def _only_client(self, server: str) -> Client | None:
        """The only client of a server; None if there is none, or more than one."""
        clients = self._candidates(server)[1]
        return clients[0] if len({client.owner for client in clients}) == 1 else None

    def _candidates(self, server: str) -> tuple[list[Call], list[Client]]:
        """Whose an unattributed message can be: never a principal's that the connection did not serve."""
        principals = self.served_by(server).principals
        if len(principals) > 1:
            return [], []
        calls, clients = self.candidates(server, lambda principal: self._shares(principal, server))
        return calls, [client for client in clients if not principals or client.principal in principals]

    def candidates(self, server: str, uses: Callable[[str], bool]) -> tuple[list[Call], list[Client]]:
        """The calls and the clients of those principals that use a connection of a server."""
        clients = [client for client in self._clients.values() if client.seen.covers(server) and client.is_present()]
        calls = [call for call in self.calls if call.server == server and uses(call.principal)]
        return calls, [client for client in clients if uses(client.principal)]

    def _unattributed(self, server: str, method: str) -> MCPError:
        """The refusal of a server's request; what the operator should change becomes a finding."""
        if len(self.served_by(server).principals) > 1:
            why = ": this connection served more than one user"
            text = (
                f"{method} is refused: the shared connection of this server served more than one user, so the request "
                'may belong to any of them. Set "sharing": "per-client" to give each client a connection of its own.'
            )
        elif not any(self._candidates(server)):
            return MCPError(INVALID_REQUEST, f"no client is connected that could answer {method}")
        else:
            why = " to one of several clients"
            text = (
                f"{method} from this server cannot be attributed to one of several clients, so the hub refuses it. "
                'Set "sharing": "per-client" to give each client a connection of its own.'
            )
        if server not in self._findings:
            log.warning("%s: %s", server, text)
        self._findings[server] = text
        return MCPError(INVALID_REQUEST, f"{method} cannot be attributed{why}")

    def __repr__(self) -> str:
        return f"<Attribution of {len(self.calls)} calls, {len(self._clients)} clients>"


class ClientRelay(OwnerRelay):
    """The relay of a connection that belongs to one client: everything goes to that client."""

    def __init__(
        self, attribution: Attribution, announcer: Announcer, clients: Mapping[Hashable, Client], client: Client
    ) -> None:
        self._attribution = attribution
        self._announcer = announcer
        self._clients = clients
        self._client = client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares; a server's own requests are no tasks here."""
        return without_task_capabilities(self._client.capabilities)

    def _whose(self, server: str) -> Caller:
        return self._attribution.caller_of(self._current, server)

    def _updated(self, server: str, uri: str) -> None:
        self._announcer.updated_for(self._current, server, uri)

    @property
    def _current(self) -> Client:
        """The client itself, or the session that was rebuilt for it."""
        return self._clients.get(self._client.owner, self._client)


class UserRelay(OwnerRelay):
    """The relay of a connection that belongs to one user: everything goes to one of her clients, or to none."""

    def __init__(self, attribution: Attribution, announcer: Announcer, principal: str) -> None:
        self._attribution = attribution
        self._announcer = announcer
        self._principal = principal

    def _whose(self, server: str) -> Caller | None:
        return only_caller(*self._attribution.candidates(server, lambda principal: principal == self._principal))

    def _updated(self, server: str, uri: str) -> None:
        self._announcer.updated(server, uri, principal=self._principal)


def only_caller(calls: Sequence[Call], clients: Sequence[Client]) -> Caller | None:
    """The only possible caller; None if there is none, or more than one."""
    if len({call.client.owner for call in calls} or {client.owner for client in clients}) != 1:
        return None
    return calls[-1] if calls else IdleCaller(clients[0])


async def notify(slot: Slot, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification to a server, if it is connected and of the era that has it."""
    connection = slot.lease.connection if slot.lease is not None else None
    if connection is not None and connection.era == "legacy":
        await connection.notify(method, params)
