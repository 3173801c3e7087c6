"""The link between replicas: one asks another something, directly, over a sealed connection.

An operation has a name, and a handler on the replica that is asked. A request is a small object and a body of bytes; so
is the answer, whose body may also be a stream that lasts. A connection carries one request at a time and is kept for
the next one. Closing it tells the other side that the asker is gone.

Who has the session key may ask: a peer is trusted like this hub itself. Handlers still verify what a peer says about a
client (its session id, its principal), so that a fault in one replica does not open a session on another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio

from holdfast.errors import UsageError
from holdfast.hub.fleet.peer_address import PeerAddress, bind_peer
from holdfast.hub.fleet.peer_seal import (
    CHALLENGE_BYTES,
    DIALED_BYTES,
    LARGEST_FRAME,
    BadSeal,
    PeerSeal,
    accept_dialer,
    answer_challenge,
    challenge,
    fingerprint_bytes,
)

__all__ = [
    "PeerAnswer",
    "PeerFailed",
    "PeerHandler",
    "PeerRefused",
    "PeerReply",
    "PeerRequest",
    "PeerUnreachable",
    "Peers",
]

log = logging.getLogger("holdfast.fleet")

CONNECT_SECONDS: Final = 2.0
"""How long a connection to a replica may take, with its handshake."""
BODY_SECONDS: Final = 30.0
"""How long a frame of a request may take to come."""
KEPT_SECONDS: Final = 10.0
"""How long an unused connection is kept; the listener keeps it longer, so that no request meets its end."""
IDLE_SECONDS: Final = 60.0
KEPT_CONNECTIONS: Final = 8
"""Unused connections to one replica."""
MOST_UNKNOWN: Final = 64
"""Connections whose handshake is not complete."""
MOST_CONNECTIONS: Final = 4_096
LARGEST_BODY: Final = 512 * 1024 * 1024
_PIECE: Final = 64 * 1024

_REQUEST, _BODY, _END, _ANSWER, _REFUSED = range(1, 6)


class PeerUnreachable(Exception):
    """No connection to the replica came to stand: it got nothing of the request."""


class PeerFailed(Exception):
    """The connection broke after the request was sent: whether the replica acted is not known."""


class PeerRefused(Exception):
    """The replica answered that it does not do this."""


@dataclass(frozen=True, kw_only=True)
class PeerRequest:
    """What another replica asks."""

    sender: str
    """The name of the replica that asks."""
    operation: str
    about: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""


class PeerReply:
    """The answer to a request, as its handler writes it."""

    def __init__(self, seal: PeerSeal, writer: asyncio.StreamWriter) -> None:
        self._seal = seal
        self._writer = writer
        self.begun = False
        self.complete = False
        """Whether its end was written."""
        self.lost = False
        """Whether the asker is gone."""
        self.on_gone: Callable[[], object] | None = None
        """Told when the asker closes the connection. Without it, the handler is cancelled then."""

    def begin(self, about: Mapping[str, Any] | None = None) -> None:
        """The head of the answer."""
        self.begun = True
        self._put(_ANSWER, json.dumps(dict(about or {})).encode())

    def write(self, data: bytes) -> None:
        """A piece of the body; the asker gets it at once."""
        for at in range(0, len(data), _PIECE):
            self._put(_BODY, data[at : at + _PIECE])

    def finish(self, data: bytes = b"") -> None:
        """The last piece of the body, and the end: a small one goes out in one write."""
        if len(data) > _PIECE:
            self.write(data)
            data = b""
        self.complete = True
        if not self.lost:
            last = self._seal.frame(_BODY, data) if data else b""
            self._writer.write(last + self._seal.frame(_END))

    def refuse(self, reason: str) -> None:
        """Do not do it; instead of ``begin``."""
        self.begun = True
        self._put(_REFUSED, reason[:1_000].encode())

    async def drained(self) -> None:
        """Wait until the asker has read most of what was written."""
        with suppress(OSError):
            await self._writer.drain()

    @property
    def unread(self) -> int:
        """How many bytes wait for the asker to read them."""
        return 0 if self.lost else self._writer.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection now."""
        self._writer.transport.abort()

    def _put(self, kind: int, content: bytes) -> None:
        if not self.lost:
            self._writer.write(self._seal.frame(kind, content))


PeerHandler: TypeAlias = Callable[[PeerRequest, PeerReply], Awaitable[None]]


