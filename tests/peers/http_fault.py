"""An HTTP/1.1 server on a raw socket that misbehaves exactly as a test says, and counts what it saw.

A script tells what happens to each request: one behaviour for all, a list (the k-th request gets
the k-th, the last one stays), or a function of the request. Nothing here knows MCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import anyio

from holdfast.testing.scripted_servers import stop_listening
from tests.peers.http1 import NO_HEADERS, Request, head_of, read_request

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Behaviour",
    "Exchange",
    "FaultServer",
    "Request",
    "Script",
    "accept_and_ignore",
    "close_mid_answer",
    "closed_port",
    "first",
    "never_answer",
    "oversized",
    "redirect",
    "reset_before_answer",
    "reset_mid_answer",
    "reset_on_accept",
    "respond",
    "trickle",
]

JSON = "application/json"

T = TypeVar("T")

# Long enough for the kernel to tell us that a client has closed, on a loaded machine.
_SETTLE = 5.0


@dataclass(frozen=True)
class Behaviour:
    """What the server does with one request; ``reads`` is false if it acts before reading any byte."""

    name: str
    act: Callable[[Exchange], Awaitable[None]] = field(repr=False)
    reads: bool = True


Script: TypeAlias = Behaviour | Sequence[Behaviour] | Callable[[Request], Behaviour]


class FaultServer:
    """Listens on a free loopback port while it is entered; counts connections and keeps every request."""

    def __init__(self, script: Script, *, ssl: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self.port = port
        self._ssl = ssl
        self._steps = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._listener: asyncio.Server | None = None
        self._stir = asyncio.Event()

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:PORT``, or ``https://localhost:PORT`` with TLS."""
        return f"https://localhost:{self.port}" if self._ssl else f"http://127.0.0.1:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether a connection would be accepted."""
        return self._listener is not None

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed yet."""
        return len(self._open)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true that comes true with a connection or a request."""
        while not condition():
            self._stir = asyncio.Event()
            await self._stir.wait()

    def stirred(self) -> None:
        """Have those who wait look again."""
        self._stir.set()

    async def all_closed(self) -> None:
        """Wait until every client has closed its connections; raise TimeoutError if one stays."""
        with anyio.fail_after(_SETTLE):
            while self._open:
                await asyncio.wait(set(self._open))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Listen; again on the same port after a stop."""
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, ssl=self._ssl, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening and drop every connection; the port refuses from now on."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        await stop_listening(listener)
        open_ = dict(self._open)
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            return writer.transport.abort()  # accepted in the moment in which the server was stopped
        self.connections += 1
        self.stirred()
        behaviour = self._upcoming()
        if behaviour is not None and not behaviour.reads:
            self._steps += 1
            # Before the loop gets to read for the first time: not one byte leaves the kernel's buffer.
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
            serving = behaviour.act(Exchange(_UNREAD, reader, writer, server=self))
        else:
            serving = self._serve(reader, writer)
        task = asyncio.ensure_future(self._guarded(serving, writer))
        self._open[task] = writer

        def let_go(ended: asyncio.Task[None]) -> None:
            # Not in the task itself: one that is cancelled before its first step does not come to any `finally`.
            del self._open[ended]
            if asyncio.iscoroutine(serving):
                serving.close()
            writer.transport.abort()

        task.add_done_callback(let_go)
        return None

    async def _guarded(self, serving: Awaitable[None], writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end, and close the socket."""
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serving
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise
        finally:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader)) is not None:
            self.requests.append(request)
            self.stirred()
            exchange = Exchange(request, reader, writer, server=self)
            await self._choose(request).act(exchange)
            if request.headers.get("connection", "").lower() == "close" or writer.is_closing():
                return

    def _upcoming(self) -> Behaviour | None:
        """The behaviour of the next request, where the script can tell before it is read."""
        if isinstance(self.script, Behaviour):
            return self.script
        if isinstance(self.script, Sequence):
            return self.script[min(self._steps, len(self.script) - 1)]
        return None

    def _choose(self, request: Request) -> Behaviour:
        behaviour = self._upcoming()
        self._steps += 1
        if behaviour is not None:
            return behaviour
        assert callable(self.script)
        return self.script(request)


