"""The faults that the HTTP peer can have are the faults that a client then meets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import anyio
import httpx2
import pytest

from tests.peers.http_fault import (
    Behaviour,
    FaultServer,
    Request,
    accept_and_ignore,
    close_mid_answer,
    closed_port,
    first,
    never_answer,
    oversized,
    redirect,
    reset_before_answer,
    reset_mid_answer,
    reset_on_accept,
    respond,
    trickle,
)
from tests.peers.leaks import no_leaks
from tests.peers.tls import CertificateKind, Certificates

pytestmark = pytest.mark.anyio

HELLO = respond(200, "hello", {"x-who": "peer"})


async def fetch(server: FaultServer, path: str = "/", *, body: bytes = b"") -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(server.origin + path, content=body)


@contextlib.asynccontextmanager
async def asking(server: FaultServer) -> AsyncIterator[asyncio.StreamReader]:
    """A bare socket that has sent one request; gives what comes back, byte by byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: peer\r\n\r\n")
    try:
        with anyio.fail_after(5):
            yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_an_answer_is_as_scripted_and_the_request_is_kept() -> None:
    async with no_leaks(), FaultServer(HELLO) as server:
        answer = await fetch(server, "/a?b=c", body=b"payload")
        assert (answer.status_code, answer.text, answer.headers["x-who"]) == (200, "hello", "peer")
        [request] = server.requests
        assert (request.method, request.path, request.body) == ("POST", "/a?b=c", b"payload")
        assert request.headers["content-length"] == "7"
        assert server.connections == 1
        await server.all_closed()


async def test_a_chunked_request_body_is_read_whole() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"pay"
        yield b"load"

    async with FaultServer(HELLO) as server, httpx2.AsyncClient(trust_env=False) as client:
        await client.post(server.origin, content=pieces())
        await client.post(server.origin, content=b"second")
        assert [request.body for request in server.requests] == [b"payload", b"second"]
        assert server.connections == 1


async def test_a_script_may_be_a_list_or_a_function_of_the_request() -> None:
    async with FaultServer(first(2, respond(503), then=HELLO)) as server:
        assert [(await fetch(server)).status_code for _ in range(4)] == [503, 503, 200, 200]

    def by_path(request: Request) -> Behaviour:
        return HELLO if request.path == "/here" else respond(404)

    async with FaultServer(by_path) as server:
        assert [(await fetch(server, path)).status_code for path in ("/here", "/there")] == [200, 404]


async def test_a_reset_before_the_answer_reaches_the_client_as_a_reset() -> None:
    async with no_leaks(), FaultServer(reset_before_answer) as server:
        async with asking(server) as reader:
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert len(server.requests) == 1


async def test_a_reset_on_accept_comes_before_any_request_is_read() -> None:
    async with FaultServer([reset_on_accept, HELLO]) as server:
        async with asking(server) as reader:
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert (server.connections, server.requests) == (1, [])
        assert (await fetch(server)).status_code == 200


async def test_a_reset_in_the_middle_comes_after_the_head_and_part_of_the_body() -> None:
    async with FaultServer(reset_mid_answer) as server, asking(server) as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_close_in_the_middle_is_an_orderly_end_of_a_short_body() -> None:
    async with FaultServer(close_mid_answer) as server:
        async with asking(server) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 4096" in head
            assert 0 < len(await reader.read()) < 4096
        with pytest.raises(httpx2.RemoteProtocolError):
            await fetch(server)


async def test_a_server_that_never_answers_has_read_the_request_and_notices_the_client_leaving() -> None:
    async with no_leaks(), FaultServer(never_answer) as server:
        async with asking(server) as reader:
            with anyio.move_on_after(0.1) as silence:
                await reader.read(1)
            assert silence.cancelled_caught
            assert (len(server.requests), server.open_connections) == (1, 1)
        await server.all_closed()


async def test_a_server_that_ignores_its_clients_reads_nothing() -> None:
    async with no_leaks(), FaultServer(accept_and_ignore) as server, asking(server) as reader:
        with anyio.move_on_after(0.1) as silence:
            await reader.read(1)
        assert silence.cancelled_caught
        assert (server.connections, server.requests) == (1, [])


async def test_a_trickling_body_goes_on_until_the_client_leaves() -> None:
    async with FaultServer(trickle(b"ab", interval=0.001)) as server:
        async with asking(server) as reader:
            await reader.readuntil(b"\r\n\r\n")
            for piece in (b"a", b"b", b"a", b"b"):
                assert await reader.readuntil(piece + b"\r\n") == b"1\r\n" + piece + b"\r\n"
        await server.all_closed()


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [2, 3, 200_000])
async def test_an_oversized_answer_has_exactly_the_size_that_was_asked_for(size: int, *, declared: bool) -> None:
    async with FaultServer(oversized(size, declared=declared)) as server:
        answer = await fetch(server)
        assert len(answer.content) == size
        assert isinstance(answer.json(), str)
        assert ("content-length" in answer.headers) is declared


async def test_a_redirect_names_its_location() -> None:
    async with FaultServer(redirect("https://elsewhere.example/mcp", 308)) as server:
        answer = await fetch(server)
        assert (answer.status_code, answer.headers["location"]) == (308, "https://elsewhere.example/mcp")


async def test_a_stopped_server_refuses_and_can_come_back_on_its_port() -> None:
    async with FaultServer(HELLO) as server:
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        async with server:
            assert (await fetch(server)).status_code == 200


async def test_a_closed_port_refuses() -> None:
    with closed_port() as port, pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_good_certificate_verifies(certificates: Certificates) -> None:
    trusting = httpx2.AsyncClient(trust_env=False, verify=certificates.client_context())
    async with no_leaks(), FaultServer(HELLO, ssl=certificates.server_context()) as server, trusting as client:
        assert (await client.get(server.origin)).text == "hello"


@pytest.mark.parametrize(
    ("kind", "codes"),
    [("expired", {10}), ("not_yet_valid", {9}), ("wrong_name", {62, 64}), ("other_ca", {19, 20})],
)
async def test_a_bad_certificate_fails_for_its_own_reason(
    kind: CertificateKind, codes: set[int], certificates: Certificates
) -> None:
    async with no_leaks(), FaultServer(HELLO, ssl=certificates.server_context(kind)) as server:
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            await asyncio.open_connection("localhost", server.port, ssl=certificates.client_context())
        assert refused.value.verify_code in codes
        assert server.requests == []