class PeerAnswer:
    """The answer of a replica, as the asker reads it."""

    def __init__(self, about: Mapping[str, Any], connection: _PeerConnection) -> None:
        self.about = about
        self._connection = connection
        self.complete = False

    async def next_piece(self) -> bytes | None:
        """The next piece of the body; None at its end. Raises ``PeerFailed``."""
        if self.complete:
            return None
        kind, content = await self._connection.receive()
        if kind == _BODY:
            return content
        if kind != _END:
            raise PeerFailed("the replica broke the rules of the link")
        self.complete = True
        return None

    async def body(self, most: int = LARGEST_BODY) -> bytes:
        """The whole body."""
        parts, size = [], 0
        while (piece := await self.next_piece()) is not None:
            parts.append(piece)
            size += len(piece)
            if size > most:
                raise PeerFailed("the answer of the replica is too large")
        return b"".join(parts)


class _PeerConnection:
    """The asker's side of a connection."""

    def __init__(self, seal: PeerSeal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._seal = seal
        self._reader = reader
        self._writer = writer
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether nothing says that the other side closed it: the event loop may not have told yet."""
        if self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing():
            return False
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    async def send(self, head: bytes, body: bytes) -> None:
        waiting = self._seal.frame(_REQUEST, head)
        for at in range(0, len(body), _PIECE):
            if at:
                self._writer.write(waiting)
                await self._writer.drain()
                waiting = b""
            waiting += self._seal.frame(_BODY, body[at : at + _PIECE])
        self._writer.write(waiting + self._seal.frame(_END))  # a small request goes out in one write
        await self._writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        try:
            size = self._seal.length(await self._reader.readexactly(4))
            return self._seal.open(await self._reader.readexactly(size))
        except (OSError, EOFError, BadSeal) as exc:
            raise PeerFailed(_reason(exc)) from exc

    def close(self) -> None:
        self._writer.transport.abort()


class Peers:
    """The other replicas, for the parts of a hub that ask them something, and the operations that they may ask here."""

    def __init__(
        self,
        keys: Callable[[], Sequence[bytes]],
        fleet: str,
        *,
        advertise: PeerAddress | None = None,
        largest: Callable[[], int] = lambda: LARGEST_BODY,
    ) -> None:
        self._keys = keys
        self._fleet = fleet
        self._largest = largest
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.address = ""
        """Where other replicas reach this one; empty if they cannot."""
        if advertise is not None:
            self._listener, bound = bind_peer(advertise)
            self.address = str(bound)
        self.replica = ""
        self._addresses: Callable[[], Mapping[str, str]] = dict
        self._handlers: dict[str, PeerHandler] = {}
        self._kept: dict[str, list[_PeerConnection]] = {}
        self._unknown = 0
        self._open: set[asyncio.StreamWriter] = set()
        self.refused = 0
        """Connections that were not of this fleet, so far."""

    def join(self, replica: str, addresses: Callable[[], Mapping[str, str]]) -> None:
        """The name of this replica, and the addresses of the others by their names, from their signed presence."""
        self.replica, self._addresses = replica, addresses

    def handle(self, operation: str, handler: PeerHandler) -> None:
        """Let other replicas ask this; a later handler replaces an earlier one."""
        self._handlers[operation] = handler

    @property
    def present(self) -> tuple[str, ...]:
        """The other replicas that are present, also those that cannot be asked."""
        return tuple(sorted(name for name in self._addresses() if name != self.replica))

    @property
    def others(self) -> tuple[str, ...]:
        """The other replicas that are present and can be reached."""
        return tuple(sorted(name for name, at in self._addresses().items() if at and name != self.replica))

    # Asking.

    @asynccontextmanager
    async def request(
        self,
        replica: str,
        operation: str,
        about: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        within: float | None = None,
    ) -> AsyncIterator[PeerAnswer]:
        """Ask a replica; the answer's head is here, its body comes. ``within`` bounds the wait for the head.

        Raises ``PeerUnreachable``, ``PeerFailed`` or ``PeerRefused``. A block that is left early closes the connection.
        """
        connection = await self._connected(replica)
        clean = False
        try:
            head = json.dumps({"from": self.replica, "to": replica, "operation": operation, "about": dict(about or {})})
            if len(head) > LARGEST_FRAME:
                raise PeerRefused("the head of the request is too large for a replica")
            try:
                with anyio.fail_after(within):
                    await connection.send(head.encode(), body)
                    kind, content = await connection.receive()
            except (TimeoutError, OSError) as exc:
                raise PeerFailed(_reason(exc)) from exc
            if kind == _REFUSED:
                raise PeerRefused(content.decode("utf-8", "replace"))
            if kind != _ANSWER:
                raise PeerFailed("the replica broke the rules of the link")
            answer = PeerAnswer(_answered(content), connection)
            yield answer
            clean = answer.complete
        finally:
            if clean:
                self._keep(replica, connection)
            else:
                connection.close()

    async def ask(
        self,
        replica: str,
        operation: str,
        about: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        within: float,
    ) -> tuple[Mapping[str, Any], bytes]:
        """Ask a replica, and return its whole answer."""
        try:
            with anyio.fail_after(within):
                async with self.request(replica, operation, about, body) as answer:
                    return answer.about, await answer.body()
        except TimeoutError as exc:
            raise PeerFailed(f"no answer within {within:g} s") from exc

    async def _connected(self, replica: str) -> _PeerConnection:
        kept = self._kept.get(replica, [])
        now = anyio.current_time()
        while kept:
            connection = kept.pop()
            if connection.usable and now - connection.idle_since < KEPT_SECONDS:
                return connection
            connection.close()
        address = self._addresses().get(replica)
        if address is None:
            raise PeerUnreachable(f"the replica {replica} is not present")
        if not address:
            raise PeerUnreachable(f"the replica {replica} was started without --advertise")
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                return await self._dial(PeerAddress.parse(address))
        except (OSError, EOFError, TimeoutError, BadSeal, UsageError) as exc:
            raise PeerUnreachable(f"the replica {replica} cannot be reached at {address}: {_reason(exc)}") from exc

    async def _dial(self, address: PeerAddress) -> _PeerConnection:
        if address.path:
            reader, writer = await asyncio.open_unix_connection(address.path)
        else:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            said = await reader.readexactly(CHALLENGE_BYTES)
            said += await reader.readexactly(fingerprint_bytes(said))
            answer, seal = answer_challenge(said, self._keys(), self._fleet)
            writer.write(answer)
        except BaseException:
            writer.transport.abort()
            raise
        return _PeerConnection(seal, reader, writer)

    def _keep(self, replica: str, connection: _PeerConnection) -> None:
        kept = self._kept.setdefault(replica, [])
        connection.idle_since = anyio.current_time()
        kept.append(connection)
        if len(kept) > KEPT_CONNECTIONS:
            kept.pop(0).close()

    # Being asked.

    async def run(self) -> None:
        """Answer other replicas until cancelled."""
        try:
            if self._listener is None:
                await anyio.sleep_forever()
            async with anyio.create_task_group() as tasks:

                def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    if self._unknown >= MOST_UNKNOWN or len(self._open) >= MOST_CONNECTIONS:
                        writer.transport.abort()
                        return
                    self._open.add(writer)
                    tasks.start_soon(self._serve, reader, writer)

                self._server = await self._listen(connected)
                await anyio.sleep_forever()
        finally:
            self.close()

    async def _listen(self, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]) -> asyncio.Server:
        listener = self._listener
        assert listener is not None  # noqa: S101 - see run()
        if listener.family == socket.AF_UNIX:
            return await asyncio.start_unix_server(connected, sock=listener)
        return await asyncio.start_server(connected, sock=listener)

    def close(self) -> None:
        """Close every connection, and the listening socket."""
        for connection in [one for kept in self._kept.values() for one in kept]:
            connection.close()
        self._kept.clear()
        for writer in list(self._open):
            writer.transport.abort()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        self._server = self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seal = await self._greeted(reader, writer)
            connection = _AskedConnection(seal, reader, writer, self._largest)
            while (asked := await connection.next_request()) is not None:
                await self._answer(asked, connection)
        except (OSError, EOFError, TimeoutError):
            pass  # the other replica left
        except BadSeal as exc:
            self.refused += 1
            log.warning("a connection for replicas was closed: %s", exc)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PeerSeal:
        self._unknown += 1
        try:
            keys = self._keys()
            sent = challenge(keys, self._fleet)
            writer.write(sent)
            with anyio.fail_after(CONNECT_SECONDS):
                return accept_dialer(await reader.readexactly(DIALED_BYTES), sent, keys, self._fleet)
        finally:
            self._unknown -= 1

    async def _answer(self, asked: tuple[Mapping[str, Any], bytes | None], connection: _AskedConnection) -> None:
        head, body = asked
        reply = PeerReply(connection.seal, connection.writer)
        handler = self._handlers.get(str(head.get("operation")))
        about = head.get("about")
        if head.get("to") != self.replica:
            reply.refuse(f"this is not the replica {head.get('to')}")
        elif body is None:
            reply.refuse("the request is too large")
        elif handler is None or not isinstance(about, dict):
            reply.refuse(f"this replica has no operation {head.get('operation')!r}")
        else:
            request = PeerRequest(
                sender=str(head.get("from")), operation=str(head["operation"]), about=about, body=body
            )
            await connection.watched(handler, request, reply)
            return
        await reply.drained()

    def __repr__(self) -> str:
        return f"<Peers of {self.replica!r} at {self.address or 'no address'}>"


class _AskedConnection:
    """The listener's side of a connection."""

    def __init__(
        self, seal: PeerSeal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, largest: Callable[[], int]
    ) -> None:
        self.seal = seal
        self.writer = writer
        self._reader = reader
        self._largest = largest
        self._ahead: asyncio.Future[bytes] | None = None
        """The read of the next length; it ends early when the asker closes the connection."""

    async def next_request(self) -> tuple[Mapping[str, Any], bytes | None] | None:
        """The head and the body of the next request, which is None if it is too large; None at the end."""
        with anyio.move_on_after(IDLE_SECONDS):
            try:
                prefix = await (self._ahead or self._reader.readexactly(4))
            except (OSError, EOFError):
                return None
            self._ahead = None
            kind, head = await self._frame(prefix)
            if kind != _REQUEST:
                raise BadSeal("a frame has no place here")
            return _object(head), await self._body()
        return None

    async def _body(self) -> bytes | None:
        parts: list[bytes] = []
        size, most = 0, self._largest()
        while True:
            with anyio.fail_after(BODY_SECONDS):
                kind, content = await self._frame(await self._reader.readexactly(4))
            if kind == _END:
                return b"".join(parts) if size <= most else None
            if kind != _BODY:
                raise BadSeal("a frame has no place here")
            size += len(content)
            if size <= most:
                parts.append(content)
            else:
                parts.clear()

    async def _frame(self, prefix: bytes) -> tuple[int, bytes]:
        return self.seal.open(await self._reader.readexactly(self.seal.length(prefix)))

    async def watched(self, handler: PeerHandler, request: PeerRequest, reply: PeerReply) -> None:
        """Let the handler answer; it learns if the asker leaves."""
        ahead = self._ahead = asyncio.ensure_future(self._reader.readexactly(4))
        try:
            with anyio.CancelScope() as scope:

                def came(read: asyncio.Future[bytes]) -> None:
                    if read.cancelled() or read.exception() is None:
                        return
                    reply.lost = True
                    if reply.on_gone is not None:
                        reply.on_gone()
                    else:
                        scope.cancel()

                ahead.add_done_callback(came)
                await self._handled(handler, request, reply)
            ahead.remove_done_callback(came)
        except BaseException:
            ahead.cancel()
            raise
        if scope.cancelled_caught:
            raise EOFError

    async def _handled(self, handler: PeerHandler, request: PeerRequest, reply: PeerReply) -> None:
        try:
            await handler(request, reply)
            if not reply.begun:
                reply.begin()
        except Exception:
            log.exception("the operation %s of another replica failed here", request.operation)
            if reply.begun:
                reply.abort()
                return
            reply.refuse("the replica failed to do it")
            return
        if not reply.complete:
            reply.finish()
        if not reply.lost:
            await reply.drained()


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        read = json.loads(content)
    except ValueError as exc:
        raise BadSeal("a frame holds no object") from exc
    if not isinstance(read, dict):
        raise BadSeal("a frame holds no object")
    return read


def _answered(content: bytes) -> Mapping[str, Any]:
    try:
        return _object(content)
    except BadSeal as exc:
        raise PeerFailed("the replica broke the rules of the link") from exc


def _reason(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, EOFError):
        return "it closed the connection"
    return f"{exc}" or type(exc).__name__
