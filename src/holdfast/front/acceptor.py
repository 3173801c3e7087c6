"""Takes new connections: each one gets a place, and the user at its other end is found, before it costs anything.

A connection counts from the moment that it is accepted, also while its TLS handshake runs. Where no place is left, it
is closed. Where the process has no descriptor left, one that waits is closed, and the rest stay in the system's queue.

TLS handshakes of new connections (``Handshakes``) take turns (``HandshakeTurns``): each costs milliseconds of CPU, and
its client is not known yet.

A few begin in each turn of the event loop, so requests of known clients are served between them. One peer has a bound
on those that are under way: else it could hold many back, and let all of them go on in the same moment. A new one of
that peer ends the oldest: a handshake takes a moment, and one that does not go on delays no other. Peers take turns, so
a flood from one does not delay the others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.access import Admission, ClientPeer, ConnectionLimits, PeerUids, has_left, peer_at
from holdfast.wire import unix_peer_uid

__all__ = ["Acceptor", "AdmittedProtocol", "HandshakeTurns"]

AT_ONCE: Final = 64
"""Connections that are taken in one step of the event loop."""

HANDSHAKE_SECONDS: Final = 10.0
"""How long a TLS handshake may take."""

PAUSE_SECONDS: Final = 0.1
"""The pause where no connection can be taken: no descriptor is left, and no connection waits."""

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_WORDS: Final = b"this port serves TLS: use https:// in the URL\n"
_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_WORDS), _WORDS)
)
_RECORD_HEAD, _HANDSHAKE, _LARGEST_RECORD = 5, 22, 1 << 14

_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"DELE", b"PUT ", b"OPTI", b"PATC")

log = logging.getLogger("holdfast.front")


class AdmittedProtocol(asyncio.Protocol):
    """A connection that knows its place."""

    admission: Admission | None = None


class Acceptor:
    """Accepts the connections of one listening socket, TCP or Unix, and owns it and ``uids``.

    ``on_refused`` is told of a client certificate that does not verify, with the reason. Uvicorn closes an acceptor as
    it closes an ``asyncio.Server``.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], AdmittedProtocol],
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
        self._closed = False
        self._pause: asyncio.TimerHandle | None = None
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
            if self._pause is not None:
                self._pause.cancel()
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

    def take_waiting(self) -> None:
        """Take every connection that waits now: for those that come to this process alone."""
        while not self._closed and self._take_next():
            pass

    def _ready(self) -> None:
        for _ in range(AT_ONCE):
            if not self._take_next():
                return

    def _take_next(self) -> bool:
        """Take one connection; False if none waits, or none can be taken."""
        try:
            connection, name = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
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
        self._wait(PAUSE_SECONDS)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._go_on)

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
        def make() -> AdmittedProtocol:
            protocol = self._make()
            protocol.admission = admission
            return protocol

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


class Handshakes:
    """The TLS handshakes of one listening socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext) -> None:
        self._loop = loop
        self._tls = tls
        self._turns = HandshakeTurns(loop)

    async def secured(
        self, connection: socket.socket, make: Callable[[], AdmittedProtocol], peer: str
    ) -> asyncio.Transport:
        """The transport of a connection with TLS. Its handshake waits for the whole greeting, and for a turn."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await self._readable(connection)
            if _speaks_http(connection):
                connection.recv(1 << 16)  # unread bytes would make the close a reset, and the answer is lost with it
                connection.send(_NO_TLS)
                raise ConnectionAbortedError
            await self._greeted(connection)
            turn = await self._turns.begin(peer, task.cancel)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                make, connection, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
            return transport
        finally:
            self._turns.end(peer, turn)

    async def _greeted(self, connection: socket.socket) -> None:
        """Wait until the first record is here. A client that sends a part of it and no more takes no turn."""
        for _ in range(2):  # its length, then all of it
            wanted = _record_size(connection.recv(_RECORD_HEAD, socket.MSG_PEEK))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            await self._readable(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    async def _readable(self, connection: socket.socket) -> None:
        came = asyncio.Event()
        self._loop.add_reader(connection, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(connection)

    def __repr__(self) -> str:
        return f"<Handshakes {self._turns!r}>"


def _record_size(head: bytes) -> int:
    """The size of the TLS record that begins so; that of its head, where this is not all of it or no such record."""
    if len(head) < _RECORD_HEAD or head[0] != _HANDSHAKE:
        return _RECORD_HEAD
    return _RECORD_HEAD + min(int.from_bytes(head[3:5], "big"), _LARGEST_RECORD)


def _speaks_http(connection: socket.socket) -> bool:
    """Whether a client begins with a request in plain HTTP: it gets an answer that it can read."""
    return connection.recv(4, socket.MSG_PEEK) in _METHODS


IN_A_TURN: Final = 2
"""How many begin in one turn of the event loop: a signature with an RSA key of 4096 bits takes 5 ms."""

OF_A_PEER: Final = 256
"""How many of one peer may be under way. A proxy has all its clients at one address, and some are slow."""


class HandshakeTurns:
    """Whose turn it is to begin a handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By peer; the peer whose turn is next comes first."""
        self._under_way: dict[str, dict[asyncio.Future[None], Callable[[], object]]] = {}
        """By peer what ends each one, the oldest first."""
        self._give_up: dict[asyncio.Future[None], Callable[[], object]] = {}
        self._scheduled = False

    async def begin(self, peer: str, give_up: Callable[[], object]) -> asyncio.Future[None]:
        """Wait for a turn; ``end`` must follow with the result. ``give_up`` ends the handshake, if others need it."""
        turn = self._loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._give_up[turn] = give_up
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next_turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up.pop(turn, None)
            self.end(peer, turn)
            raise
        return turn

    def end(self, peer: str, turn: asyncio.Future[None]) -> None:
        """A handshake is over. Idempotent."""
        under_way = self._under_way.get(peer)
        if under_way is not None and under_way.pop(turn, None) is not None and not under_way:
            del self._under_way[peer]

    def _next_turn(self) -> None:
        left = IN_A_TURN
        while left and self._waiting:
            peer = next(iter(self._waiting))
            waiting = self._waiting.pop(peer)
            turn = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # the others come first the next time
            give_up = self._give_up.pop(turn, None)
            if give_up is None or turn.done():
                continue  # it was given up
            under_way = self._under_way.setdefault(peer, {})
            if len(under_way) >= OF_A_PEER:
                under_way.pop(next(iter(under_way)))()
            under_way[turn] = give_up
            turn.set_result(None)
            left -= 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._loop.call_soon(self._next_turn)
