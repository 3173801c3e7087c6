"""The hub as a web application: ``/mcp`` is all servers, ``/servers/{id}/mcp`` is one.

Each face has sessions of its own, begun when it is first asked for, and ended when its server is removed.
``/healthz`` says that the hub is alive, ``/readyz`` that every server has an outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from mcp import MCPError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from holdfast.front.desk import Desk
from holdfast.front.face import Face
from holdfast.front.guard import LOOPBACK_HOSTS, Guard, TokenPolicy
from holdfast.front.identity import named_by
from holdfast.front.replay import Bounds
from holdfast.front.sessions import Sessions
from holdfast.front.tracing import TraceContext
from holdfast.front.view import View
from holdfast.hub.hub import Hub

__all__ = ["Front", "create_app"]

ENDING_SECONDS = 5.0
"""How long the answers to those who still wait for a server that was removed may take, before sessions are ended."""


def create_app(
    hub: Hub,
    *,
    tokens: TokenPolicy | None = None,
    allowed_hosts: Collection[str] = LOOPBACK_HOSTS,
    beside: Sequence[BaseRoute] = (),
) -> Starlette:
    """The application. Make it before the hub is entered, so that servers know that clients can be asked;
    run it while the hub is open. Its ``state.front`` can be drained before a shutdown.
    Routes that stand ``beside`` its own are served to whoever they let in: no caller's token is asked for there.
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
    """All faces of a hub over HTTP."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._desk = Desk(hub)
        self._sent = Bounds()
        self._faces: dict[str | None, Sessions] = {}
        self._ends: dict[str | None, anyio.Event] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._opening = anyio.Lock()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._desk.run)
            changes = self._hub.events()
            task_status.started()
            async for _ in changes:
                self._end_removed()
            await anyio.sleep_forever()

    async def drain(self, within: float) -> bool:
        """Take no new calls and wait for those under way; False if some are left after so many seconds."""
        return await self._desk.drain(within)

    @property
    def draining(self) -> bool:
        """Whether it takes no new calls any more."""
        return self._desk.draining

    def forget(self, client: Hashable) -> None:
        """A client is gone, and with it the connections that were its own."""
        self._hub.registry.clients.release(client)

    async def face(self, server: str | None) -> Sessions | None:
        """The sessions of one face; None if there is no such server."""
        if server is not None and server not in self._hub.servers:
            return None
        async with self._opening:
            if server not in self._faces and self._tasks is not None:
                await self._tasks.start(self._hold, server)
        return self._faces.get(server)

    def _end_removed(self) -> None:
        """Close the faces of servers that are no longer configured; nobody finds them any more from now on."""
        known = self._hub.servers
        for server in [name for name in self._faces if name is not None and name not in known]:
            del self._faces[server]
            self._ends.pop(server).set()

    async def _hold(self, server: str | None, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep one face open, in one task: whoever enters it must leave it."""
        face = Face(self._desk, View(self._hub, server))
        sessions = Sessions(
            face,
            streams=face.streams,
            bounds=self._sent,
            max_request_body_size=self._hub.config.settings.limits.message_bytes,
        )
        async with sessions.run():
            self._faces[server] = sessions
            end = self._ends[server] = anyio.Event()
            self._desk.put_up(face.board)
            task_status.started()
            try:
                await end.wait()
                face.close()
                await sessions.quiet(within=ENDING_SECONDS)
            finally:
                face.close()
                self._desk.take_down(face.board)


class _Endpoint:
    """An ASGI application, and as such served for every HTTP method."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE" and self._said_goodbye(scope):
            await Response(status_code=204)(scope, receive, send)
            return
        server = scope.get("path_params", {}).get("server")
        face = await self._front.face(server)
        if face is None:
            missing = JSONResponse({"error": f"no server named {server!r} is configured"}, status_code=404)
            await missing(scope, receive, send)
            return
        await face.handle_request(scope, receive, send)

    def _said_goodbye(self, scope: Scope) -> bool:
        """A client without a session, but with a key of its own, can say that it is gone."""
        try:
            named = named_by(scope) if "mcp-session-id" not in Headers(scope=scope) else None
        except MCPError:
            return False  # the session manager refuses the request, as it does any other
        if named is not None:
            self._front.forget(named)
        return named is not None
