"""What a store of replicas is: records and presence by exchanges, logs of events beside, and a signature on all of it.

Theory of operation. Replicas do not talk to each other about what they share: each one exchanges with the store. An
exchange sends the records that are new here, renews the presence of this replica, asks for the right to probe, and
brings what is new there. There are two stores: Redis (redis_store.py), and for the workers of one machine a broker in
their supervisor, on a private Unix socket. The broker runs ``SharedStore`` of ``core/replicas``, the same code as the
simulation; Redis does the same with its own primitives.

A worker that is killed says nothing to the broker. Its supervisor sees its end, and lets the store forget its presence
at once (``SharedStore.died``): the others must not wait until it ends by itself. A connection to the broker has one
message under way at a time. If its sender is cancelled, the connection is dropped: the answer that still comes is not
that of the next message. The folder of the socket is private to the user, so that no signature is needed there.

A store on the network is not trusted. Every record and every presence carries an HMAC over all of it, its fleet
included, with a key that is derived from the session key. A message with another signature is ignored and counted.
Events are sealed by those who write them. So a store, or a program that writes into it, can lose things and can be
slow; it can say nothing. It can also give back an older record with its signature: the stamp is signed too, and an
older one replaces nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from holdfast.core import FleetExchange, FleetReply, SharedStore

if TYPE_CHECKING:  # the store of workers signs nothing, and the supervisor that runs it stays small
    from holdfast.keys import KeyRing

__all__ = [
    "KEPT_SECONDS",
    "EventStore",
    "FleetStore",
    "LocalStore",
    "LogWrite",
    "MemoryEvents",
    "SignedStore",
    "StoreUnavailable",
    "serve_broker",
]

Message = TypeVar("Message", bound=msgspec.Struct)

KEPT_SECONDS: Final = 300.0
"""How long a log of events is kept after its last one; a session idles as long before it is dropped from memory."""
PURPOSE: Final = "fleet messages"
OPENED_IN_A_ROW: Final = 100
"""Signatures that are verified before other tasks get a turn: about a millisecond."""


class StoreUnavailable(Exception):
    """The store did not answer, or not in a way that can be used."""


class FleetStore(Protocol):
    """Keeps the records, the presence and the claims of replicas."""

    @property
    def connections(self) -> int:
        """How many connections were made so far: a new one may lead to another store, or to an older copy."""

    @property
    def name(self) -> str:
        """Its address for people, without a secret."""

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""

    async def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """One more blob of a log of events, and how many of its latest stay: this one at least."""

    log: str
    blob: bytes
    keep: int


class EventStore(Protocol):
    """Keeps the sealed events of sessions, for a client that comes back to another replica.

    A log is a list of blobs that no store can read. Its replica says how many of the latest stay, and bounds what it
    sends; the store forgets a log after ``KEPT_SECONDS``.
    """

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs; ``StoreUnavailable`` if it failed."""

    async def read(self, log: str) -> list[bytes]:
        """The blobs of a log, oldest first; ``StoreUnavailable`` if it failed."""

    async def close(self) -> None:
        """End the connection."""


class SignedStore:
    """A store behind signatures: nothing that another key signed gets in."""

    def __init__(self, store: FleetStore, keys: Callable[[], KeyRing], fleet: str) -> None:
        self._store = store
        self._keys = keys
        self._fleet = fleet
        self.refused = 0
        """Messages with a wrong signature so far."""

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        return self._store.connections

    @property
    def name(self) -> str:
        """Its address for people."""
        return self._store.name

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """Sign what is sent, and take of the answer what this fleet signed."""
        reply = await self._store.exchange(
            replace(
                asked,
                presence=self._signed(asked.presence, "replica", asked.replica),
                records=tuple(replace(one, value=self._signed(one.value, one.key, one.stamp)) for one in asked.records),
            )
        )
        told = [(one.value, (one.key, one.stamp)) for one in reply.records]
        records = zip(reply.records, await self._opened(told), strict=True)
        replicas, strangers = reply.replicas, 0
        if replicas is not None:
            opened = await self._opened([(text, ("replica", name)) for name, text in replicas.items()])
            known = zip(replicas, opened, strict=True)
            replicas = {name: text for name, text in known if text is not None}
            strangers = len(opened) - len(replicas)
        return replace(
            reply,
            records=tuple(replace(one, value=value) for one, value in records if value is not None),
            replicas=replicas,
            strangers=strangers,
        )

    async def close(self) -> None:
        """End the connection."""
        await self._store.close()

    def _signed(self, text: str, *about: str) -> str:
        return f"{self._keys().sign(self._whole(text, about), purpose=PURPOSE).hex()}.{text}"

    def _whole(self, text: str, about: Sequence[str]) -> bytes:
        return json.dumps([self._fleet, *about, text]).encode()

    async def _opened(self, messages: Iterable[tuple[str, tuple[str, ...]]]) -> list[str | None]:
        """The texts of messages, each with what it must be about; None for one that this fleet did not sign."""
        ring, found = self._keys(), list[str | None]()
        for number, (message, about) in enumerate(messages, start=1):
            said, _, text = message.partition(".")
            is_ours = False
            with suppress(ValueError):  # another program may have written any text
                is_ours = ring.verify(bytes.fromhex(said), self._whole(text, about), purpose=PURPOSE)
            self.refused += not is_ours
            found.append(text if is_ours else None)
            if number % OPENED_IN_A_ROW == 0:
                await anyio.lowlevel.checkpoint()
        return found

    def __repr__(self) -> str:
        return f"<SignedStore {self._store.name} refused={self.refused}>"


