"""One gRPC method call over HTTP/2: a request message, and its one answer. The optional extra ``holdfast-mcp[authz]``.

Theory of operation. ``h2`` reads and writes the frames of HTTP/2 and does no I/O; this module has the socket, the
deadlines and the few rules of gRPC. All calls share one connection, which is made when a call needs it:

    unary(path, message) -> _H2Connection.call -> HEADERS, DATA  ...  HEADERS, DATA, HEADERS (trailers) -> answer

What can happen, and what holds then:

- The peer refuses connections, leaves, or does not speak gRPC: the call fails at once, and the next call dials again.
  There is no pause between dials: a peer that is back answers the next call.
- A connection that stood before turns out to be closed, or the peer says that it leaves (GOAWAY; it is restarted): the
  call is made once more on a new one. That is safe only for a method without side effects; the caller of ``unary``
  promises that. The peer may still answer what it took before it leaves, but h2 reads nothing after a GOAWAY.
- No answer comes in time: that call fails. If the connection was silent since the call was sent, it is closed too.
  Else a peer that vanished without a word would hold up each call until TCP gives up, after a quarter of an hour.
- The peer allows no more streams, or no more bytes: the call waits, within its deadline.
- An answer is too large, compressed or not whole: the call fails.

What must never happen: an answer reaches another call than its own; a call waits beyond its deadline; an exception of
``h2`` or of the network leaves this module. All failures are ``GrpcFailed``, with a reason in a few words.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import NetworkFailure, NetworkFault, TimedOut, TlsFailure, TlsFault, quoted_line
from holdfast.wire.http.pool import dial, dial_unix, evidence_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["GrpcChannel", "GrpcFailed", "GrpcTarget"]

LARGEST_ANSWER: Final = 64 * 1024
"""Bytes. A decision has some hundred of them, and it is held in memory whole."""

TIMEOUT: Final = "timeout"
"""The reason of a call that had no answer in time."""

CLOSED: Final = "connection closed"
NOT_GRPC: Final = "it does not speak gRPC"
MISSING: Final = "the extra `authz` is not installed"

_NETWORK: Final = {
    NetworkFault.NAME_RESOLUTION: "its host name does not resolve",
    NetworkFault.REFUSED: "connection refused",
    NetworkFault.UNREACHABLE: "its host cannot be reached",
    NetworkFault.RESET: "connection reset",
    NetworkFault.CLOSED: CLOSED,
}

_TLS: Final = {
    TlsFault.UNKNOWN_CA: "its certificate is of an unknown authority",
    TlsFault.EXPIRED: "its certificate has expired",
    TlsFault.NOT_YET_VALID: "its certificate is not valid yet",
    TlsFault.WRONG_NAME: "its certificate is for another name",
    TlsFault.CLIENT_CERTIFICATE: "it refuses our certificate, or wants one",
}

_STATUS: Final = {
    "0": "OK",
    "1": "CANCELLED",
    "2": "UNKNOWN",
    "3": "INVALID_ARGUMENT",
    "4": "DEADLINE_EXCEEDED",
    "5": "NOT_FOUND",
    "6": "ALREADY_EXISTS",
    "7": "PERMISSION_DENIED",
    "8": "RESOURCE_EXHAUSTED",
    "9": "FAILED_PRECONDITION",
    "10": "ABORTED",
    "11": "OUT_OF_RANGE",
    "12": "UNIMPLEMENTED",
    "13": "INTERNAL",
    "14": "UNAVAILABLE",
    "15": "DATA_LOSS",
    "16": "UNAUTHENTICATED",
}
"""The names of the codes of gRPC, as its header has them."""

DEADLINE_EXCEEDED: Final = "4"


class GrpcFailed(Exception):
    """A call has no answer; ``reason`` says why in a few words, without a text of a peer that was not quoted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _ConnectionLost(GrpcFailed):
    """The connection ended before an answer began; another one may do better."""