class Exchange:
    """One request and the means to answer it, byte by byte if need be."""

    def __init__(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        server: FaultServer,
    ) -> None:
        self.request = request
        self.server = server
        self._reader = reader
        self._writer = writer

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        content_type: str = JSON,
    ) -> None:
        """Answer at once, with a declared length."""
        length = {} if status in (204, 304) else {"content-length": str(len(body))}
        typed = {"content-type": content_type} if body else {}
        await self.send(head_of(status, {**length, **typed, **headers}) + body)

    async def start(
        self, status: int = 200, *, headers: Mapping[str, str] = NO_HEADERS, content_type: str = JSON
    ) -> None:
        """Begin an answer whose length is not told; go on with :meth:`chunk`, finish with :meth:`end`."""
        framing = {"transfer-encoding": "chunked", "content-type": content_type}
        await self.send(head_of(status, {**framing, **headers}))

    async def chunk(self, data: bytes) -> None:
        """Send one more piece of a started answer."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """Finish a started answer."""
        await self.send(b"0\r\n\r\n")

    async def send(self, data: bytes) -> None:
        """Send raw bytes; raises ConnectionError once the client is known to be gone."""
        if self._reader.at_eof():
            raise _HungUp
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the client closes the connection; what it still sends is thrown away."""
        while await self._reader.read(65536):
            pass

    async def unless_gone(self, awaitable: Awaitable[T]) -> T | None:
        """Wait for something, but no longer than the client waits: None if it leaves first."""
        wanted, leaving = asyncio.ensure_future(awaitable), asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait({wanted, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return wanted.result() if wanted.done() else None
        finally:
            wanted.cancel()
            leaving.cancel()
            await asyncio.wait({wanted, leaving})

    def reset(self) -> None:
        """Drop the connection so that the client gets a reset instead of an orderly end."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection in good order, after what was already written."""
        self._writer.close()


def respond(
    status: int,
    body: bytes | str = b"",
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    content_type: str = "text/plain",
) -> Behaviour:
    """Answer with exactly this."""
    data = body.encode() if isinstance(body, str) else body

    async def act(exchange: Exchange) -> None:
        await exchange.respond(status, data, headers=headers, content_type=content_type)

    return Behaviour(f"respond-{status}", act)


def redirect(location: str, status: int = 307) -> Behaviour:
    """Send the client elsewhere."""
    return respond(status, headers={"location": location})


def oversized(size: int, *, declared: bool = True, content_type: str = JSON) -> Behaviour:
    """Answer with a JSON string of ``size`` bytes, its length told beforehand or not."""
    piece = b"x" * 65536

    async def act(exchange: Exchange) -> None:
        if declared:
            head = {"content-length": str(size), "content-type": content_type}
            await exchange.send(head_of(200, head) + b'"')
        else:
            await exchange.start(content_type=content_type)
            await exchange.chunk(b'"')
        put = exchange.send if declared else exchange.chunk
        for left in range(size - 2, 0, -len(piece)):
            await put(piece[:left])
        await put(b'"')
        if not declared:
            await exchange.end()

    return Behaviour(f"oversized-{size}", act)


def trickle(body: bytes = b" ", *, chunk: int = 1, interval: float = 0.02, content_type: str = JSON) -> Behaviour:
    """Answer at once, then send the body over and over in small pieces, and never come to an end."""
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]

    async def act(exchange: Exchange) -> None:
        await exchange.start(content_type=content_type)
        for piece in itertools.cycle(pieces):
            await exchange.chunk(piece)
            await asyncio.sleep(interval)

    return Behaviour("trickle", act)


def first(count: int, fault: Behaviour, *, then: Behaviour) -> list[Behaviour]:
    """A script: the first ``count`` requests meet the fault, every later one is treated well."""
    return [*itertools.repeat(fault, count), then]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A loopback port that refuses for sure: it is bound, so no other program can listen on it meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


async def _part_of_an_answer(exchange: Exchange) -> None:
    head = {"content-length": "4096", "content-type": JSON}
    await exchange.send(head_of(200, head) + b'{"jsonrpc": "2.0", "id": ')


async def _reset_mid_answer(exchange: Exchange) -> None:
    await _part_of_an_answer(exchange)
    exchange.reset()


async def _close_mid_answer(exchange: Exchange) -> None:
    await _part_of_an_answer(exchange)
    exchange.close()


async def _never_answer(exchange: Exchange) -> None:
    await exchange.gone()


async def _ignore(exchange: Exchange) -> None:
    await asyncio.get_running_loop().create_future()


reset_on_accept = Behaviour("reset-on-accept", _reset, reads=False)
reset_before_answer = Behaviour("reset-before-answer", _reset)
reset_mid_answer = Behaviour("reset-mid-answer", _reset_mid_answer)
close_mid_answer = Behaviour("close-mid-answer", _close_mid_answer)
never_answer = Behaviour("never-answer", _never_answer)
accept_and_ignore = Behaviour("accept-and-ignore", _ignore, reads=False)


class _HungUp(ConnectionError):
    """The client has closed its side: nothing more is worth sending."""


_UNREAD = Request("", "", NO_HEADERS, b"")
