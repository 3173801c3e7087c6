"""New connections: each one gets a place, and the user at its other end is found (SEC-10, SEC-11).

Theory of operation. A readable listening socket calls ``_ready``, which takes some connections and returns: a flood of
them must not keep the event loop from the clients that are served. Each one gets a place (``ConnectionLimits``) in the
same step in which it is accepted, before its TLS handshake begins. So a client that never completes one is counted, and
is the first to give way. A task opens it then. Its place knows how it is closed: first by the end of that task, and
from then on by its transport.

What can happen: no place is left, and the new connection is closed. The process has no descriptor left: the connection
that waits longest is closed, and the rest stay in the queue of the system. The user is asked of the kernel at once,
because a peer that leaves meanwhile has no owner any more.

What must never happen: a descriptor stays open that no place counts. So what ends a task before its first step closes
the socket too (``_opened``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.access import Admission, ClientPeer, ConnectionLimits, PeerUids, has_left, peer_at
from holdfast.front.tls import HANDSHAKE_SECONDS, Handshakes
from holdfast.wire import unix_peer_uid

__all__ = ["Acceptor"]

AT_ONCE: Final = 64
"""Connections that are taken in one step of the event loop."""

PAUSE_SECONDS: Final = 0.1
"""The pause where no connection can be taken: no descriptor is left, and no connection waits."""

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("holdfast.front")


class Acceptor:
    """Accepts the connections of one listening socket, TCP or Unix, and owns it and ``uids``.

    ``make`` makes the protocol of a connection that has a place. ``on_refused`` is told of a client certificate that
    does not verify, with the reason.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Admission], asyncio.Protocol],
        *,
        limits: ConnectionLimits,
        uids: PeerUids | None = None,
        tls: ssl.SSLContext | None = None,
        on_refused: Callable[[ClientPeer, str], None] = lambda _peer, _reason: None,
    ) -> None:
        self._listener = listener
        self._make = make
        self._limits = limits
        self._uids = uids
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._handshakes = Handshakes(self._loop, tls) if tls is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops = self._closed = False
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._ready)

    @property
    def opening(self) -> int:
        """How many connections were accepted and are not open yet."""
        return len(self._tasks)

    def stop(self) -> None:
        """Close the listening socket. Connections that were accepted are opened: their clients believe in them."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            if self._uids is not None:
                self._uids.close()

    def close(self) -> None:
        """Close the listening socket; handshakes that run are given up."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake runs."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HANDSHAKE_SECONDS)

    def stop_when_empty(self) -> None:
        """Take every connection that waits, then stop: for a socket whose connections come to this process alone.

        Where no descriptor is left, that takes until one is free: no other process has what waits here.
        """
        self._stops = True
        while not self._closed and self._take_next():
            pass

    @property
    def is_stopping(self) -> bool:
        """Whether it stops when no connection waits, and some do."""
        return self._stops and not self._closed

    def _ready(self) -> None:
        for _ in range(AT_ONCE):
            if not self._take_next():
                return

    def _take_next(self) -> bool:
        """Take one connection; False if none waits, or none can be taken."""
        try:
            connection, name = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            if self._stops:
                self.stop()
            return False
        except OSError as exc:
            self._cannot_accept(exc)
            return False
        self._take(connection, name)
        return True

    def _cannot_accept(self, exc: OSError) -> None:
        if exc.errno in _NO_DESCRIPTOR:
            log.warning("no descriptor is left for a new connection")
            if self._limits.close_one():
                return  # the loop comes back at once
        else:
            log.warning("a connection could not be accepted: %s", exc.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._ready)

    def _take(self, connection: socket.socket, name: object) -> None:
        uid, left = self._user_of(connection)
        if connection.family == socket.AF_UNIX and uid != os.geteuid():
            connection.close()  # our Unix sockets are private to the user
            return
        admission = self._limits.enter(peer_at(name, uid, left=left))
        if admission is None:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection, admission))
        admission.close = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._opened, connection, admission))

    def _user_of(self, connection: socket.socket) -> tuple[int | None, bool]:
        """The user at the other end, if the kernel names one; and whether it named none because the peer has left."""
        if connection.family == socket.AF_UNIX:
            return unix_peer_uid(connection), False
        if self._uids is None:
            return None, False
        uid = self._uids.of(connection)
        return uid, uid is None and has_left(connection)

    def _opened(self, connection: socket.socket, admission: Admission, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # One that is pushed out before the first step of its task: nothing there could close it, and the collector of
        # garbage would come too late.
        if task.cancelled():
            admission.end()
            connection.close()

    async def _open(self, connection: socket.socket, admission: Admission) -> None:
        make = partial(self._make, admission)
        try:
            if self._handshakes is None:
                transport, _ = await self._loop.connect_accepted_socket(make, connection)
            else:
                transport = await self._handshakes.secured(connection, make, admission.key)
            admission.close = transport.abort
        except (OSError, asyncio.CancelledError) as exc:  # the peer left, or speaks no TLS: no fault of the hub
            if isinstance(exc, ssl.SSLCertVerificationError):
                self._on_refused(admission.peer, exc.verify_message)
            elif isinstance(exc, ssl.SSLError):
                log.debug("a TLS handshake failed: %s, from %s", exc.reason or "no reason", admission.peer.name)
            admission.end()
            connection.close()
