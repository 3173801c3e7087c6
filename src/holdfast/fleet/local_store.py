"""The store of the workers of one machine: a broker in the supervisor, on a private Unix socket.

The broker runs ``SharedStore``, the same code as the simulation. A message is its length in four bytes and JSON. The
folder of the socket is private to the user, so that no signature is needed.

An empty message is a notice: another worker changed something. So workers need not ask all the time. A broker that
sends them begins with one, because a worker may be of a later release than its supervisor.

A worker that is killed says nothing. The broker looks whether the process at the other end of a lost connection is
gone, and then forgets its presence at once: the others must not wait until it ends by itself. A worker that is alive
may have closed its connection after a late answer, and connects again.

A worker has two connections, so that a large batch of events delays no exchange. Each has one message under way at a
time. If its sender is cancelled, the connection is dropped: the answer that still comes is not that of the next
message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import msgspec

from holdfast.core import FleetExchange, FleetReply, SharedStore
from holdfast.fleet.stores import KEPT_SECONDS, LogWrite, StoreUnavailable

__all__ = ["LocalEvents", "LocalStore", "MemoryEvents", "serve_broker"]

EXCHANGE_SECONDS = 5.0
"""The broker runs on this machine, and its end closes the connection: an answer that is late only says that the machine
is busy. A worker that gave it up would not learn in time where a server runs now, and would fail its calls."""
EXIT_SECONDS = 0.5
"""A worker that was killed closes its connections first, and is gone within this time."""
LARGEST = 64 * 1024 * 1024
NOTICE = b"\0\0\0\0"
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of events in the store; the oldest logs give way."""


