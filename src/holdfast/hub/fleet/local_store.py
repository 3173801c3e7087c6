"""The store of the workers of one machine: a broker in the supervisor, on a private Unix socket.

The broker runs ``SharedStore``, the same code as the simulation. A message is its length in four bytes and JSON. The
folder of the socket is private to the user, so that no signature is needed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from holdfast.core import FleetExchange, FleetReply, SharedStore
from holdfast.hub.fleet.event_store import LogWrite, MemoryEvents
from holdfast.hub.fleet.messages import StoreUnavailable, exchange_from, exchange_to, reply_from, reply_to

__all__ = ["LocalEvents", "LocalStore", "serve_broker"]

EXCHANGE_SECONDS = 1.0
EXIT_SECONDS = 0.5
"""A worker that was killed closes its connections first, and is gone within this time."""
ENDED_SECONDS = 2.0
"""The warden of a worker that was killed ends its children within this time."""
LARGEST = 64 * 1024 * 1024


async def serve_broker(
    path: Path,
    *,
    clock: Callable[[], float] = anyio.current_time,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""
    store, events = SharedStore(settled=True), MemoryEvents(clock=clock)

    def exchanged(read: Any, replicas: set[str]) -> object:
        asked = exchange_from(read)
        replicas.add(asked.replica)
        return reply_to(store.exchange(asked, clock()))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replicas: set[str] = set()
        pid: int | None = None
        try:
            pid = _pid_of(writer)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                read = json.loads(await reader.readexactly(min(size, LARGEST)))
                writer.write(_framed(_event_reply(events, read) if "events" in read else exchanged(read, replicas)))
                await writer.drain()
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # it left, or it is not one of our workers
        finally:
            writer.close()
        if replicas and pid is not None and not await _is_alive(pid):
            for replica in replicas:
                store.died(replica, clock(), within=ENDED_SECONDS)

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


class _BrokerClient:
    """One connection to the broker: a message, and its answer.

    It uses asyncio's streams: a Unix stream of anyio that is cancelled while an answer arrives logs an
    ``InvalidStateError``.
    """

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
                await writer.drain()
                return json.loads(await _message(reader))
        except (OSError, TimeoutError, ValueError, EOFError) as exc:
            self._drop()
            raise StoreUnavailable(f"{type(exc).__name__}: {exc}"[:200]) from exc
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
        return "workers of this machine"

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""
        return reply_from(await self.ask(exchange_to(asked)))


class LocalEvents:
    """The events of sessions, in the broker."""

    def __init__(self, path: Path) -> None:
        self._broker = _BrokerClient(path)
        self._using = anyio.Lock()

    async def append(self, writes: Sequence[LogWrite]) -> None:
        """See ``EventStore``."""
        async with self._using:
            blobs = [[write.log, base64.b64encode(write.blob).decode(), write.keep] for write in writes]
            await self._broker.ask({"events": blobs, "log": None})

    async def read(self, log: str) -> list[bytes]:
        """See ``EventStore``."""
        async with self._using:
            found = await self._broker.ask({"events": [], "log": log})
        try:
            return [base64.b64decode(blob) for blob in found]
        except (TypeError, ValueError) as exc:
            raise StoreUnavailable("its answer cannot be used") from exc

    async def close(self) -> None:
        """See ``EventStore``."""
        await self._broker.close()


def _framed(value: object) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text


async def _message(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > LARGEST:
        raise ValueError("the message is too large")
    return await reader.readexactly(size)
