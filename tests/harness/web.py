"""Serve an ASGI application on a loopback port, for the length of a block."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import uvicorn

from holdfast.access.connections import ConnectionLimits, PeerUids
from holdfast.front.acceptor import Acceptor
from holdfast.front.listener import HttpConnection
from holdfast.serve.listening_socket import bind


class _Server(uvicorn.Server):
    """Says when it has started; streams that are still open when it ends are cut."""

    def __init__(self, app: Callable[..., Any], *, accept: bool = False, tls: ssl.SSLContext | None = None) -> None:
        own = hasattr(getattr(app, "state", None), "endpoint")  # the hub serves its MCP endpoints on the connection
        http: Any = HttpConnection if own else "auto"
        super().__init__(uvicorn.Config(app, http=http, log_level="critical", timeout_graceful_shutdown=0, ws="none"))
        self.up = anyio.Event()
        self._accept = accept
        self._tls = tls
        self._app: Any = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self._accept:
            await super().startup(sockets)
        else:
            await super().startup([])
            made = lambda: HttpConnection(self.config, self.server_state, self.lifespan.state)  # noqa: E731
            limits, refused = ConnectionLimits(), self._app.state.endpoint.certificate_refused
            self.servers = cast(
                "Any",
                [
                    Acceptor(one, made, limits=limits, uids=PeerUids.open(), tls=self._tls, on_refused=refused)
                    for one in sockets or ()
                ],
            )
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
    """The address at which the application answers; with ``accept``, connections are taken as the program does it."""
    listener = bind("127.0.0.1", port) if unix is None else _unix_listener(unix)
    name = listener.getsockname()
    server = _Server(app, accept=accept, tls=tls)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, server, listener)
        try:
            # A child that is started meanwhile holds the loop until the process that forks for it has its imports.
            with anyio.fail_after(60):
                await server.up.wait()
            yield f"{'https' if tls is not None else 'http'}://127.0.0.1:{name[1]}" if unix is None else f"unix:{unix}"
        finally:
            server.should_exit = True
    _end_watchers()


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
