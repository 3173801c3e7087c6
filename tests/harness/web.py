"""Serve an ASGI application on a loopback port, for the length of a block."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from holdfast.access.connections import ConnectionLimits, PeerUids
from holdfast.front.listener import Acceptor, HttpConnections
from holdfast.serve.listening import bind


class _Server(uvicorn.Server):
    """Serves an application that is not the hub's. It says when it has started, and cuts streams when it ends."""

    def __init__(self, app: Callable[..., Any], up: anyio.Event) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0, ws="none"))
        self.up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serving(
    app: Callable[..., Any],
    *,
    port: int = 0,
    accept: bool = False,
    tls: ssl.SSLContext | None = None,
    unix: Path | None = None,
) -> AsyncIterator[str]:
    """The address at which the application answers; with ``accept``, the user of each peer is found, as by the program.

    The hub serves its MCP endpoints on the connection, any other application is uvicorn's.
    """
    listener = bind("127.0.0.1", port) if unix is None else _unix_listener(unix)
    name = listener.getsockname()
    if hasattr(getattr(app, "state", None), "endpoint"):
        served = _hub_served(app, listener, PeerUids.open() if accept else None, tls)
    else:
        served = _app_served(app, listener)
    async with served:
        yield f"{'https' if tls is not None else 'http'}://127.0.0.1:{name[1]}" if unix is None else f"unix:{unix}"
    _end_watchers()


@asynccontextmanager
async def _hub_served(
    app: Any, listener: socket.socket, uids: PeerUids | None, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    endpoint = app.state.endpoint
    server, refused = (
        HttpConnections(endpoint, trusts=getattr(tls, "trusts", None)),
        getattr(endpoint, "certificate_refused", lambda _peer, _reason: None),
    )
    async with app.router.lifespan_context(app):
        acceptor = Acceptor(
            listener, server.connection, limits=ConnectionLimits(), uids=uids, tls=tls, on_refused=refused
        )
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # it ends in good order, also under a test that fails
                acceptor.close()
                await acceptor.wait_closed()
                await server.close(0)


@asynccontextmanager
async def _app_served(app: Callable[..., Any], listener: socket.socket) -> AsyncIterator[None]:
    server = _Server(app, anyio.Event())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, server, listener)
        try:
            # A child that is started meanwhile holds the loop until the process that forks for it has its imports.
            with anyio.fail_after(60):
                await server.up.wait()
            yield
        finally:
            server.should_exit = True


def _unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


async def _serve(server: _Server, listener: socket.socket) -> None:
    with anyio.CancelScope(shield=True):  # it ends in good order, also under a test that fails
        await server.serve([listener])


def _end_watchers() -> None:
    """The SSE library leaves a task behind on every event loop that had a stream."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__qualname__", "") == "_shutdown_watcher":
            task.cancel()
