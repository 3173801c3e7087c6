"""Servers behind TLS that are written by hand: what breaks there is told as what it is, and in the right class."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trustme

from holdfast.types import MCPServerLoadOutcome
from tests.faults.outcomes import observe

pytestmark = pytest.mark.anyio

NAME = "mcp.example"

Act: TypeAlias = "Callable[[Answering], Awaitable[object]]"


class Answering:
    """The answer to a request for the list of tools, and the connection that it goes out on."""

    def __init__(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        self._writer = writer
        self.body = body

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def send_raw(self, data: bytes) -> None:
        """Bytes beside TLS, as a device on the way may add them."""
        self._writer.get_extra_info("socket")._sock.send(data)

    def cut(self) -> None:
        """Close without TLS's own farewell."""
        self._writer.transport.abort()

    async def farewell(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def result(message: dict[str, Any]) -> bytes:
    about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "x", "version": "1"}}
    results: dict[str, Any] = {
        "initialize": {**about, "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "fine", "inputSchema": {"type": "object"}}]},
    }
    method = message["method"]
    said = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode()


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", "content-type: application/json", *lines, "")).encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, act: Act) -> None:
    """Answer as an MCP server does; the list of tools as the test does it."""
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = lines.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        message = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
        if "id" not in message:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            continue
        body = result(message)
        if message["method"] == "tools/list":
            await act(Answering(writer, body))
        else:
            writer.write(head(f"content-length: {len(body)}") + body)


@asynccontextmanager
async def listening(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A listener on some port, which is given; its connections end with the block."""
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handle(reader, writer)
        finally:
            writer.transport.abort()

    listener = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", NAME).configure_cert(context)
    return context


async def loaded(port: int, *, attempt_timeout: float = 10.0) -> MCPServerLoadOutcome:
    connection = {"transport": "streamable_http", "url": f"https://localhost:{port}/mcp"}
    return await observe(connection, attempts=2, attempt_timeout=attempt_timeout, peer_notices=False)


async def shorter(answer: Answering) -> None:
    await answer.send(head(f"content-length: {len(answer.body)}") + answer.body[:20])
    answer.cut()


async def no_last_chunk(answer: Answering) -> None:
    await answer.send(head("transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (len(answer.body), answer.body))
    answer.cut()


async def until_close(answer: Answering) -> None:
    await answer.send(head("connection: close") + answer.body[:20])
    answer.cut()


async def until_farewell(answer: Answering) -> None:
    await answer.send(head("connection: close") + answer.body[:20])
    await answer.farewell()


async def foreign_record(answer: Answering) -> None:
    await answer.send(head(f"content-length: {len(answer.body)}") + answer.body[:20])
    answer.send_raw(b"\x17\x03\x03\x00\x40" + b"x" * 64)


async def plain_text(answer: Answering) -> None:
    answer.send_raw(head("content-length: 2") + b"{}")


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize("act", [shorter, no_last_chunk, until_close, until_farewell, foreign_record, plain_text])
async def test_an_answer_that_breaks_off_is_noticed_and_tried_again(act: Act, tls: ssl.SSLContext) -> None:
    async with listening(lambda reader, writer: serve(reader, writer, act), tls) as port:
        outcome = await loaded(port)
    assert (outcome.status, outcome.attempts) == ("transient", 2), outcome
    assert "handshake" not in (outcome.error or "")


async def whole(answer: Answering) -> None:
    await answer.send(head("connection: close") + answer.body)
    answer.cut()


async def test_an_answer_that_is_complete_needs_no_farewell(tls: ssl.SSLContext) -> None:
    async with listening(lambda reader, writer: serve(reader, writer, whole), tls) as port:
        assert (await loaded(port)).status == "available"


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize("said", [b"", b"\x15\x03\x03\x00\x02\x02\x50"], ids=["nothing", "internal_error"])
async def test_a_server_that_leaves_during_the_handshake_is_tried_again(said: bytes, tls: ssl.SSLContext) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(said)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with listening(leave) as port:
        outcome = await loaded(port)
    assert (outcome.status, outcome.attempts) == ("transient", 2), outcome


@pytest.mark.requirement("LOAD-3")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_demands_a_client_certificate_is_told_as_such(
    version: ssl.TLSVersion, authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    tls.maximum_version = tls.minimum_version = version
    tls.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(tls)

    async def demand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A handshake whose alert reaches the client: asyncio's own servers send none."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = tls.wrap_bio(incoming, outgoing, server_side=True)
        with contextlib.suppress(ssl.SSLCertVerificationError):
            while True:
                try:
                    shaking.do_handshake()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
                except ssl.SSLError:
                    break
        writer.write(outgoing.read())
        writer.write_eof()
        await reader.read()

    async with listening(demand) as port:
        outcome = await loaded(port)
    assert (outcome.status, outcome.attempts) == ("permanent", 1), outcome
    assert version is ssl.TLSVersion.TLSv1_2 or "client certificate" in (outcome.error or ""), outcome


async def test_a_handshake_that_does_not_go_on_is_told_as_a_connection_that_is_waited_for(tls: ssl.SSLContext) -> None:

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with listening(wait) as port:
        outcome = await loaded(port, attempt_timeout=0.3)
    assert (outcome.status, "waiting for a connection" in (outcome.error or "")) == ("transient", True), outcome


# Proxies.

PROXY: dict[str, tuple[bytes, str, str]] = {
    "502": (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", "transient", "HTTP 502"),
    "429": (b"HTTP/1.1 429 Slow down\r\n\r\n", "transient", "HTTP 429"),
    "closed": (b"", "transient", "it closed the connection"),
    "half": (b"HTTP/1.1 200 O", "transient", "it closed the connection"),
    "403": (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "permanent", "HTTP 403"),
    "404": (b"HTTP/1.1 404 Not Found\r\n\r\n", "permanent", "HTTP 404"),
    "302": (b"HTTP/1.1 302 Found\r\nlocation: http://login.example/\r\n\r\n", "permanent", "HTTP 302"),
    "407": (b"HTTP/1.1 407 Who\r\n\r\n", "permanent", "HTTP 407"),
    "other": (b"SSH-2.0-proxy\r\n\r\n", "permanent", "it does not speak HTTP"),
    "no_status": (b"HTTP/1.1 OK\r\n\r\n", "permanent", "it breaks the rules of HTTP"),
    "large": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000, "permanent", "its headers are too large"),
}


@pytest.mark.requirement("LOAD-2", "LOAD-3")
@pytest.mark.parametrize("kind", PROXY)
async def test_what_a_proxy_answers_is_told_as_the_proxys(
    kind: str, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, status, words = PROXY[kind]

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.write_eof()
        await reader.read()

    async with listening(refuse) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:planted-secret@127.0.0.1:{port}")
        outcome = await beyond_proxy()
    assert (outcome.status, outcome.attempts) == (status, 2 if status == "transient" else 1), outcome
    assert "the proxy on the way" in (outcome.error or "")
    assert words in (outcome.error or ""), outcome
    assert "planted-secret" not in str(outcome)


async def test_a_tunnel_begins_after_the_final_answer_of_the_proxy(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT mcp.example:443 ")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n")
        await writer.start_tls(tls)
        await serve(reader, writer, whole)

    for own in (None, tls):
        async with listening(tunnel, own) as port:
            scheme = "http://127.0.0.1" if own is None else "https://localhost"
            monkeypatch.setenv("HTTPS_PROXY", f"{scheme}:{port}")
            assert (await beyond_proxy()).status == "available"


@pytest.mark.requirement("LOAD-5")
async def test_a_proxy_that_cannot_be_reached_is_not_taken_for_the_server(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free.getsockname()[1]}")
        down = await beyond_proxy()
    foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(foreign)
    async with listening(lambda reader, _: reader.read(), foreign) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"https://localhost:{port}")
        untrusted = await beyond_proxy()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:8080")
    unknown = await beyond_proxy()
    assert [one.status for one in (down, untrusted, unknown)] == ["transient", "permanent", "permanent"]
    said = [f"{one.error} {one.hint}" for one in (down, untrusted, unknown)]
    assert all("the proxy on the way" in one and "`url`" not in one for one in said), said


async def beyond_proxy() -> MCPServerLoadOutcome:
    connection = {"transport": "streamable_http", "url": f"https://{NAME}/mcp"}
    return await observe(connection, attempts=2, peer_notices=False)
