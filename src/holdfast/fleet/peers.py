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
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from holdfast.errors import UsageError
from holdfast.fleet.peer_address import PeerAddress, bind_peer
from holdfast.fleet.peer_frames import BODY, LARGEST_HEAD, LAST, PIECE, PeerFrames, head_and_piece
from holdfast.fleet.peer_seal import (
    CHALLENGE_BYTES,
    DIALED_BYTES,
    BadSeal,
    accept_dialer,
    answer_challenge,
    challenge,
    fingerprint_bytes,
)
from holdfast.fleet.peer_watch import PeerWatch

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
KEPT_CONNECTIONS: Final = 64
"""Unused connections to one replica: as many calls at the same time need no handshake."""
MOST_UNKNOWN: Final = 64
"""Connections whose handshake is not complete."""
MOST_CONNECTIONS: Final = 4_096
LARGEST_BODY: Final = 512 * 1024 * 1024

_REQUEST, _ANSWER, _REFUSED = 1, 3, 4
_BROKE_RULES: Final = "the replica broke the rules of the link"
_ENCODER: Final = msgspec.json.Encoder(enc_hook=dict)
_DECODER: Final = msgspec.json.Decoder()


class PeerUnreachable(Exception):
    """No connection to the replica came to stand: it got nothing of the request."""


class PeerFailed(Exception):
    """The connection broke after the request was sent: whether the replica acted is not known."""


class PeerRefused(Exception):
    """The replica answered that it does not do this."""


class PeerRequest(NamedTuple):
    """What another replica asks."""

    sender: str
    """The name of the replica that asks."""
    operation: str
    about: Mapping[str, Any]
    body: bytes


