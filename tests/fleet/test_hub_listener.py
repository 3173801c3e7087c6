"""The listener for hubs in front of this one: a connection ends with the key that it stands on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.front import tls
from holdfast.identity import FleetIdentity
from holdfast.keys import KeyRing
from holdfast.serve.web_server import HubListener, HubWebServer
from tests.harness.served_hub import front

pytestmark = pytest.mark.anyio

KEY, OTHER = b"k" * 32, b"o" * 32
PING = b"GET /nothing HTTP/1.1\r\nhost: hub\r\n\r\n"


@asynccontextmanager
async def listening(identity: FleetIdentity, servers: dict[str, Any] | None = None) -> AsyncIterator[int]:
    """A hub of these servers that serves other hubs at a port."""
    usual, listener = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    async with front(servers or {}) as hub, anyio.create_task_group() as tasks:
        began = anyio.Event()
        server = HubWebServer(hub.app, tls=None, on_listen=began.set, for_hubs=HubListener(listener, identity))
        tasks.start_soon(server.serve, [usual])
        await began.wait()
        yield listener.getsockname()[1]
        server.end()


@pytest.mark.requirement("FLEET-5", "FLEET-6")
async def test_connections_of_other_hubs_end_when_their_key_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.01)
    ring = [KeyRing([KEY, OTHER])]
    inner = FleetIdentity(lambda: ring[0], "inner")
    with anyio.fail_after(20):
        async with listening(inner) as port:

            async def dialed(key: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                """A connection of a hub with this key first, after one answer."""
                outer = FleetIdentity(lambda: KeyRing([key, KEY]), "outer")
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=outer.client())
                writer.write(PING)
                assert (await reader.readline()).startswith(b"HTTP/1.1 404")
                return reader, writer

            (kept, writing), (removed, _) = await dialed(KEY), await dialed(OTHER)
            ring[0] = KeyRing([KEY])
            assert b"404" not in await removed.read(), "it ended, and no request was answered"
            writing.write(PING)
            assert await kept.readuntil(b"HTTP/1.1 404")
            writing.close()
