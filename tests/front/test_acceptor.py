"""Connections at the moment in which a hub stops accepting."""

from __future__ import annotations

import asyncio
import socket

import anyio
import anyio.lowlevel
import pytest

from holdfast.access.connections import Admission, ConnectionLimits
from holdfast.front.acceptor import Acceptor

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