class PeerReply:
    """The answer to a request, as its handler writes it."""

    def __init__(self, frames: PeerFrames) -> None:
        self._frames = frames
        self.begun = False
        self.complete = False
        """Whether its end was written."""
        self.lost = False
        """Whether the asker is gone."""
        self.on_gone: Callable[[], object] | None = None
        """Told when the asker closes the connection. Without it, the handler is cancelled then."""

    def answer(self, about: Mapping[str, Any] | None = None, body: bytes = b"") -> None:
        """The whole answer: a small one is one frame."""
        self._start(_ANSWER, _head(about or {}), body, complete=True)

    def begin(self, about: Mapping[str, Any] | None = None) -> None:
        """The head of an answer whose body comes later."""
        self._start(_ANSWER, _head(about or {}))

    def write(self, data: bytes) -> None:
        """A piece of the body; the asker gets it at once. What comes after the end would belong to the next answer."""
        for at in range(0, len(data), PIECE):
            self._put(BODY, data[at : at + PIECE])

    def finish(self, data: bytes = b"") -> None:
        """The last piece of the body, and the end."""
        last = max(0, (len(data) - 1) // PIECE * PIECE)
        self.write(data[:last])
        self._put(BODY | LAST, data[last:] if last else data)
        self.complete = True

    def refuse(self, reason: str) -> None:
        """Do not do it; instead of ``begin``."""
        self._start(_REFUSED, reason[:1_000].encode(errors="replace"), complete=True)

    async def drained(self) -> None:
        """Wait until the asker has read most of what was written."""
        if self._frames.is_full:
            with suppress(OSError):
                await self._frames.drained()

    @property
    def unread(self) -> int:
        """How many bytes wait for the asker to read them."""
        return 0 if self.lost else self._frames.unsent

    def abort(self) -> None:
        """Close the connection now."""
        self._frames.close()

    def _start(self, kind: int, head: bytes, body: bytes = b"", *, complete: bool = False) -> None:
        self.begun = True
        whole = complete and len(body) <= PIECE
        self._put(kind | LAST if whole else kind, len(head).to_bytes(4, "big") + head + (body if whole else b""))
        self.complete = whole
        if complete and not whole:
            self.finish(body)

    def _put(self, kind: int, content: bytes) -> None:
        if not self.lost and not self.complete:
            self._frames.put(kind, content)


PeerHandler: TypeAlias = Callable[[PeerRequest, PeerReply], Awaitable[None]]


class PeerAnswer:
    """The answer of a replica, as the asker reads it."""

    def __init__(
        self, about: Mapping[str, Any], piece: bytes, frames: PeerFrames, keep: Callable[[PeerFrames], None] | None
    ) -> None:
        self.about = about
        self._piece = piece
        self._frames = frames
        self._keep = keep
        """What to do with the connection once the answer is complete; None if it is."""

    @property
    def complete(self) -> bool:
        """Whether all of it came."""
        return self._keep is None

    async def next_piece(self) -> bytes | None:
        """The next piece of the body; None at its end. Raises ``PeerFailed``."""
        if self._piece:
            piece, self._piece = self._piece, b""
            return piece
        while self._keep is not None:
            kind, content = await _received(self._frames)
            if kind & ~LAST != BODY:
                raise PeerFailed(_BROKE_RULES)
            if kind & LAST:
                keep, self._keep = self._keep, None
                keep(self._frames)
            if content:
                return content
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

    def close(self) -> None:
        """No more of it is read. An answer that is not complete ends with its connection."""
        if self._keep is not None:
            self._frames.close()


async def _received(frames: PeerFrames) -> tuple[int, bytes]:
    try:
        return await frames.next()
    except (OSError, EOFError, BadSeal) as exc:
        raise PeerFailed(_reason(exc)) from exc


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
        self.look_again: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        """Learns of replicas that joined a moment ago."""
        self._handlers: dict[str, PeerHandler] = {}
        self._kept: dict[str, list[PeerFrames]] = {}
        self._watch = PeerWatch(self._greets)
        self._unknown = 0
        self._open: set[PeerFrames] = set()
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

    async def begin(
        self, replica: str, operation: str, about: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> PeerAnswer:
        """Ask a replica; the head of the answer is here, its body may come later. It must be closed.

        Raises ``PeerUnreachable``, ``PeerFailed`` or ``PeerRefused``.
        """
        head = _head({"from": self.replica, "to": replica, "operation": operation, "about": about or {}})
        if len(head) > LARGEST_HEAD:
            raise PeerRefused("the head of the request is too large for a replica")
        frames = self._kept_connection(replica) or await self._dialed(replica)
        self._watch.begin(frames, frames.address)
        try:
            await _send(frames, head, body)
            kind, content = await _received(frames)
            told, piece = _answered(kind, content)
            keep = partial(self._keep, replica)
            if kind & LAST:
                keep(frames)
            if kind == _REFUSED | LAST:
                raise PeerRefused(content[4:].decode("utf-8", "replace"))
        except OSError as exc:
            frames.close()
            raise PeerFailed(_reason(exc)) from exc
        except PeerRefused:
            raise
        except BaseException:
            frames.close()
            raise
        return PeerAnswer(told, piece, frames, None if kind & LAST else keep)

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
        """The same as a block, which closes the answer. ``within`` bounds the wait for the head."""
        try:
            with anyio.fail_after(within):
                answer = await self.begin(replica, operation, about, body)
        except TimeoutError as exc:
            raise PeerFailed(_reason(exc)) from exc
        try:
            yield answer
        finally:
            answer.close()

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

    def _kept_connection(self, replica: str) -> PeerFrames | None:
        kept = self._kept.get(replica)
        while kept:
            frames = kept.pop()
            frames.on_lost = None
            if frames.usable and self._now() - frames.idle_since < KEPT_SECONDS:
                return frames
            frames.close()
        return None

    async def _dialed(self, replica: str) -> PeerFrames:
        if replica not in self._addresses():
            await self.look_again()
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

    async def _dial(self, address: PeerAddress) -> PeerFrames:
        loop = asyncio.get_running_loop()
        if address.path:
            _, frames = await loop.create_unix_connection(PeerFrames, address.path)
        else:
            _, frames = await loop.create_connection(PeerFrames, address.host, address.port)
        frames.address = str(address)
        try:
            said = await frames.take(CHALLENGE_BYTES)
            said += await frames.take(fingerprint_bytes(said))
            answer, seal = answer_challenge(said, self._keys(), self._fleet)
            frames.write(answer)
            frames.use(seal)
        except BaseException:
            frames.close()
            raise
        return frames

    async def _greets(self, address: str) -> bool:
        """Whether a new connection to a replica comes to stand."""
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                (await self._dial(PeerAddress.parse(address))).close()
        except (OSError, EOFError, TimeoutError, BadSeal, UsageError):
            return False
        return True

    def _keep(self, replica: str, frames: PeerFrames) -> None:
        self._watch.end(frames)
        if frames.lost:
            return
        kept = self._kept.setdefault(replica, [])
        frames.idle_since = self._now()
        frames.on_lost = partial(self._forget, replica, frames)
        kept.append(frames)
        if len(kept) > KEPT_CONNECTIONS:
            kept.pop(0).close()

    def _forget(self, replica: str, frames: PeerFrames) -> None:
        """A kept connection was closed: the replica may never be asked again."""
        kept = self._kept.get(replica, [])
        if frames in kept:
            kept.remove(frames)
        if not kept:
            self._kept.pop(replica, None)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # Being asked.

    async def run(self) -> None:
        """Answer other replicas until cancelled."""
        try:
            if self._listener is None:
                await self._watch.run()
            async with anyio.create_task_group() as tasks:

                def connected(frames: PeerFrames) -> None:
                    if self._unknown >= MOST_UNKNOWN or len(self._open) >= MOST_CONNECTIONS:
                        frames.close()
                        return
                    self._open.add(frames)
                    tasks.start_soon(self._serve, frames)

                self._server = await self._listen(lambda: PeerFrames(connected))
                await self._watch.run()
        finally:
            self.close()

    async def _listen(self, made: Callable[[], PeerFrames]) -> asyncio.Server:
        listener, loop = self._listener, asyncio.get_running_loop()
        assert listener is not None  # noqa: S101 - see run()
        if listener.family == socket.AF_UNIX:
            return await loop.create_unix_server(made, sock=listener)
        return await loop.create_server(made, sock=listener)

    def close(self) -> None:
        """Close every connection, and the listening socket."""
        for connection in [one for kept in self._kept.values() for one in kept]:
            connection.close()
        self._kept.clear()
        for frames in list(self._open):
            frames.close()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        self._server = self._listener = None

    async def _serve(self, frames: PeerFrames) -> None:
        try:
            await self._greet(frames)
            while True:
                frames.expect(IDLE_SECONDS)
                head, body = await self._next_request(frames)
                frames.expect(None)
                await self._answer(head, body, frames)
        except (OSError, EOFError, TimeoutError):
            pass  # the other replica left
        except BadSeal as exc:
            self.refused += 1
            log.warning("a connection for replicas was closed: %s", exc)
        except Exception:
            log.exception("a connection for replicas was closed")  # it takes no other with it
        finally:
            self._open.discard(frames)
            frames.close()

    async def _greet(self, frames: PeerFrames) -> None:
        self._unknown += 1
        try:
            keys = self._keys()
            sent = challenge(keys, self._fleet)
            frames.write(sent)
            with anyio.fail_after(CONNECT_SECONDS):
                said = await frames.take(DIALED_BYTES)
            frames.use(accept_dialer(said, sent, keys, self._fleet))
        finally:
            self._unknown -= 1

    async def _next_request(self, frames: PeerFrames) -> tuple[Mapping[str, Any], bytes | None]:
        """The head and the body of the next request, which is None if it is too large."""
        kind, content = await frames.next()
        if kind & ~LAST != _REQUEST:
            raise BadSeal("a frame has no place here")
        head, body = head_and_piece(content)
        most = self._largest()
        if not kind & LAST:
            return _object(head), await self._rest(frames, body, most)
        return _object(head), body if len(body) <= most else None

    async def _rest(self, frames: PeerFrames, piece: bytes, most: int) -> bytes | None:
        parts, size, kind = [piece], len(piece), BODY
        while not kind & LAST:
            frames.expect(BODY_SECONDS)
            kind, content = await frames.next()
            if kind & ~LAST != BODY:
                raise BadSeal("a frame has no place here")
            size += len(content)
            if size <= most:
                parts.append(content)
            else:
                parts.clear()
        return b"".join(parts) if size <= most else None

    async def _answer(self, head: Mapping[str, Any], body: bytes | None, frames: PeerFrames) -> None:
        reply = PeerReply(frames)
        operation, about = str(head.get("operation")), head.get("about")
        handler = self._handlers.get(operation)
        if head.get("to") != self.replica:
            reply.refuse(f"this is not the replica {head.get('to')}")
        elif body is None:
            reply.refuse("the request is too large")
        elif handler is None or not isinstance(about, dict):
            reply.refuse(f"this replica has no operation {operation!r}")
        else:
            request = PeerRequest(str(head.get("from")), operation, about, body)
            await _watched(handler, request, reply, frames)
        await reply.drained()

    def __repr__(self) -> str:
        return f"<Peers of {self.replica!r} at {self.address or 'no address'}>"


async def _watched(handler: PeerHandler, request: PeerRequest, reply: PeerReply, frames: PeerFrames) -> None:
    """Let the handler answer; it learns if the asker leaves. Raises ``EOFError`` if that ended it."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - each connection has its task
    cancelled = False

    def gone() -> None:
        nonlocal cancelled
        reply.lost = True
        if reply.on_gone is not None:
            reply.on_gone()
        else:
            cancelled = True
            task.cancel()

    if frames.lost:
        raise EOFError
    frames.on_lost = gone
    try:
        await handler(request, reply)
    except asyncio.CancelledError:
        if cancelled and task.uncancel() == 0:
            raise EOFError from None
        raise
    except Exception:
        log.exception("the operation %s of another replica failed here", request.operation)
        if reply.begun:
            reply.abort()
        else:
            reply.refuse("the replica failed to do it")
    else:
        if not reply.begun:
            reply.answer()
        elif not reply.complete:
            reply.finish()
    finally:
        frames.on_lost = None


async def _send(frames: PeerFrames, head: bytes, body: bytes) -> None:
    """Send a request; a small one is one frame."""
    start = len(head).to_bytes(4, "big") + head
    if len(body) <= PIECE:
        frames.put(_REQUEST | LAST, start + body)
        return
    frames.put(_REQUEST, start)
    for at in range(0, len(body), PIECE):
        await frames.drained()
        frames.put(BODY if at + PIECE < len(body) else BODY | LAST, body[at : at + PIECE])
    await frames.drained()


def _head(about: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(about) if about else b"{}"
    except UnicodeEncodeError:  # JSON may escape text that is no Unicode
        return json.dumps(about).encode()


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        read = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        read = _escaped(content)
    except RecursionError as exc:
        raise BadSeal("a frame is nested too deep") from exc
    if not isinstance(read, dict):
        raise BadSeal("a frame holds no object")
    return read


def _escaped(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise BadSeal("a frame holds no object") from exc


def _answered(kind: int, content: bytes) -> tuple[Mapping[str, Any], bytes]:
    """The head of an answer, and the beginning of its body."""
    try:
        if kind == _REFUSED | LAST:
            return {}, b""
        if kind & ~LAST != _ANSWER:
            raise PeerFailed(_BROKE_RULES)
        head, piece = head_and_piece(content)
        return (_object(head) if head != b"{}" else {}), piece
    except BadSeal as exc:
        raise PeerFailed(_BROKE_RULES) from exc


def _reason(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, EOFError):
        return "it closed the connection"
    return f"{exc}" or type(exc).__name__
