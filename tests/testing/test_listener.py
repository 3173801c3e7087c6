"""A server that is stopped leaves no connection open, in any turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest

from holdfast.testing import HttpServer
from tests.peers.http_fault import FaultServer, never_answer
from tests.peers.leaks import no_leaks

pytestmark = pytest.mark.anyio

TURNS = range(6)
"""From before the connection is accepted to after its handler has begun."""


@pytest.mark.parametrize("make", [lambda: HttpServer({"tool": "done"}), lambda: FaultServer(never_answer)])
async def test_whoever_connects_while_the_server_stops_is_cut_off(make: Callable[[], HttpServer | FaultServer]) -> None:
    gc.collect()
    gc.disable()  # it would close sockets without an owner, and so hide them
    try:
        async with no_leaks(kinds=("descriptors",)):
            for turns in TURNS:
                await _stopped_after(turns, make())
    finally:
        gc.enable()


async def _stopped_after(turns: int, server: HttpServer | FaultServer) -> None:
    async with server:
        client = socket.create_connection(("127.0.0.1", server.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        with client, anyio.fail_after(10), suppress(ConnectionResetError):
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
