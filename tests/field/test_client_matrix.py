"""The client matrix: what each client saw is what happened, and what Holdfast said of it.

Each client lists, calls, is told of an outage, works after the server's restart, and does the same over stdio. The
server counts what reached it. The table of results is in ``test-results/field/`` (results.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from holdfast.testing import HttpServer
from tests.cli.serve_process import Served, config, environment, run, served
from tests.field import results
from tests.field.matrix import CLIENTS, Client, Driven
from tests.harness.waiting import asked

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

Way = Literal["http", "stdio"]
TOOL = "one__echo"
REASON = re.compile("refused|closed|reset|ended")
"""What a stopped HTTP server looks like: nothing listens, or the connection broke."""
# A restarted server is back within a second; an open breaker makes a caller wait for its cooldown.
RESTART = 75.0


class Fleet:
    """A server that can be stopped, behind a hub."""

    def __init__(self, server: HttpServer, hub: dict[str, Any], running: Served | None) -> None:
        self.server = server
        self.hub = hub
        self._running = running

    @property
    def calls(self) -> int:
        """The calls that reached the server."""
        return self.server.asked.count("tools/call")

    async def said(self) -> dict[str, Any]:
        """What Holdfast says of the server to people; nothing where no control API listens."""
        if self._running is None:
            return {}
        home = self._running.home
        ran = await anyio.to_thread.run_sync(lambda: run("status", "one", "--json", home=home))
        (found,) = json.loads(ran.stdout)["servers"]
        return dict(found)


@asynccontextmanager
async def fleet(way: Way, folder: Path) -> AsyncIterator[Fleet]:
    home = folder / "home"
    async with HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server:
        file = config(folder / "mcp.json", one={"type": "http", "url": server.url})
        if way == "stdio":
            home.mkdir()
            # By its path: a bridge hands the command to a shell, which would take a program in quotes apart.
            holdfast = str(Path(sys.executable).with_name("holdfast"))
            env = {**environment(home), "HOLDFAST_CONFIG": str(file)}
            yield Fleet(server, {"command": holdfast, "args": ["serve", "--stdio", "--own"], "env": env}, None)
            return
        async with served(home, "--config", str(file)) as hub:
            await hub.said("connected")
            yield Fleet(server, {"url": hub.url}, hub)


class Visit:
    """One client at one hub: what it sees is noted, and every finding is collected, so that the table is complete."""

    def __init__(self, client: Client, way: Way, fleet: Fleet, driven: Driven) -> None:
        self._client, self._way = client, way
        self.fleet = fleet
        self.driven = driven
        self.found: list[str] = []

    def note(self, column: str, seen: str) -> None:
        results.note(self._client.name, self._client.versions, self._way, column, seen)

    def expect(self, holds: bool, words: str) -> None:
        if not holds:
            self.found.append(words)

    async def lists_and_calls(self) -> None:
        tools = await self.driven.tools()
        self.note("list", f"{len(tools)} tools")
        self.expect(TOOL in tools, f"{TOOL} is not listed: {tools}")
        saw = await self.driven.call(TOOL, text="hello")
        self.note("call", saw.text)
        self.expect((saw.text, saw.error) == ("hello", False), f"the call gave: {saw}")
        self.expect(self.fleet.calls == 1, f"{self.fleet.calls} calls reached the server")
        complaints = self.driven.complaints
        self.note("stderr", f"{len(complaints)} lines")
        self.expect(not complaints, f"all is well, and the client complains: {complaints}")

    async def is_told_of_an_outage(self) -> None:
        await self.fleet.server.stop()
        saw = await self.driven.call(TOOL, text="anyone?")
        self.note("outage", saw.text)
        self.expect(saw.error, "a call to a server that is down is no error")
        self.expect("'one'" in saw.text or "`one`" in saw.text, f"the text does not name the server: {saw.text}")
        self.expect(bool(REASON.search(saw.text)), f"the text that a model reads has no reason: {saw.text}")
        self.expect("starting up" not in saw.text, "a server that was up and is lost is called starting up")
        if said := await self.fleet.said():
            self.expect(said["status"] != "available", f"Holdfast calls a lost server {said['status']}")
            self.expect(bool(REASON.search(said["reason"] or "")), f"Holdfast has no reason: {said['reason']}")
        self.expect(self.fleet.calls == 1, "a call reached a server that is down")
        self.expect(TOOL in await self.driven.tools(), "an outage took the tool off the list")

    async def works_after_the_restart(self) -> None:
        await self.fleet.server.start()
        texts: list[str] = []

        async def is_served() -> bool:
            saw = await self.driven.call(TOOL, text="back")
            texts.append(saw.text)
            return not saw.error

        try:
            await asked(is_served, within=RESTART)  # over stdio no event says so
        except TimeoutError:
            self.note("server restart", "not back")
            self.found.append(f"the client was not served within {RESTART:.0f} s of the server's restart")
            return
        self.note("server restart", texts[-1])
        self.expect(texts[-1] == "back", f"after the restart the call gave: {texts[-1]}")
        if said := await self.fleet.said():
            self.expect(said["status"] == "available", f"Holdfast calls a server that is back {said['status']}")

    async def is_told_of_an_unknown_tool(self) -> None:
        """A JSON-RPC error, or its like: it leaves the connection as it was, and the client silent."""
        before = len(self.driven.complaints)
        saw = await self.driven.call("one__no_such_tool", text="?")
        self.note("unknown tool", saw.text)
        self.expect(saw.error, "an unknown tool is no error")
        again = await self.driven.call(TOOL, text="still")
        self.expect(again.text == "still", f"after an unknown tool the call gave: {again}")
        complaints = self.driven.complaints[before:]
        self.expect(not complaints, f"after an unknown tool the client complains: {complaints}")


@pytest.mark.requirement("HUB-15")
@pytest.mark.parametrize("way", ["http", "stdio"])
@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_sees_what_happens_and_what_holdfast_says(client: Client, way: Way, tmp_path: Path) -> None:
    if client.bridge == "mcp-remote" and way == "stdio":
        pytest.skip("mcp-remote connects to URLs only")
    await anyio.to_thread.run_sync(client.ready)
    async with fleet(way, tmp_path) as behind, client.driven(behind.hub, tmp_path) as driven:
        visit = Visit(client, way, behind, driven)
        await visit.lists_and_calls()
        await visit.is_told_of_an_outage()
        await visit.works_after_the_restart()
        await visit.is_told_of_an_unknown_tool()
    assert not visit.found, "\n".join(visit.found)
