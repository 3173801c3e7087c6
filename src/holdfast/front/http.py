"""The hub as a web application: ``/mcp`` serves all servers, ``/servers/{id}/mcp`` serves one.

Each endpoint has its own sessions. It opens at its first request and closes when its server is removed.
``/healthz`` reports that the hub is alive, ``/readyz`` that every server has an outcome. The trace context in the
headers of a request becomes the parent of the hub's spans.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from mcp import MCPError
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.front.access.guard import LOOPBACK_HOSTS, Guard
from holdfast.front.access.principals import TokenPolicy, client_key_in
from holdfast.front.broker import Broker
from holdfast.front.server import McpServer
from holdfast.front.sessions import HttpSessions, ReplayBudget
from holdfast.front.view import View
from holdfast.hub import Hub, is_tracing

__all__ = ["Front", "TraceContext", "create_app"]


class TraceContext:
    """ASGI middleware that attaches the trace context of the headers while a request is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""
        if scope["type"] != "http" or not is_tracing():
            await self._app(scope, receive, send)
            return
        token = attach(extract(Headers(scope=scope)))
        try:
            await self._app(scope, receive, send)
        finally:
            detach(token)


ENDING_SECONDS = 5.0
"""How long the sessions of a removed server stay open, so that calls in flight get their answers."""


def create_app(
    hub: Hub,
    *,
    tokens: TokenPolicy | None = None,
    allowed_hosts: Collection[str] = LOOPBACK_HOSTS,
    beside: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the application.

    Create it before the hub is entered: servers then learn that clients can answer requests. Run it while the hub
    is open. Its ``state.front`` can be drained before a shutdown. The routes in ``beside`` check access themselves:
    a caller's token is not required there.
    """
    front = Front(hub)

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> JSONResponse:
        ready = await hub.ready(0) and not front.draining
        return JSONResponse({"ready": ready, "draining": front.draining}, status_code=200 if ready else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(front.run)
            yield
            tasks.cancel_scope.cancel()

    app = Starlette(
        routes=[
            Route("/mcp", _Endpoint(front)),
            Route("/servers/{server}/mcp", _Endpoint(front)),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            *beside,
        ],
        middleware=[
            Middleware(Guard, tokens=tokens, allowed_hosts=allowed_hosts, beside=beside),
            Middleware(TraceContext),
        ],
        lifespan=lifespan,
    )
    app.state.front = front
    return app


class Front:
    """All MCP endpoints of a hub over HTTP."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._broker = Broker(hub)
        self._sent = ReplayBudget()
        self._endpoints: dict[str | None, HttpSessions] = {}
        self._ends: dict[str | None, anyio.Event] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._opening = anyio.Lock()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._broker.run)
            changes = self._hub.events()
            task_status.started()
            async for _ in changes:
                self._end_removed()
            await anyio.sleep_forever()

    async def drain(self, within: float) -> bool:
        """Refuse new calls and wait for those in flight; False if some are left after ``within`` seconds."""
        return await self._broker.drain(within)

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._broker.draining

    def forget(self, client: Hashable) -> None:
        """Close the connections that belong to a client that left."""
        self._hub.registry.clients.release(client)

    async def sessions_of(self, server: str | None) -> HttpSessions | None:
        """Return the sessions of one endpoint; None if there is no such server."""
        if server is not None and server not in self._hub.servers:
            return None
        async with self._opening:
            if server not in self._endpoints and self._tasks is not None:
                await self._tasks.start(self._serve_endpoint, server)
        return self._endpoints.get(server)

    def _end_removed(self) -> None:
        """Close the endpoints of servers that are no longer configured; new requests get 404 at once."""
        known = self._hub.servers
        for server in [name for name in self._endpoints if name is not None and name not in known]:
            del self._endpoints[server]
            self._ends.pop(server).set()

    async def _serve_endpoint(self, server: str | None, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep one endpoint open. One task does it all: a session manager must be left by the task that entered it."""
        mcp_server = McpServer(self._broker, View(self._hub, server))
        sessions = HttpSessions(
            mcp_server,
            streams=mcp_server.streams,
            bounds=self._sent,
            max_request_body_size=self._hub.config.settings.limits.message_bytes,
        )
        async with sessions.run():
            self._endpoints[server] = sessions
            end = self._ends[server] = anyio.Event()
            self._broker.add_subscriptions(mcp_server.subscriptions)
            task_status.started()
            try:
                await end.wait()
                mcp_server.close()
                await sessions.wait_until_idle(within=ENDING_SECONDS)
            finally:
                mcp_server.close()
                self._broker.remove_subscriptions(mcp_server.subscriptions)


class _Endpoint:
    """An ASGI application: Starlette passes every HTTP method to it, not only GET."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE" and self._releases_client(scope):
            await Response(status_code=204)(scope, receive, send)
            return
        server = scope.get("path_params", {}).get("server")
        sessions = await self._front.sessions_of(server)
        if sessions is None:
            missing = JSONResponse({"error": f"no server named {server!r} is configured"}, status_code=404)
            await missing(scope, receive, send)
            return
        await sessions.handle_request(scope, receive, send)

    def _releases_client(self, scope: Scope) -> bool:
        """A client without a session that sent a key of its own can end its connections by DELETE."""
        try:
            key = client_key_in(scope) if "mcp-session-id" not in Headers(scope=scope) else None
        except MCPError:
            return False  # the session manager refuses the request
        if key is not None:
            self._front.forget(key)
        return key is not None