@dataclass(frozen=True, kw_only=True)
class GrpcTarget:
    """Where a gRPC server is. With a ``path`` it is a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    tls: Callable[[], ssl.SSLContext] | None = field(default=None, repr=False)
    """Makes the TLS of a new connection, so that certificates may change; None for plain text. It reads files."""

    @property
    def authority(self) -> str:
        """What the peer reads as the name of the host."""
        return "localhost" if self.path else f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class GrpcChannel:
    """The calls to one gRPC server."""

    def __init__(self, target: GrpcTarget) -> None:
        self._target = target
        self._connection: _H2Connection | None = None
        self._dialing = asyncio.Lock()

    async def unary(self, path: str, message: bytes, *, within: float) -> bytes:
        """The answer of a method without side effects; raises ``GrpcFailed``. Dialing counts for the time too."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        try:
            async with asyncio.timeout_at(until):
                kept = self._usable()
                if kept is not None:
                    try:
                        return await kept.call(path, message, until)
                    except _ConnectionLost:
                        pass  # it was closed while nothing was asked on it; the peer did not see this call, or left
                connection = await self._connected()
                return await connection.call(path, message, until)
        except TimeoutError:
            raise GrpcFailed(TIMEOUT) from None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()

    def _usable(self) -> _H2Connection | None:
        return self._connection if self._connection is not None and self._connection.is_usable else None

    async def _connected(self) -> _H2Connection:
        """The connection; it is made if there is none, once for all calls that wait for it."""
        async with self._dialing:
            if (kept := self._usable()) is not None:
                return kept
            target = self._target
            try:
                if target.path:
                    made = await dial_unix(lambda: _H2Connection(target), target.path)
                else:
                    tls = await asyncio.to_thread(_h2_tls, target.tls) if target.tls is not None else None
                    made = await dial(lambda: _H2Connection(target), target.host, target.port, tls)
            except ImportError:
                raise GrpcFailed(MISSING) from None
            except (OSError, UnicodeError) as exc:  # a failure of TLS is an OSError too
                raise GrpcFailed(_reason_of(exc)) from exc
            if target.tls is not None and made.alpn != "h2":
                made.abort()
                raise GrpcFailed(NOT_GRPC)
            self._connection = made
            return made

    def __repr__(self) -> str:
        state = "connected" if self._usable() is not None else "not connected"
        return f"<GrpcChannel to {self._target.path or self._target.authority} {state}>"


class _GrpcCall:
    """One call on the connection, and what came for it."""

    __slots__ = ("answer", "body", "headers", "sent_at")

    def __init__(self, answer: asyncio.Future[bytes], sent_at: float) -> None:
        self.answer = answer
        self.sent_at = sent_at
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()

    def take(self, data: bytes) -> None:
        """Take a part of the body, up to the bound."""
        if len(self.body) + len(data) > LARGEST_ANSWER:
            self.fail(GrpcFailed("its answer is too large"))
        else:
            self.body += data

    def fail(self, failure: GrpcFailed) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)

    def end(self) -> None:
        """The peer ended the stream: the answer, or why there is none."""
        if self.answer.done():
            return
        try:
            self.answer.set_result(_message_in(self.headers, bytes(self.body)))
        except GrpcFailed as failure:
            self.answer.set_exception(failure)


