"""The web server of a hub: its listening sockets, and an end that we decide.

Connections come by an ``Acceptor``, which knows the limits, the peer's uid and TLS. ``HttpConnections`` owns those
that are open. The order of an end is that of ``leave``: stop accepting, serve what is open, then close.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import anyio
from starlette.applications import Starlette

from holdfast.access import ConnectionLimits, PeerUids
from holdfast.front import Acceptor, HttpConnections, ServerTls
from holdfast.serve.inner_hub import HubListener

__all__ = ["HubWebServer"]

STREAMS_SECONDS = 1
"""After the last call, idle event streams are still open. They are cut after this time."""

CONNECTED_SECONDS = 0.05
"""How often a hub whose successor accepts looks whether a connection is still being opened."""


class HubWebServer:
    """Serves an application of ``create_app``, and reports when it listens."""

    def __init__(
        self,
        app: Starlette,
        *,
        tls: ServerTls | None,
        on_listen: Callable[[], None],
        private: socket.socket | None = None,
        for_hubs: tuple[HubListener, Starlette] | None = None,
    ) -> None:
        """``private`` is a Unix socket at which other processes of this hub reach it.

        ``for_hubs`` are a listener for other hubs, and the application that is served there.
        """
        self._app = app
        self._servers = [HttpConnections(app.state.endpoint, app)]
        self._private = private
        self._limits = ConnectionLimits()
        self._for_hubs = for_hubs
        self._tls = tls
        self._uids = PeerUids.open()
        self._on_listen = on_listen
        self._ended = anyio.Event()
        self._acceptors: list[Acceptor] = []
        self._handed: list[Acceptor] = []
        """In a worker: those whose connections come to it alone, so that no other process takes what waits."""

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on the sockets until ``end``, then close what is open."""
        async with self._app.router.lifespan_context(self._app):
            if self._ended.is_set():
                return
            self._accept(sockets)
            self._on_listen()
            try:
                await self._ended.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._close()

    async def _close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        async with anyio.create_task_group() as tasks:
            for acceptor in self._acceptors:
                tasks.start_soon(acceptor.wait_closed)
            for server in self._servers:
                tasks.start_soon(server.close, STREAMS_SECONDS)

    def _accept(self, sockets: Sequence[socket.socket]) -> None:
        refused = self._app.state.endpoint.certificate_refused
        make = self._servers[0].connection
        self._acceptors = [
            Acceptor(one, make, limits=self._limits, uids=self._uids, tls=self._tls, on_refused=refused)
            for one in sockets
        ]
        if self._private is not None:
            self._handed = [*self._acceptors]
            # It has limits of its own: strangers at the port must not shut out the other workers.
            self._acceptors.append(Acceptor(self._private, make, limits=ConnectionLimits()))
        if self._for_hubs is not None:
            # The same hub, its MCP endpoints alone, with the rules of that application.
            hubs, app = self._for_hubs
            server = HttpConnections(app.state.endpoint, app, trusts=hubs.identity.trusts)
            self._servers.append(server)
            refused = app.state.endpoint.certificate_refused
            limits = ConnectionLimits()
            self._acceptors.append(
                Acceptor(hubs.listener, server.connection, limits=limits, tls=hubs.tls, on_refused=refused)
            )

    @property
    def held(self) -> int:
        """How many clients are connected."""
        return self._limits.open

    @property
    def total_requests(self) -> int:
        """How many requests came since the start."""
        return sum(one.total_requests for one in self._servers)

    def end(self) -> None:
        """Close what is open."""
        self._ended.set()

    def stop_accepting(self) -> None:
        """Close the listening socket; connections that are open, or were accepted, stay."""
        for acceptor in self._acceptors:
            if acceptor in self._handed:
                acceptor.take_waiting()
            acceptor.stop()

    async def disconnected(self) -> None:
        """Wait until no client is connected."""
        while any(one.opening for one in self._acceptors):  # noqa: ASYNC110 - it takes a moment
            await anyio.sleep(CONNECTED_SECONDS)
        for server in self._servers:
            await server.disconnected()
