"""The HTTP client and the hub's listener over a Unix socket: the kernel says to both who is at the other end."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from holdfast.access.connections import Admission, ConnectionLimits
from holdfast.core import NetworkFailure, NetworkFault
from holdfast.front.listener import Acceptor
from holdfast.wire.http.pool import ConnectFailed, HttpOrigin, Pool, evidence_of

pytestmark = pytest.mark.anyio

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="to become another user takes root")


class NamesItsPeer(asyncio.Protocol):
    """Answers each request with the name of the peer, as the acceptor found it."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        name = self.admission.peer.name.encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(name), name))

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.end()


@asynccontextmanager
async def pool_of(origin: HttpOrigin, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pool]:
    pool = Pool(origin, tls=tls)
    try:
        async with asyncio.timeout(20):
            yield pool
    finally:
        await pool.aclose()


def at(path: Path) -> HttpOrigin:
    return HttpOrigin("localhost", 80, tls=False, unix=str(path))


async def body_of(pool: Pool) -> bytes:
    answer = await (await pool.request("GET", "/", {})).read(1 << 16)
    return bytes(answer or b"")


@pytest.mark.requirement("FLEET-8")
async def test_a_request_over_a_unix_socket_comes_from_the_user_that_the_kernel_names(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "hub.sock"))
    listener.listen()
    acceptor = Acceptor(listener, NamesItsPeer, limits=ConnectionLimits())
    try:
        async with pool_of(at(tmp_path / "hub.sock")) as pool:
            assert await body_of(pool) == f"uid {os.geteuid()} at a Unix socket".encode()
    finally:
        acceptor.close()


@pytest.mark.parametrize("left_behind", [False, True], ids=["no socket", "a socket without a listener"])
async def test_a_unix_socket_that_nothing_listens_on_is_a_refused_connection(tmp_path: Path, left_behind: bool) -> None:
    if left_behind:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(tmp_path / "hub.sock"))
    async with pool_of(at(tmp_path / "hub.sock")) as pool:
        with pytest.raises(ConnectFailed) as raised:
            await body_of(pool)
    seen = evidence_of(raised.value, doing="")
    assert seen == NetworkFailure(fault=NetworkFault.REFUSED)


_LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@as_root
@pytest.mark.requirement("FLEET-8")
async def test_a_unix_socket_of_another_user_gets_no_request(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sock"
    arguments = [sys.executable, "-c", _LISTENER, str(path), str(NOBODY)]
    pipe = asyncio.subprocess.PIPE
    theirs = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe)
    try:
        assert theirs.stdout is not None
        assert await theirs.stdout.readline() == b"listening\n"
        async with pool_of(at(path)) as pool:
            with pytest.raises(ConnectFailed) as raised:
                await body_of(pool)
    finally:
        theirs.kill()
        await theirs.communicate()
    assert isinstance(raised.value.__cause__, PermissionError)


@pytest.mark.requirement("FLEET-5")
async def test_a_context_with_a_certificate_presents_it_to_a_server_that_asks() -> None:
    authority = trustme.CA()
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asks.minimum_version = ssl.TLSVersion.TLSv1_3
    asks.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(asks)
    authority.configure_trust(asks)
    has_one, has_none = ssl.create_default_context(), ssl.create_default_context()
    authority.issue_cert("replica-1").configure_cert(has_one)
    for context in (has_one, has_none):
        authority.configure_trust(context)
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, NamesItsPeer, limits=ConnectionLimits(), tls=asks)
    origin = HttpOrigin("127.0.0.1", listener.getsockname()[1], tls=True)
    try:
        async with pool_of(origin, has_one) as pool:
            assert await body_of(pool) == b"127.0.0.1"
        async with pool_of(origin, has_none) as pool:
            with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|closed|reset"):
                await body_of(pool)
    finally:
        acceptor.close()
