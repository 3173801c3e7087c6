"""The hub as a web application: ``/mcp`` is all servers, ``/servers/{id}/mcp`` is one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.front.face import build_face
from holdfast.front.guard import LOOPBACK_HOSTS, Guard, TokenPolicy
from holdfast.hub.hub import Hub

__all__ = ["create_app"]


def create_app(
    hub: Hub, *, tokens: TokenPolicy | None = None, allowed_hosts: Collection[str] = LOOPBACK_HOSTS
) -> Starlette:
    """The application. Make it before the hub is entered; run it while the hub is open."""
    managers = {name: StreamableHTTPSessionManager(build_face(hub, name)) for name in hub.config.servers}
    everything = StreamableHTTPSessionManager(build_face(hub))

    class All:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await everything.handle_request(scope, receive, send)

    class One:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await managers[scope["path_params"]["server"]].handle_request(scope, receive, send)

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> JSONResponse:
        ready = await hub.ready(0)
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for manager in (everything, *managers.values()):
                await stack.enter_async_context(manager.run())
            yield

    return Starlette(
        routes=[
            Route("/mcp", All()),
            Route("/servers/{server}/mcp", One()),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        middleware=[Middleware(Guard, tokens=tokens, allowed_hosts=allowed_hosts)],
        lifespan=lifespan,
    )
