"""Authorization services for a gateway to ask: one over plain HTTP, one over gRPC, both scripted.

The gRPC one speaks just enough HTTP/2 and protobuf to answer Envoy's ``Check`` call, by hand: an
answer is a few bytes that never change their form, which is not worth a dependency.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable, Iterator
from types import MappingProxyType
from typing import NamedTuple

from tests.peers.http_fault import Behaviour, Exchange, FaultServer, Request

__all__ = ["AuthzService", "Decision", "GrpcAuthzService"]


class Decision(NamedTuple):
    """What the service says: 200 lets the request in, anything else is what the client gets."""

    status: int = 200
    body: str = ""


class AuthzService(FaultServer):
    """An HTTP authorization service that allows everything until a test changes that."""

    def __init__(self) -> None:
        super().__init__(Behaviour("authz", self._answer))
        self._decide: Callable[[], Awaitable[Decision]] = _at_once(Decision())

    def allow(self) -> None:
        """Let everyone in, at once."""
        self._decide = _at_once(Decision())

    def deny(self, body: str = "", *, status: int = 403) -> None:
        """Turn everyone away, with this explanation."""
        self._decide = _at_once(Decision(status, body))

    def hold(self) -> asyncio.Event:
        """Give no answer until the event is set, then allow all; without the event there is no answer."""
        release = asyncio.Event()

        async def decide() -> Decision:
            await release.wait()
            return Decision()

        self._decide = decide
        return release

    def hold_first(self, count: int) -> None:
        """Leave the first so many checks without an answer, and let everyone in after that."""
        held = itertools.count(1)

        async def decide() -> Decision:
            if next(held) <= count:
                await asyncio.Event().wait()
            return Decision()

        self._decide = decide

    async def _answer(self, exchange: Exchange) -> None:
        decision = await exchange.unless_gone(self._decide())
        if decision is not None:
            await exchange.respond(decision.status, decision.body.encode(), content_type="text/plain")


class GrpcAuthzService(AuthzService):
    """The same over gRPC; ``requests`` holds the protobuf of each ``Check``."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(_PREFACE))
        writer.write(_frame(_SETTINGS))
        bodies: dict[int, bytes] = {}
        checks: set[asyncio.Task[None]] = set()
        try:
            while True:
                kind, flags, stream, payload = await _read_frame(reader)
                if kind == _DATA and payload:
                    bodies[stream] = bodies.get(stream, b"") + payload
                    writer.write(_more_room(len(payload), stream))
                if kind == _DATA and flags & _END_STREAM:
                    message = bodies.pop(stream)[_GRPC_HEAD:]
                    self.requests.append(Request("POST", _CHECK, MappingProxyType({}), message))
                    checks.add(asyncio.ensure_future(self._check(writer, stream)))
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    writer.write(_frame(kind, flags=_ACK, payload=payload if kind == _PING else b""))
        finally:
            for task in checks:
                task.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _check(self, writer: asyncio.StreamWriter, stream: int) -> None:
        message = _check_response(await self._decide())
        body = struct.pack(">BI", 0, len(message)) + message
        writer.write(
            _frame(_HEADERS, flags=_END_HEADERS, stream=stream, payload=_RESPONSE_HEAD)
            + _frame(_DATA, stream=stream, payload=body)
            + _frame(_HEADERS, flags=_END_HEADERS | _END_STREAM, stream=stream, payload=_TRAILERS)
        )


def _at_once(decision: Decision) -> Callable[[], Awaitable[Decision]]:
    async def decide() -> Decision:
        return decision

    return decide


# HTTP/2, as far as one unary call needs it (RFC 9113).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_GRPC_HEAD = 5  # a flag and the length, before each message
_CHECK = "/envoy.service.auth.v3.Authorization/Check"


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that neither side is to remember (HPACK, RFC 7541, 6.2.2)."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


_RESPONSE_HEAD = b"\x88" + _literal(b"content-type", b"application/grpc")  # 0x88 is `:status: 200`
_TRAILERS = _literal(b"grpc-status", b"0")


def _frame(kind: int, *, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    head = await reader.readexactly(9)
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return kind, flags, stream, await reader.readexactly(int.from_bytes(head[:3]))


def _more_room(size: int, stream: int) -> bytes:
    """Give back what was used of the windows of the connection and the stream."""
    update = struct.pack(">I", size)
    return b"".join(_frame(_WINDOW_UPDATE, stream=number, payload=update) for number in (0, stream))


def _check_response(decision: Decision) -> bytes:
    """``envoy.service.auth.v3.CheckResponse`` in protobuf: a status, and what a denied client gets."""
    if decision.status == 200:
        return _field(1, b"")
    permission_denied = _field(1, _varint(8) + _varint(7))
    status = _field(1, _varint(8) + _varint(decision.status))
    return permission_denied + _field(2, status + _field(3, decision.body.encode()))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes(_seven_bits_each(value))


def _seven_bits_each(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
