"""The hub over HTTP: ``/mcp`` serves all servers, ``/servers/{id}/mcp`` serves one.

The MCP endpoints are served on the connection itself (``HttpConnection``); every other path is an ASGI application.
Each endpoint has its own sessions. It opens at its first request and closes when its server is removed.
``/healthz`` reports that the hub is alive, ``/readyz`` that every server has an outcome. The trace context in the
headers of a request becomes the parent of the hub's spans.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from mcp import MCPError
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as AsgiRequest
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from holdfast.front.access.guard import LOOPBACK_HOSTS, AccessRules, Guard, Refused
from holdfast.front.access.principals import Principal, TokenPolicy, client_key_in
from holdfast.front.access.quotas import Quotas
from holdfast.front.broker import Broker
from holdfast.front.peer_requests import PeerRequests
from holdfast.front.requests import Reply, Request
from holdfast.front.server import McpServer
from holdfast.front.session_ids import SessionIds
from holdfast.front.sessions import HttpSessions
from holdfast.front.streams import Backlog, LogBounds
from holdfast.front.view import View
from holdfast.hub import AccessRefused, Hub, RefusalKind, is_tracing
from holdfast.wire import dumps

__all__ = ["Front", "McpEndpoint", "create_app"]

_LEAVING = dumps({"error": "Holdfast is shutting down and takes no new requests; try again in a moment"})

EVICTED_SHARE = 10
"""One in so many idle sessions gives way at once where room is needed: they are not sorted for each new one."""

ENDING_SECONDS = 5.0
"""How long the sessions of a removed server stay open, so that calls in flight get their answers."""


def create_app(
    hub: Hub,
    *,
    tokens: TokenPolicy | None = None,
    allowed_hosts: Collection[str] = LOOPBACK_HOSTS,
    beside: Sequence[BaseRoute] = (),
    uids: Collection[int] | None = None,
    client_certificates: bool = False,
    ids: SessionIds | None = None,
) -> Starlette:
    """Return the application, to be served by uvicorn with ``http=HttpConnection``.

    Create it before the hub is entered: servers then learn that clients can answer requests. Run it while the hub
    is open. Its ``state.front`` can be drained before a shutdown, its ``state.endpoint`` serves the MCP endpoints. The
    routes in ``beside`` check access themselves: a caller's token is not required there. ``uids`` are the users of this
    machine that may connect; None for all. It needs an ``Acceptor`` that knows them. With ``client_certificates`` a
    caller needs a certificate that TLS verified.
    """
    journal = hub.registry.journal

    def report(kind: RefusalKind, source: str, principal: str, quota: str) -> None:
        at = journal.clock.now()
        journal.write(AccessRefused(kind=kind, source=source, principal=principal, quota=quota, at=at))

    quotas = Quotas(
        lambda: hub.config.settings.quotas,
        on_refused=lambda principal, exceeded: report("quota", "", principal, exceeded.quota),
    )
    rules = AccessRules(
        tokens, allowed_hosts, uids=uids, client_certificates=client_certificates, quotas=quotas, report=report
    )
    front = Front(hub, ids, quotas)

    async def healthz(_: AsgiRequest) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(_: AsgiRequest) -> JSONResponse:
        ready = await hub.ready(0) and not front.draining
        return JSONResponse({"ready": ready, "draining": front.draining}, status_code=200 if ready else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(front.run)
            yield
            tasks.cancel_scope.cancel()

    app = Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), *beside],
        middleware=[Middleware(Guard, rules=rules, beside=beside)],
        lifespan=lifespan,
    )
    app.state.front = front
    app.state.endpoint = McpEndpoint(front, rules)
    return app


class Front:
    """All MCP endpoints of a hub over HTTP."""

    def __init__(self, hub: Hub, ids: SessionIds | None = None, quotas: Quotas | None = None) -> None:
        self.hub = hub
        self.quotas = quotas or Quotas()
        self.quotas.make_room = self._make_room
        self._broker = Broker(hub)
        self._ids = ids or SessionIds()
        self.retiring = False
        self.refusing = False
        self._bounds = LogBounds()
        self._backlog = Backlog()
        self._endpoints: dict[str | None, HttpSessions] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        fleet = hub.registry.fleet
        self._peers = PeerRequests(self, fleet.peers) if fleet is not None and fleet.peers is not None else None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await tasks.start(self._broker.run)
                tasks.start_soon(self._ids.store.run, self._ended)
                changes = self.hub.events()
                task_status.started()
                async for _ in changes:
                    self._end_removed()
                await anyio.sleep_forever()
            finally:
                self._tasks = None
                for sessions in self._endpoints.values():
                    sessions.server.close()
                    sessions.close()

    def retire(self) -> None:
        """Begin to leave: readiness says so, and each answer is the last one of its connection. All is still served."""
        self.retiring = True

    def move_streams(self) -> None:
        """End the streams that would stay open, so that clients open them elsewhere; tell open questions."""
        for sessions in self._endpoints.values():
            sessions.server.close()
            sessions.end_streams()

    def refuse(self) -> None:
        """Answer new requests with 503 from now on. Calls that wait for their client cannot be resumed any more."""
        self.retire()
        self.refusing = True
        self._broker.pending_calls.close()
        self.move_streams()

    async def drain(self, within: float) -> bool:
        """Refuse new requests and wait for those in flight; False if some are left after ``within`` seconds."""
        self.refuse()
        with anyio.move_on_after(within):
            for sessions in list(self._endpoints.values()):
                await sessions.wait_until_idle(within=within)
        return all(sessions.is_idle for sessions in self._endpoints.values())

    @property
    def draining(self) -> bool:
        """Whether this hub leaves."""
        return self.retiring

    def sessions_of(self, server: str | None) -> HttpSessions | None:
        """Return the sessions of one endpoint; None if there is no such server."""
        if server is not None and server not in self.hub.registry.slots:
            return None
        sessions = self._endpoints.get(server)
        if sessions is None:
            sessions = self._endpoints[server] = self._opened(server)
        return sessions

    def _opened(self, server: str | None) -> HttpSessions:
        mcp_server = McpServer(self._broker, View(self.hub, server))
        self._broker.add_subscriptions(mcp_server.subscriptions)
        sessions = HttpSessions(
            mcp_server,
            bounds=self._bounds,
            backlog=self._backlog,
            largest=lambda: self.hub.config.settings.limits.message_bytes,
            forget=self._forget,
            quotas=self.quotas,
            ids=self._ids,
        )
        sessions.peers = self._peers
        return sessions

    def _forget(self, headers: Mapping[str, str], principal: Principal) -> bool:
        """A client without a session that sent a key of its own can end its connections by DELETE."""
        try:
            key = client_key_in(headers, principal)
        except MCPError:
            return False
        if key is not None:
            self.hub.registry.clients.release(key)
        return key is not None

    def _make_room(self, principal: str) -> None:
        """Drop the sessions of a principal that are idle longest, of all endpoints."""
        idle = [(one, sessions) for sessions in self._endpoints.values() for one in sessions.idle_sessions(principal)]
        idle.sort(key=lambda found: found[0].used_at)
        for one, sessions in idle[: len(idle) // EVICTED_SHARE + 1]:
            sessions.drop_idle(one)

    def _ended(self, session: bytes) -> None:
        """Another hub ended a session."""
        self._ids.ended(session)
        for sessions in self._endpoints.values():
            sessions.end(session)

    def _end_removed(self) -> None:
        """Close the endpoints of servers that are no longer configured; new requests get 404 at once."""
        known = self.hub.registry.slots
        for server in [name for name in self._endpoints if name is not None and name not in known]:
            sessions = self._endpoints.pop(server)
            if self._tasks is not None:
                self._tasks.start_soon(self._end, sessions)

    async def _end(self, sessions: HttpSessions) -> None:
        try:
            sessions.server.close()
            await sessions.wait_until_idle(within=ENDING_SECONDS)
        finally:
            sessions.close()
            self._broker.remove_subscriptions(sessions.server.subscriptions)


class McpEndpoint:
    """The paths of MCP: checks access, finds the sessions, and lets them answer."""

    def __init__(self, front: Front, rules: AccessRules) -> None:
        self._front = front
        self._rules = rules

    @property
    def retiring(self) -> bool:
        """Whether each answer is the last one of its connection."""
        return self._front.retiring

    def claims(self, path: str) -> bool:
        """Whether a path is an MCP endpoint."""
        return path == "/mcp" or (path.startswith("/servers/") and path.endswith("/mcp") and path.count("/") == 3)

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        if self._front.refusing:
            reply.plain(503, _LEAVING, b"content-type: application/json\r\nretry-after: 1\r\n")
            return
        found = await self._rules.check(
            request.headers,
            client_verified=request.client_verified,
            client_names=request.client_names,
            admission=request.admission,
        )
        if isinstance(found, Refused):
            headers = {"content-type": "application/json", **found.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            reply.plain(found.status, dumps(found.body), lines.encode("latin-1"))
            return
        server = None if request.path == "/mcp" else request.path[len("/servers/") : -len("/mcp")]
        sessions = self._front.sessions_of(server)
        if sessions is None:
            reply.plain(404, dumps({"error": f"no server named {server!r} is configured"}))
            return
        if not is_tracing():
            await sessions.serve(request, reply, found)
            return
        token = attach(extract(request.headers))
        try:
            await sessions.serve(request, reply, found)
        finally:
            detach(token)