async def serve_broker(
    path: Path,
    *,
    clock: Callable[[], float] = anyio.current_time,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""
    store, events = SharedStore(), MemoryEvents(clock=clock)
    told: dict[asyncio.StreamWriter, bool] = {}
    """The workers that take notices, and whether they got one since their last exchange."""

    def tell_others(own: asyncio.StreamWriter | None = None) -> None:
        for writer, already in told.items():
            if writer is not own and not already:
                told[writer] = True
                writer.write(NOTICE)

    def exchanged(read: Any, replicas: set[str], writer: asyncio.StreamWriter) -> None:
        asked, before = msgspec.convert(read, FleetExchange, strict=False), store.sequence
        joins = asked.replica not in store.replicas
        replicas.add(asked.replica)
        writer.write(_framed(msgspec.to_builtins(store.exchange(asked, clock()))))
        if read.get("takes_notices"):
            if writer not in told:
                writer.write(NOTICE)
            told[writer] = False
        if joins or store.sequence != before or asked.leaving:
            tell_others(writer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replicas: set[str] = set()
        pid: int | None = None
        try:
            pid = _pid_of(writer)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                read = json.loads(await reader.readexactly(min(size, LARGEST)))
                if "events" in read:
                    writer.write(_framed(_event_reply(events, read)))
                else:
                    exchanged(read, replicas, writer)
                await writer.drain()
        except (
            OSError,
            EOFError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            msgspec.MsgspecError,
        ):
            pass  # it left, or it is not one of our workers
        finally:
            told.pop(writer, None)
            writer.close()
        if replicas and pid is not None and not await _is_alive(pid):
            for replica in replicas:
                store.died(replica)
            tell_others()

    # The group owns the connections. A task that asyncio makes for each would be cut by the end of the loop alone.
    async with anyio.create_task_group() as connections:
        server = await asyncio.start_unix_server(lambda *streams: connections.start_soon(serve, *streams), path)
        try:
            path.chmod(0o600)  # noqa: ASYNC240 - a moment, and nothing else runs yet
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


def _pid_of(writer: asyncio.StreamWriter) -> int | None:
    """The process at the other end, where the system tells it."""
    number = getattr(socket, "SO_PEERCRED", None)
    if number is None:
        return None
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, number, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", found)[0]
    return pid or None


async def _is_alive(pid: int) -> bool:
    """Whether a process that closed its connection goes on; one that was killed is gone in a moment."""
    with anyio.move_on_after(EXIT_SECONDS):
        while True:
            try:
                stat = await anyio.to_thread.run_sync(Path(f"/proc/{pid}/stat").read_text)
            except OSError:
                return False
            if stat.rpartition(")")[2].split()[0] == "Z":
                return False
            await anyio.sleep(EXIT_SECONDS / 5)
    return True


def _event_reply(events: MemoryEvents, read: Mapping[str, Any]) -> object:
    writes = [LogWrite(str(log), base64.b64decode(blob), int(keep)) for log, blob, keep in read["events"]]
    events.put(writes)
    log = read["log"]
    return [base64.b64encode(blob).decode() for blob in events.blobs(log)] if log is not None else []


class _BrokerConnection(asyncio.Protocol):
    """One connection to the broker: a message at a time and its answer, and notices."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._noticed = noticed
        self._transport: Any = None
        self._came = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The broker is there."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, or a notice."""
        self._came += data
        while len(self._came) >= len(NOTICE):
            size = int.from_bytes(self._came[:4], "big")
            if size > LARGEST:
                self._transport.abort()
                return
            if len(self._came) < 4 + size:
                return
            message = bytes(self._came[4 : 4 + size])
            del self._came[: 4 + size]
            if not message:
                self._noticed()
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The broker is gone."""
        self._lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or EOFError("the broker closed the connection"))

    async def ask(self, message: object) -> bytes:
        """The answer."""
        if self._lost:
            raise EOFError("the broker closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(_framed(message))
        return await self._answer

    def abort(self) -> None:
        """Close it now."""
        self._transport.abort()


class _BrokerClient:
    """The way to the broker, over a connection that is made when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: _BrokerConnection | None = None
        self.connections = 0
        self.on_change: Callable[[], None] | None = None
        """Called when the broker tells that another worker changed something. It tells that at the start too."""

    async def ask(self, message: object) -> Any:
        """The answer of the broker; ``StoreUnavailable`` if it failed."""
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                if self._connection is None:
                    loop = asyncio.get_running_loop()
                    made = await loop.create_unix_connection(lambda: _BrokerConnection(self._noticed), str(self._path))
                    self._connection = made[1]
                    self.connections += 1
                return json.loads(await self._connection.ask(message))
        except (OSError, TimeoutError, ValueError, EOFError) as exc:
            self._drop()
            late = isinstance(exc, TimeoutError)
            why = f"no answer within {EXCHANGE_SECONDS:g} s" if late else f"{type(exc).__name__}: {exc}"[:200]
            raise StoreUnavailable(why) from exc
        except BaseException:  # cancelled: the answer that still comes is not that of the next message
            self._drop()
            raise

    async def close(self) -> None:
        """End the connection."""
        self._drop()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()  # asyncio closes the socket in the next turn of the loop

    def _noticed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


class LocalStore(_BrokerClient):
    """The store of a worker."""

    @property
    def name(self) -> str:
        """Its address."""
        return "the broker of this machine"

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""
        message = {**msgspec.to_builtins(asked), "takes_notices": self.on_change is not None}
        try:
            return msgspec.convert(await self.ask(message), FleetReply)
        except msgspec.ValidationError as exc:
            raise StoreUnavailable("its answer cannot be used") from exc


class LocalEvents:
    """The events of sessions, in the broker."""

    def __init__(self, path: Path) -> None:
        self._broker = _BrokerClient(path)
        self._using = anyio.Lock()

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """As ``EventStore`` says."""
        async with self._using:
            blobs = [[write.log, base64.b64encode(write.blob).decode(), write.keep] for write in writes]
            await self._broker.ask({"events": blobs, "log": None})

    async def read(self, log: str) -> list[bytes]:
        """As ``EventStore`` says."""
        async with self._using:
            found = await self._broker.ask({"events": [], "log": log})
        try:
            return [base64.b64decode(blob) for blob in found]
        except (TypeError, ValueError) as exc:
            raise StoreUnavailable("its answer cannot be used") from exc

    async def close(self) -> None:
        """As ``EventStore`` says."""
        await self._broker.close()


class MemoryEvents:
    """An event store in this process: the store of workers has one."""

    def __init__(self, *, most: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._logs: dict[str, tuple[float, list[bytes]]] = {}
        self.held = 0

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs."""
        self.put(writes)

    async def read(self, log: str) -> list[bytes]:
        """The blobs of a log, oldest first."""
        return self.blobs(log)

    async def close(self) -> None:
        """Nothing: it is a part of this process."""

    def put(self, writes: Sequence[LogWrite]) -> None:
        """Add blobs to logs."""
        now = self._clock()
        for write in writes:
            _, blobs = self._logs.pop(write.log, (0.0, []))
            blobs.append(write.blob)
            self.held += len(write.blob)
            while len(blobs) > max(write.keep, 1):
                self.held -= len(blobs.pop(0))
            self._logs[write.log] = (now + KEPT_SECONDS, blobs)
        while self._logs:
            oldest = next(iter(self._logs))
            until, blobs = self._logs[oldest]
            if until > now and (self.held <= self._most or len(self._logs) == 1):
                break
            self.held -= sum(map(len, blobs))
            del self._logs[oldest]

    def blobs(self, log: str) -> list[bytes]:
        """The blobs of a log."""
        until, blobs = self._logs.get(log, (0.0, []))
        return list(blobs) if until > self._clock() else []


def _framed(value: object) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text
