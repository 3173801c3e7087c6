"""A server that asks for a login, and its authorization server: a process, set and looked at from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from holdfast.config.read import config_from_mapping
from holdfast.config.spec import Config, ServerSpec
from tests.peers.authorization_server import PLANTED
from tests.peers.leaks import RUN_MARK

__all__ = ["PLANTED", "Guarded", "guarded", "guarded_at", "guarded_pair"]

_ROOT = Path(__file__).parents[2]


class Guarded:
    """The running pair."""

    def __init__(self, address: str, http: httpx2.AsyncClient) -> None:
        self.address = address
        self._http = http

    @property
    def url(self) -> str:
        """Where the MCP server is."""
        return f"{self.address}/mcp"

    def defined(self, **more: Any) -> dict[str, Any]:
        """The MCP server, as an entry of ``mcpServers``."""
        return {"type": "http", "url": self.url, **more}

    def config(self, **more: Any) -> Config:
        """A configuration of this server alone, under the name ``files``."""
        return config_from_mapping({"mcpServers": {"files": self.defined(**more)}})

    def spec(self, **more: Any) -> ServerSpec:
        """What that definition means."""
        spec = self.config(**more).servers["files"]
        assert not spec.problems, spec
        return spec

    async def behave(self, **how: Any) -> None:
        """Change how it behaves (see ``Behaviour``).

        Or have it ``revoke`` or ``end_tokens``, ``restart`` without its clients, ``forget`` its log, or ``reset``.
        """
        (await self._http.post(f"{self.address}/control", json=how)).raise_for_status()

    async def open(self, address: str) -> str:
        """Open an address as a browser on another machine does; gives where that leads."""
        return str((await self._http.get(address)).headers.get("location", ""))

    async def seen(self, what: str, **fields: Any) -> list[dict[str, Any]]:
        """What it noted of one kind, with these fields."""
        log = (await self._http.get(f"{self.address}/control")).json()["log"]
        return [one for one in log if one["what"] == what and fields.items() <= one.items()]

    async def renewals(self) -> int:
        """How often it was asked to renew."""
        return len(await self.seen("token", grant_type="refresh_token"))


@contextmanager
def guarded_pair() -> Iterator[str]:
    """Run the pair; gives its address. Many tests can use one, each from a fresh start."""
    environment = {"PYTHONPATH": str(_ROOT), "HOLDFAST_TEST_RUN": RUN_MARK}
    command = (sys.executable, "-S", "-m", "tests.peers.authorization_server")
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@asynccontextmanager
async def guarded() -> AsyncIterator[Guarded]:
    """A pair for one test alone."""
    with guarded_pair() as address:
        async with guarded_at(address) as peer:
            yield peer


@asynccontextmanager
async def guarded_at(address: str) -> AsyncIterator[Guarded]:
    """The pair at this address, as if it had just begun."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        peer = Guarded(address, http)
        await peer.behave(reset=True)
        yield peer
