"""The redirect's end: a listener on this machine that takes one answer from a browser and shows it a page.

Anything on this machine can send it something: what is no answer to the question that was asked is turned away,
and it waits on. Whether the answer is a good one it does not know, and it says nothing that came with it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.core.hosts import is_loopback
from holdfast.errors import LoginFailed

__all__ = ["DEFAULT_PATH", "Loopback", "listening"]

DEFAULT_PATH = "/callback"
LONGEST_REQUEST = 32 * 1024
REQUEST_SECONDS = 10.0

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Holdfast</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem;color:#222}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}}</style></head>
<body><h1>Back to the terminal</h1><p>Holdfast has the answer, and says there whether the login succeeded.
This page can be closed.</p></body></html>"""

_NOT_ASKED = "This is no answer to the login that Holdfast waits for."


class Loopback:
    """Where the browser comes back to."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._path = urlsplit(redirect_uri).path or "/"
        self._state = ""
        self._address = ""
        self._came = anyio.Event()

    def expect(self, state: str) -> None:
        """Take the answer with this state, and no other."""
        self._state = state

    async def answer(self) -> str:
        """The address that the browser came to, once it does."""
        await self._came.wait()
        return self._address

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Take one request of one browser."""
        async with stream:
            with anyio.move_on_after(REQUEST_SECONDS):
                await self._serve(stream)

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        try:
            head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", LONGEST_REQUEST)
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except (
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.DelimiterNotFound,
            anyio.BrokenResourceError,
            ValueError,
        ):
            return  # not a browser
        status, page = self._reply(method, target)
        with suppress(anyio.BrokenResourceError):  # it went away; its answer is there all the same
            await stream.send(_response(status, page))
        if page == _PAGE and not self._came.is_set():
            self._address = target
            self._came.set()

    def _reply(self, method: str, target: str) -> tuple[str, str]:
        try:
            parts = urlsplit(target)
        except ValueError:
            return "404 Not Found", ""
        if method != "GET" or parts.path != self._path or not parts.query:
            return "404 Not Found", ""
        state = dict(parse_qsl(parts.query)).get("state", "")
        if not self._state or not secrets.compare_digest(state.encode(), self._state.encode()):
            return "400 Bad Request", _NOT_ASKED
        return "200 OK", _PAGE


@asynccontextmanager
async def listening(redirect_uri: str = "") -> AsyncIterator[Loopback]:
    """Listen at a redirect URI on this machine, or at any free port if none is given."""
    parts = urlsplit(redirect_uri or f"http://127.0.0.1:0{DEFAULT_PATH}")
    host = parts.hostname or ""
    if parts.scheme != "http" or not is_loopback(host):
        raise LoginFailed(
            f"the redirect URI {redirect_uri} is not on this machine",
            hint="use `--paste`, or a redirect URI like http://localhost:8765/callback",
        )
    sockets = _bound(host, parts.port if parts.port is not None else 80, redirect_uri)
    port = sockets[0].getsockname()[1]
    place = Loopback(redirect_uri or f"http://127.0.0.1:{port}{DEFAULT_PATH}")
    tasks = await anyio.create_task_group().__aenter__()
    try:
        for one in sockets:
            tasks.start_soon(_accept, await anyio.abc.SocketListener.from_socket(one), place)
        yield place
    finally:
        tasks.cancel_scope.cancel()
        # No exception is passed in: a task group would wrap it, and its type is what callers go by.
        await tasks.__aexit__(None, None, None)


async def _accept(listener: anyio.abc.SocketListener, place: Loopback) -> None:
    async with listener:
        await listener.serve(place.serve)


def _bound(host: str, port: int, redirect_uri: str) -> list[socket.socket]:
    """A socket for each address of the host: a browser takes whichever it likes of those of ``localhost``."""
    families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    if host != "localhost":
        families = [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    bound: list[socket.socket] = []
    try:
        for family, address in families:
            if bound and not socket.has_ipv6:
                break
            one = socket.socket(family, socket.SOCK_STREAM)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((address, port))
            except OSError:
                if len(bound) == 1:
                    raise
                bound.pop().close()  # no IPv6 here: the other one will do
                break
            one.listen(16)
            one.setblocking(False)
    except OSError as exc:
        for one in bound:
            one.close()
        raise LoginFailed(
            f"nobody can listen at {redirect_uri}: {exc.strerror}",
            hint="another program has that port: end it, or use `--paste`",
        ) from exc
    return bound


def _response(status: str, page: str) -> bytes:
    body = page.encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
