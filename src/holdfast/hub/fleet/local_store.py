"""The store of the workers of one machine: a broker in the supervisor, on a private Unix socket.

The broker runs ``SharedStore``, the same code as the simulation. A message is its length in four bytes and JSON. The
folder of the socket is private to the user, so that no signature is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.core import FleetExchange, FleetReply, SharedStore
from holdfast.hub.fleet.messages import StoreUnavailable, exchange_from, exchange_to, reply_from, reply_to

__all__ = ["LocalStore", "serve_broker"]

EXCHANGE_SECONDS = 1.0
LARGEST = 64 * 1024 * 1024


async def serve_broker(
    path: Path,
    *,
    clock: Callable[[], float] = anyio.current_time,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled."""
    store = SharedStore(settled=True)
    open_streams: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_streams.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                read = json.loads(await reader.readexactly(min(size, LARGEST)))
                writer.write(_framed(reply_to(store.exchange(exchange_from(read), clock()))))
                await writer.drain()
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            pass  # it left, or it is not one of our workers
        finally:
            open_streams.discard(writer)
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    path.chmod(0o600)  # noqa: ASYNC240 - a moment, and nothing else runs yet
    task_status.started()
    try:
        await anyio.sleep_forever()
    finally:
        server.close()
        for writer in list(open_streams):
            writer.close()


class LocalStore:
    """The client of a worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: anyio.abc.SocketStream | None = None
        self._received: BufferedByteReceiveStream | None = None
        self.connections = 0

    @property
    def name(self) -> str:
        """Its address."""
        return "workers of this machine"

    async def exchange(self, asked: FleetExchange) -> FleetReply:
        """One exchange; ``StoreUnavailable`` if it failed."""
        try:
            with anyio.fail_after(EXCHANGE_SECONDS):
                if self._stream is None or self._received is None:
                    self._stream = await anyio.connect_unix(os.fspath(self._path))
                    self._received = BufferedByteReceiveStream(self._stream)
                    self.connections += 1
                await self._stream.send(_framed(exchange_to(asked)))
                return reply_from(json.loads(await _message(self._received)))
        except (
            OSError,
            TimeoutError,
            ValueError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as exc:
            await self.close()
            raise StoreUnavailable(f"{type(exc).__name__}: {exc}"[:200]) from exc

    async def close(self) -> None:
        """End the connection."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await anyio.aclose_forcefully(stream)


def _framed(value: object) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text


async def _message(received: BufferedByteReceiveStream) -> bytes:
    size = int.from_bytes(await received.receive_exactly(4), "big")
    if size > LARGEST:
        raise ValueError("the message is too large")
    return await received.receive_exactly(size)
