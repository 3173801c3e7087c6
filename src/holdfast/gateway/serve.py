"""The HTTP endpoints of the bridge: ``/healthz``, ``/livez`` and ``/metrics``."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from holdfast.gateway.health import BridgeHealth

__all__ = ["health_app", "serving"]

STOPPING = 2
"""Seconds that open requests have to finish when the bridge ends."""


def health_app(health: BridgeHealth) -> Starlette:
    """The endpoints, as an application."""

    async def healthz(_: Request) -> Response:
        return JSONResponse(health.as_json(), status_code=200 if health.healthy else 503)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(health.as_metrics(), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/healthz", healthz), Route("/livez", livez), Route("/metrics", metrics)])


@asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[str]:
    """Serve an application while the block runs; yields its address."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as exc:
        hint = "use another address: --listen HOST:PORT"
        raise UsageError(f"cannot listen at {host}:{port}: {exc.strerror}", hint=hint) from exc
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=STOPPING, ws="none"
    )
    server = _HealthServer(config)
    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield f"http://{host}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True


class _HealthServer(uvicorn.Server):
    """A uvicorn server that ignores signals, because the command handles them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
