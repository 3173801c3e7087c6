"""The web server of a hub: its listening sockets, how it begins with others, and how it ends.

Connections come by an ``Acceptor``, which knows the limits, the peer's uid and TLS. ``HttpConnections`` owns those that
are open.

Theory of operation, for the end. A hub leaves for one of two reasons:

- **A signal, or its supervisor says so** (``Leaving.drain``). It is not ready any more, so that a balancer sends no new
  clients; it serves all for the lame-duck time; then the calls in flight have their time, and new requests get 503. It
  stops accepting when they are over, or before them where no balancer is told (no lame-duck time). At the second signal
  they are cut.
- **A successor accepts connections** (``Leaving.succeeded``). The address is already served, so there is no lame duck:
  it withdraws its announcement, stops accepting, and serves what is connected until that closes.

What must never happen: a socket is closed with accepted connections in its queue, or a call is cut before its time
although no second signal came.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
from starlette.applications import Starlette

from holdfast.access import ConnectionLimits, PeerUids
from holdfast.control import ControlServer
from holdfast.front import Acceptor, Front, HttpConnections, JoinServer, ServerTls, create_hub_app
from holdfast.identity import FleetIdentity
from holdfast.serve.listening import Announcement
from holdfast.serve.options import Serving
from holdfast.serve.program import END_SIGNALS, leave_terminal, on_terminal
from holdfast.serve.worker_link import WorkerLink

__all__ = ["HubListener", "HubWebServer", "Leaving", "end_when_asked"]

log = logging.getLogger("holdfast.serve")

STREAMS_SECONDS = 1
"""After the last call, idle event streams are still open. They are cut after this time."""

CONNECTED_SECONDS = 0.05
"""How often a hub whose successor accepts looks whether a connection is still being opened."""


@dataclass(frozen=True)
class HubListener:
    """Where other hubs connect."""

    listener: socket.socket
    identity: FleetIdentity
    """Proves this hub to the others; not on a Unix socket, where the kernel says who connects."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For TCP; None for a Unix socket."""
        return self.identity.server() if self.listener.family != socket.AF_UNIX else None

    @property
    def uids(self) -> frozenset[int] | None:
        """The users that may connect to a Unix socket; None where TLS decides."""
        return frozenset({os.geteuid()}) if self.tls is None else None


class HubWebServer:
    """Serves an application of ``create_app``, and reports when it listens."""

    def __init__(
        self,
        app: Starlette,
        *,
        tls: ServerTls | None,
        on_listen: Callable[[], None],
        private: socket.socket | None = None,
        for_hubs: HubListener | None = None,
    ) -> None:
        """``private`` is a Unix socket at which other processes of this hub reach it."""
        self._app = app
        self._servers = [HttpConnections(app.state.endpoint, trusts=tls.trusts if tls is not None else None)]
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
        if (hubs := self._for_hubs) is not None:
            # The same hub, its MCP endpoints alone, with the rules for other hubs.
            endpoint = create_hub_app(self._app.state.front, uids=hubs.uids).state.endpoint
            server = HttpConnections(endpoint, trusts=hubs.identity.trusts)
            self._servers.append(server)
            limits, refused = ConnectionLimits(), endpoint.certificate_refused
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
                acceptor.stop_when_empty()
            else:
                acceptor.stop()

    async def disconnected(self) -> None:
        """Wait until no client is connected."""
        while any(one.opening or one.is_stopping for one in self._acceptors):  # noqa: ASYNC110 - it takes a moment
            await anyio.sleep(CONNECTED_SECONDS)
        for server in self._servers:
            await server.disconnected()


# The beginning and the end.

STDIO_SECONDS = 5.0
"""How long the process of the stdio servers waits for them before it serves the workers: one may take minutes."""
MOVED_SECONDS = 5.0
"""How long that process waits, when it ends, for the workers to wait for the next one."""
READY_SECONDS = 60.0
"""How long a successor waits for its servers before it takes over."""


