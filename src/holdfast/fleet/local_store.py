"""The store of the workers of one machine: a broker in the supervisor, on a private Unix socket.

The broker runs ``SharedStore``, the same code as the simulation. A message is its length in four bytes and JSON. The
folder of the socket is private to the user, so that no signature is needed.

A worker that is killed says nothing. Its supervisor sees its end, and lets the store forget its presence at once
(``SharedStore.died``): the others must not wait until it ends by itself.

A worker has two connections, so that a large batch of events delays no exchange. Each has one message under way at a
time. If its sender is cancelled, the connection is dropped: the answer that still comes is not that of the next
message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from holdfast.core import FleetExchange, FleetReply, SharedStore
from holdfast.fleet.stores import KEPT_SECONDS, LogWrite, StoreUnavailable

__all__ = ["LocalEvents", "LocalStore", "MemoryEvents", "serve_broker"]

EXCHANGE_SECONDS = 5.0
"""The broker runs on this machine, and its end closes the connection: an answer that is late only says that the machine
is busy. A worker that gave it up would not learn in time where a server runs now, and would fail its calls."""
LARGEST = 64 * 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of events in the store; the oldest logs give way."""


async def serve_broker(
    path: Path,
    store: SharedStore | None = None,
    *,
    clock: Callable[[], float] = anyio.current_time,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""
    records, events = store or SharedStore(), MemoryEvents(clock=clock)

    def answer(read: Any) -> object:
        if "events" in read:
            return _event_reply(events, read)
        asked = msgspec.convert(read, FleetExchange, strict=False)
        return msgspec.to_builtins(records.exchange(asked, clock()))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(_framed(answer(await _message(reader))))
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
            writer.close()

    # The group owns the connections. A task that asyncio makes for each would be cut by the end of the loop alone.
    async with anyio.create_task_group() as connections:
        server = await asyncio.start_unix_server(lambda *streams: connections.start_soon(serve, *streams), path)
        try:
            path.chmod(0o600)  # noqa: ASYNC240 - a moment, and nothing else runs yet
            task_status.started()
            await anyio.sleep_forever()
        finally:
            server.close()


def _event_reply(events: MemoryEvents, read: Mapping[str, Any]) -> object:
    writes = [LogWrite(str(log), base64.b64decode(blob), int(keep)) for log, blob, keep in read["events"]]
    events.put(writes)
    log = read["log"]
    return [base64.b64encode(blob).decode() for blob in events.blobs(log)] if log is not None else []


class _BrokerClient:
    """The way to the broker, over a connection that is made when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.connections = 0

    async def ask(self, message: object) -> Any:
        """The answer of the broker; ``StoreUnavailable`` if it failed."""
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(self._path)
                    self.connections += 1
                reader, writer = self._streams
                writer.write(_framed(message))
                return await _message(reader)
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

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


class LocalStore(_BrokerClient):
    """The store of a worker."""

    @property
    def name(self) -> str:
        """Its address."""
        return "the broker of this machine"

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""
        try:
            return msgspec.convert(await self.ask(msgspec.to_builtins(asked)), FleetReply)
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


async def _message(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return json.loads(await reader.readexactly(min(size, LARGEST)))
