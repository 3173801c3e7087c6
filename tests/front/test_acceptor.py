"""New connections: those that find no place or no descriptor, and those that are there when a hub stops accepting."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from holdfast.access.connections import Admission, ConnectionLimits
from holdfast.front.listener import PAUSE_SECONDS, Acceptor
from tests.harness.waiting import came_true, jump

pytestmark = pytest.mark.anyio


class Greeter(asyncio.Protocol):
    """Says a word to its client, and ends."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.end()


@pytest.mark.requirement("FLEET-7")
async def test_a_connection_that_was_accepted_is_served_though_the_hub_stops_accepting() -> None:
    """A successor has the socket already, and never sees this connection: a client would get no answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients = [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(3)]
    limits = ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Greeter, limits=limits)
    with anyio.fail_after(10):
        while not acceptor.opening:
            await anyio.lowlevel.checkpoint()
        acceptor.stop()
        while acceptor.opening or limits.open:
            await anyio.lowlevel.checkpoint()
    assert [client.recv(10) for client in clients] == [b"hello"] * 3
    for client in clients:
        client.close()


class Failing(socket.socket):
    """A listening socket on a loopback port that cannot accept as often as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.errors: list[int] = []
        self.tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        if self.errors:
            raise OSError(self.errors.pop(), "it cannot be accepted")
        return super().accept()

    def client(self) -> socket.socket:
        return socket.create_connection(self.getsockname(), timeout=10)


class Silent(Greeter):
    """Keeps its connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass


async def _ended(acceptor: Acceptor, limits: ConnectionLimits, *clients: socket.socket) -> None:
    for client in clients:
        client.close()
    acceptor.close()
    await acceptor.wait_closed()
    with anyio.fail_after(10):
        while limits.open:
            await anyio.lowlevel.checkpoint()


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EPERM])
async def test_a_connection_that_cannot_be_accepted_is_tried_again_after_a_pause(error: int) -> None:
    listener, limits = Failing(), ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Greeter, limits=limits)
    listener.errors = [error]
    client = listener.client()
    await came_true(lambda: not listener.errors)
    await anyio.wait_all_tasks_blocked()
    assert listener.tries == 1, "the loop does not turn in vain"
    await jump(PAUSE_SECONDS)
    await came_true(lambda: listener.tries > 1)
    assert await anyio.to_thread.run_sync(client.recv, 10) == b"hello"
    await _ended(acceptor, limits, client)


@pytest.mark.requirement("SEC-11")
async def test_without_a_descriptor_a_connection_that_waits_gives_way() -> None:
    listener, limits = Failing(), ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Silent, limits=limits)
    waiting = listener.client()
    await came_true(lambda: limits.open == 1 and not acceptor.opening)
    listener.errors = [errno.EMFILE]
    new = listener.client()
    assert await anyio.to_thread.run_sync(waiting.recv, 1) == b"", "the one that waited is closed"
    await came_true(lambda: limits.open == 1 and listener.tries >= 3)
    await _ended(acceptor, limits, waiting, new)


@pytest.mark.requirement("SEC-11")
async def test_a_hub_that_stops_while_it_pauses_accepts_no_more() -> None:
    listener, limits = Failing(), ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Greeter, limits=limits)
    listener.errors = [errno.EMFILE]
    client = listener.client()
    await came_true(lambda: not listener.errors)
    acceptor.stop()
    acceptor.stop()
    await jump(2 * PAUSE_SECONDS)
    assert (listener.tries, listener.fileno()) == (1, -1)
    await _ended(acceptor, limits, client)


@pytest.mark.requirement("SEC-11")
async def test_a_connection_over_the_limit_is_closed_and_those_before_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, limits = Failing(), ConnectionLimits(lambda: 1)
    acceptor = Acceptor(listener, Silent, limits=limits)
    first = listener.client()
    await came_true(lambda: limits.open == 1 and not acceptor.opening)
    monkeypatch.setattr(limits, "enter", lambda _: None)  # as where each one that is open is in use
    second = listener.client()
    assert await anyio.to_thread.run_sync(second.recv, 1) == b""
    first.setblocking(False)
    with pytest.raises(BlockingIOError):
        first.recv(1)
    await _ended(acceptor, limits, first, second)


@pytest.mark.requirement("SEC-11")
async def test_a_handshake_that_does_not_go_on_ends_with_its_acceptor() -> None:
    listener, limits = Failing(), ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Silent, limits=limits, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    clients = [listener.client() for _ in range(3)]
    await came_true(lambda: acceptor.opening == 3)
    assert limits.open == 3, "a connection counts while its handshake runs"
    acceptor.close()
    await acceptor.wait_closed()
    assert (acceptor.opening, limits.open) == (0, 0)
    assert [await anyio.to_thread.run_sync(client.recv, 1) for client in clients] == [b""] * 3
    for client in clients:
        client.close()


async def test_connections_of_a_private_socket_are_taken_at_once_where_a_hub_asks_for_it(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for client in clients:
        client.connect(str(tmp_path / "s"))
    limits = ConnectionLimits(lambda: 200)
    acceptor = Acceptor(listener, Greeter, limits=limits)
    acceptor.stop_when_empty()
    assert acceptor.opening == 20
    await came_true(lambda: not acceptor.opening)
    assert {client.recv(10) for client in clients} == {b"hello"}
    await _ended(acceptor, limits, *clients)


@pytest.mark.requirement("FLEET-7", "FLEET-8")
async def test_a_worker_that_is_replaced_takes_what_waits_also_if_no_descriptor_is_left_for_a_moment() -> None:
    """No other process has these connections: one that is closed here is lost to its client."""
    listener, limits = Failing(), ConnectionLimits(lambda: 16)
    acceptor = Acceptor(listener, Greeter, limits=limits)
    listener.errors = [errno.EMFILE]
    clients = [listener.client() for _ in range(3)]
    acceptor.stop_when_empty()
    assert acceptor.is_stopping
    await came_true(lambda: listener.tries > 1)
    await came_true(lambda: not acceptor.is_stopping and not acceptor.opening)
    assert [await anyio.to_thread.run_sync(client.recv, 10) for client in clients] == [b"hello"] * 3
    assert listener.fileno() == -1, "it is closed when no connection waits"
    await _ended(acceptor, limits, *clients)