class Leaving:
    """The end of a hub over HTTP, step by step."""

    def __init__(
        self,
        serving: Serving,
        server: HubWebServer,
        front: Front,
        admin: ControlServer,
        note: Announcement,
        joined: JoinServer | None = None,
    ) -> None:
        self._serving = serving
        self._server = server
        self._front = front
        self._admin = admin
        self._note = note
        self._joined = joined
        self._starting: anyio.CancelScope | None = None

    async def wait_until_ready(self) -> None:
        """In a hub that takes the place of another: accept when the servers have an outcome."""
        worker = self._serving.worker
        if _runs_stdio(worker):
            # The workers wait in the queue of its socket meanwhile, and see its servers as they are.
            await self._front.hub.ready(STDIO_SECONDS)
            return
        if self._serving.predecessor is None and (worker is None or not worker.task.waits):
            return
        ready = False
        with anyio.CancelScope() as self._starting:
            ready = await self._front.hub.ready(READY_SECONDS)
        if not ready and not self._starting.cancel_called:
            log.warning("some servers have no outcome after %g s; this hub takes over all the same", READY_SECONDS)
        self._front.accepted = True

    async def be_ready_with_others(self) -> None:
        """In a worker that starts with others: be ready when all of them are, as one hub."""
        worker = self._serving.worker
        if worker is None or worker.task.waits:
            return
        self._front.is_told_ready = True
        await self._front.hub.ready()
        worker.report(ready=True)
        await worker.all_ready.wait()
        self._front.accepted = True

    async def drain(self, seconds: float) -> bool:
        """Leave because of a signal; False if some calls did not finish in time."""
        self._admin.drains()
        self._front.retire()
        if self._starting is not None:
            self._starting.cancel()
        worker = self._serving.worker
        # A balancer needs a moment to see that this hub is not ready. A worker without its supervisor gets no more
        # connections, and the next hub needs the port.
        if self._serving.lame_duck and (worker is None or not worker.is_orphan):
            log.info("not ready any more; all is still served for %g s", self._serving.lame_duck)
            await anyio.sleep(self._serving.lame_duck)
        else:
            self._stop_accepting()
        log.info("shutting down: new calls are refused; calls in flight have %g s", seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._let_joined_go, seconds)
            finished = await self._front.drain(seconds)
            log.debug("the requests over HTTP are done: %s", finished)
        # Behind a balancer not before: a port that refuses is a hub that is gone, and HAProxy cuts what waits for it.
        self._stop_accepting()
        if _runs_stdio(worker):
            # A worker may have sent a request before it learned of this end. It is refused, and not cut.
            with anyio.move_on_after(MOVED_SECONDS):
                await self._server.disconnected()
        return finished

    async def succeeded(self) -> None:
        """Leave because a successor accepts connections: what is still connected here is served until it closes."""
        self._note.withdraw()  # first: a command must find the successor, and not a hub that ends
        self._front.retire()
        self._stop_accepting()
        self._front.move_streams()
        self._admin.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._let_joined_go, self._serving.leave_seconds)
            with anyio.move_on_after(self._serving.leave_seconds):
                await self._server.disconnected()
        if not await self._front.drain(self._serving.options.drain):
            log.warning("some calls did not finish within %g s, and are cut", self._serving.options.drain)
        self.end()

    async def _let_joined_go(self, seconds: float) -> None:
        """Clients that joined go to the next hub when they have their answers."""
        if self._joined is not None and not await self._joined.leave(seconds):
            log.warning("some clients that joined had no answer after %g s, and are cut off", seconds)

    def _stop_accepting(self) -> None:
        self._server.stop_accepting()
        if self._serving.worker is not None:
            self._serving.worker.report(takes=False)

    def end(self) -> None:
        """Close what is left."""
        self._admin.close()
        self._server.end()


Drain = Callable[[float], Awaitable[bool]]


async def end_when_asked(drain: Drain, seconds: float, end: Callable[[], None], link: WorkerLink | None = None) -> None:
    """At the first signal, drain and end. At the second, end at once.

    A worker's supervisor can ask for both. A terminal or systemd may send the same signal to both of them: so what the
    supervisor asks does not count as a signal.
    """
    leave = link.asked_to_leave if link is not None else anyio.Event()
    cut = link.asked_to_end if link is not None else anyio.Event()
    async with anyio.create_task_group() as tasks:
        # The workers may need the stdio servers after a signal to all processes: the supervisor says when they end.
        tasks.start_soon(*(_ignore_signals,) if _runs_stdio(link) else (_follow_signals, leave, cut))
        await leave.wait()
        async with anyio.create_task_group() as both:
            both.start_soon(_drained, drain, seconds, both.cancel_scope)
            await cut.wait()
            orphan = link is not None and link.is_orphan
            log.warning("%s: the calls in flight are cut", "the supervisor is gone" if orphan else "second signal")
            both.cancel_scope.cancel()
        end()
        tasks.cancel_scope.cancel()


async def _follow_signals(leave: anyio.Event, cut: anyio.Event) -> None:
    hangup = (signal.SIGHUP,) if on_terminal() else ()
    with anyio.open_signal_receiver(*END_SIGNALS, *hangup) as signals:
        if await anext(signals) == signal.SIGHUP:
            leave_terminal()
        leave.set()
        await anext(signals)
        cut.set()


def _runs_stdio(link: WorkerLink | None) -> bool:
    return link is not None and link.task.runs_stdio


async def _ignore_signals() -> None:
    with anyio.open_signal_receiver(*END_SIGNALS) as signals:
        async for _ in signals:
            pass


async def _drained(drain: Drain, seconds: float, done: anyio.CancelScope) -> None:
    if not await drain(seconds):
        log.warning("some calls did not finish within %g s, and are cut", seconds)
    done.cancel()