class _H2Connection(asyncio.Protocol):
    """One HTTP/2 connection, with the calls on it."""

    def __init__(self, target: GrpcTarget) -> None:
        import h2.connection  # noqa: PLC0415 - an extra

        self._lib = h2  # the one import: a hub without this extra loads the module too
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._scheme, self._authority = b"https" if target.tls is not None else b"http", target.authority.encode()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, _GrpcCall] = {}
        self._room = asyncio.Event()
        """Set when the peer may allow more streams or more bytes."""
        self._heard_at = self._loop.time()
        self.is_usable = True
        self.alpn: str | None = None

    # The connection.

    def connection_made(self, transport: Any) -> None:
        """It stands."""
        self._transport = transport
        secure = transport.get_extra_info("ssl_object")
        self.alpn = secure.selected_alpn_protocol() if secure is not None else None
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what the peer sent. A peer that breaks the rules of HTTP/2 is left.

        What follows a GOAWAY in the same bytes breaks them too, for h2: so the call may do better on a new connection.
        """
        self._heard_at = self._loop.time()
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except (self._lib.exceptions.H2Error, ValueError):  # a ValueError for bytes that are no frame at all
            self._lose(_ConnectionLost(NOT_GRPC))
            return
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with it each call that has no answer."""
        self._lose(_ConnectionLost(CLOSED))

    def abort(self) -> None:
        """Close it at once."""
        self._lose(_ConnectionLost(CLOSED))

    def _lose(self, failure: GrpcFailed) -> None:
        self.is_usable = False
        for stream in self._streams.values():
            stream.fail(failure)
        self._room.set()
        self._transport.abort()

    def _flush(self) -> None:
        if waiting := self._h2.data_to_send():
            self._transport.write(waiting)

    # A call.

    async def call(self, path: str, message: bytes, until: float) -> bytes:
        """The answer of one call. The caller bounds the time, and ``until`` says it to the peer."""
        number = 0
        stream = _GrpcCall(self._loop.create_future(), self._loop.time())
        try:
            while self._h2.open_outbound_streams >= self._h2.remote_settings.max_concurrent_streams:
                await self._more_room()
            number = self._h2.get_next_available_stream_id()
            self._streams[number] = stream
            self._h2.send_headers(number, self._request_headers(path, until))
            await self._send(number, stream, b"\0" + len(message).to_bytes(4, "big") + message)
            return await stream.answer
        except self._lib.exceptions.H2Error as exc:
            # The rules of HTTP/2 do not allow it: no stream id is left, or the peer closed its side.
            self._lose(_ConnectionLost(CLOSED))
            raise _ConnectionLost(CLOSED) from exc
        except asyncio.CancelledError:
            self._give_up(number, stream)
            raise
        finally:
            self._streams.pop(number, None)
            stream.answer.cancel()
            self._room.set()

    def _request_headers(self, path: str, until: float) -> Iterable[tuple[bytes, bytes]]:
        left = max(1, int((until - self._loop.time()) * 1e3))
        return (
            (b":method", b"POST"),
            (b":scheme", self._scheme),
            (b":authority", self._authority),
            (b":path", path.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"holdfast"),
            (b"grpc-timeout", b"%dm" % min(left, 99_999_999)),
        )

    async def _send(self, number: int, stream: _GrpcCall, content: bytes) -> None:
        """Send a message in as many frames as the peer allows; it may answer before it has all of it."""
        while not stream.answer.done():
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size, len(content))
            if size:
                piece, content = content[:size], content[size:]
                self._h2.send_data(number, piece, end_stream=not content)
                self._flush()
                if not content:
                    break
            else:
                self._flush()
                await self._more_room()

    async def _more_room(self) -> None:
        """Wait until the peer allows more. What is not sent yet is bounded by what the peer allows."""
        self._room.clear()
        await self._room.wait()
        if not self.is_usable:
            raise _ConnectionLost(CLOSED)

    def _give_up(self, number: int, stream: _GrpcCall) -> None:
        """The answer is not wanted any more, or did not come in time."""
        if number not in self._streams:
            return
        if self._heard_at < stream.sent_at:
            self.abort()  # nothing came since: see the theory of operation
            return
        try:
            self._h2.reset_stream(number, self._lib.errors.ErrorCodes.CANCEL)
        except self._lib.exceptions.H2Error:
            self.abort()
        self._flush()

    # What comes.

    def _take(self, event: Any) -> None:
        events = self._lib.events
        if isinstance(event, events.WindowUpdated | events.RemoteSettingsChanged | events.StreamEnded):
            self._room.set()
        if isinstance(event, events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if isinstance(event, events.ConnectionTerminated):
            self._lose(_ConnectionLost(CLOSED))
        number: Any = getattr(event, "stream_id", None)
        stream = self._streams.get(number)
        if stream is None:
            return
        match event:
            case events.DataReceived():
                stream.take(event.data)
            case events.ResponseReceived() | events.TrailersReceived():
                stream.headers |= dict(event.headers)
            case events.StreamEnded():
                stream.end()
            case events.StreamReset():
                stream.fail(_ConnectionLost("it reset the request"))

    def __repr__(self) -> str:
        state = "usable" if self.is_usable else "closed"
        return f"<_H2Connection to {self._authority.decode()} {state} calls={len(self._streams)}>"


def _h2_tls(make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    try:
        context = make()
    except OSError as exc:
        raise GrpcFailed("the files for its TLS cannot be read") from exc
    context.set_alpn_protocols(["h2"])
    return context


def _message_in(headers: dict[bytes, bytes], body: bytes) -> bytes:
    """The message of a whole answer: HTTP says that it worked, gRPC says so too, and there is exactly one."""
    if (status := headers.get(b":status", b"")) != b"200":
        raise GrpcFailed(f"it answered HTTP {quoted_line(status.decode('latin-1'))}")
    code = headers.get(b"grpc-status", b"").decode("latin-1")
    if code == DEADLINE_EXCEEDED:
        raise GrpcFailed(TIMEOUT)
    if code != "0":
        raise GrpcFailed(f"gRPC status {_STATUS[code]}" if code in _STATUS else NOT_GRPC)
    if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise GrpcFailed("its answer cannot be read")
    return body[5:]


def _reason_of(exc: BaseException) -> str:
    """Why no connection could be made."""
    match evidence_of(exc, doing="a connection", connecting=True):
        case NetworkFailure(fault=fault):
            return _NETWORK.get(fault, "no connection could be made")
        case TimedOut():  # the system gave it up before the deadline did
            return TIMEOUT
        case TlsFailure(fault=fault):
            return _TLS.get(fault, "the TLS handshake failed")
        case _:
            return "no connection could be made"