# The store of the workers of one machine.

EXCHANGE_SECONDS: Final = 5.0
"""The broker runs on this machine, and its end closes the connection: an answer that is late only says that the machine
is busy. A worker that gave it up would not learn in time where a server runs now, and would fail its calls."""
LARGEST: Final = 64 * 1024 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of events in the store; the oldest logs give way."""


class _Asked(msgspec.Struct, kw_only=True):
    """What a worker sends to the broker: an exchange, or events to keep, or the name of a log to read."""

    exchange: FleetExchange | None = None
    writes: Sequence[LogWrite] = ()
    log: str | None = None


class _Answered(msgspec.Struct, kw_only=True):
    """What the broker answers."""

    reply: FleetReply | None = None
    blobs: list[bytes] = []


async def serve_broker(
    path: Path,
    store: SharedStore | None = None,
    *,
    clock: Callable[[], float] = anyio.current_time,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""
    records, events = store or SharedStore(), MemoryEvents(clock=clock)

    def answer(asked: _Asked) -> _Answered:
        events.put(asked.writes)
        return _Answered(
            reply=records.exchange(asked.exchange, clock()) if asked.exchange is not None else None,
            blobs=events.blobs(asked.log) if asked.log is not None else [],
        )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # It may leave in the middle of a message, and it may be none of our workers.
        with closing(writer), suppress(OSError, EOFError, RecursionError, msgspec.MsgspecError):
            while True:
                writer.write(_framed(answer(await _message(reader, _Asked))))
                await writer.drain()

    # The group owns the connections. A task that asyncio makes for each would be cut by the end of the loop alone.
    async with anyio.create_task_group() as connections:
        server = await asyncio.start_unix_server(lambda *streams: connections.start_soon(serve, *streams), path)
        try:
            path.chmod(0o600)  # noqa: ASYNC240 - a moment, and nothing else runs yet
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


class LocalStore:
    """A connection of a worker to the broker, made when it is needed: a ``FleetStore``, or an ``EventStore``.

    A worker has one for each, so that a large batch of events delays no exchange.
    """

    name = "the broker of this machine"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._using = anyio.Lock()
        self.connections = 0

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""
        reply = (await self._ask(_Asked(exchange=asked))).reply
        if reply is None:
            raise StoreUnavailable("its answer cannot be used")
        return reply

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """As ``EventStore`` says."""
        await self._ask(_Asked(writes=writes))

    async def read(self, log: str) -> list[bytes]:
        """As ``EventStore`` says."""
        return (await self._ask(_Asked(log=log))).blobs

    async def close(self) -> None:
        """End the connection."""
        self._drop()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()  # asyncio closes the socket in the next turn of the loop

    async def _ask(self, message: _Asked) -> _Answered:
        async with self._using:  # an answer does not say what it answers
            try:
                with anyio.fail_after(EXCHANGE_SECONDS):
                    if self._streams is None:
                        self._streams = await asyncio.open_unix_connection(self._path)
                        self.connections += 1
                    reader, writer = self._streams
                    writer.write(_framed(message))
                    return await _message(reader, _Answered)
            except (OSError, TimeoutError, EOFError, msgspec.MsgspecError) as exc:
                self._drop()
                late = isinstance(exc, TimeoutError)
                why = f"no answer within {EXCHANGE_SECONDS:g} s" if late else f"{type(exc).__name__}: {exc}"[:200]
                raise StoreUnavailable(why) from exc
            except BaseException:  # cancelled: the answer that still comes is not that of the next message
                self._drop()
                raise

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


class MemoryEvents:
    """The events of sessions that the broker keeps."""

    def __init__(self, *, most: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._logs: dict[str, tuple[float, list[bytes]]] = {}
        self.held = 0

    def put(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs."""
        now = self._clock()
        for write in writes:
            _, blobs = self._logs.pop(write.log, (0.0, []))
            blobs.append(write.blob)
            self.held += len(write.blob)
            while len(blobs) > write.keep:
                self.held -= len(blobs.pop(0))
            self._logs[write.log] = (now + KEPT_SECONDS, blobs)
        while self._logs:
            oldest = next(iter(self._logs))
            until, blobs = self._logs[oldest]
            if until > now and self.held <= self._most:
                break
            self.held -= sum(map(len, blobs))
            del self._logs[oldest]

    def blobs(self, log: str) -> list[bytes]:
        """The blobs of a log."""
        until, blobs = self._logs.get(log, (0.0, []))
        return list(blobs) if until > self._clock() else []


def _framed(message: _Asked | _Answered) -> bytes:
    """A message on the socket: its length in four bytes, then the message."""
    written = msgspec.msgpack.encode(message)
    return len(written).to_bytes(4, "big") + written


async def _message(reader: asyncio.StreamReader, kind: type[Message]) -> Message:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return msgspec.msgpack.decode(await reader.readexactly(min(size, LARGEST)), type=kind)
