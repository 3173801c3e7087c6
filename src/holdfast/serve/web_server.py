"""The web server of a hub: uvicorn's protocol and lifespan, our own accepting, and an end that we decide.

uvicorn opens no listener and handles no signal here. Connections come by an ``Acceptor``, which knows the limits, the
peer's uid and TLS. The order of an end is that of ``leave``: stop accepting, serve what is open, then close.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import anyio
import uvicorn

from holdfast.access import ConnectionLimits, PeerUids
from holdfast.front import Acceptor, HttpConnection, PeerConnection, ServerTls
from holdfast.serve.inner_hub import HubListener

if TYPE_CHECKING:
    import asyncio

__all__ = ["HubWebServer"]

STREAMS_SECONDS = 1
"""After the last call, idle event streams are still open. They are cut after this time."""

CONNECTED_SECONDS = 0.05
"""How often a hub whose successor accepts looks whether clients are still connected."""


class HubWebServer(uvicorn.Server):
    """A uvicorn server that ignores signals, takes connections by an ``Acceptor``, and reports when it listens."""

    def __init__(
        self,
        app: Any,
        *,
        tls: ServerTls | None,
        on_listen: Callable[[], None],
        private: socket.socket | None = None,
        for_hubs: tuple[HubListener, Any] | None = None,
    ) -> None:
        """``private`` is a Unix socket at which other processes of this hub reach it.

        ``for_hubs`` are a listener for other hubs, and the application that is served there.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=STREAMS_SECONDS,
                lifespan="on",
            )
        )
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on the sockets."""
        await super().startup([])  # it opens no listener of its own
        if self.should_exit:
            return
        self._acceptors = [
            Acceptor(
                *(one, self._made),
                limits=self._limits,
                uids=self._uids,
                tls=self._tls,
                on_refused=cast("Any", self.config.app).state.endpoint.certificate_refused,
            )
            for one in sockets or ()
        ]
        if self._private is not None:
            self._handed = [*self._acceptors]
            # It has limits of its own: strangers at the port must not shut out the other workers.
            self._acceptors.append(Acceptor(self._private, self._made, limits=ConnectionLimits()))
        if self._for_hubs is not None:
            self._acceptors.append(self._acceptor_for_hubs(*self._for_hubs))
        self.servers = cast("list[asyncio.Server]", self._acceptors)
        self._on_listen()

    @property
    def held(self) -> int:
        """How many clients are connected."""
        return self._limits.open

    def _acceptor_for_hubs(self, hubs: HubListener, app: Any) -> Acceptor:
        """The connections of other hubs: the same hub, its MCP endpoints alone, with the rules of that application."""
        config = uvicorn.Config(app, http=HttpConnection, log_config=None, access_log=False, lifespan="off")
        config.load()
        return Acceptor(
            hubs.listener,
            lambda: PeerConnection(config, self.server_state, self.lifespan.state, hubs.identity.trusts),
            limits=ConnectionLimits(),
            tls=hubs.tls,
            on_refused=app.state.endpoint.certificate_refused,
        )

    def _made(self) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn looks ten times a second, for a header that we do not use and for signals."""
        await self._ended.wait()

    def end(self) -> None:
        """Close what is open."""
        self.should_exit = True
        self._ended.set()

    def stop_accepting(self) -> None:
        """Close the listening socket; connections that are open, or were accepted, stay."""
        for acceptor in self._acceptors:
            if acceptor in self._handed:
                acceptor.take_waiting()
            acceptor.stop()

    async def disconnected(self) -> None:
        """Wait until no client is connected."""
        while self.server_state.connections or any(one.opening for one in self._acceptors):  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(CONNECTED_SECONDS)
