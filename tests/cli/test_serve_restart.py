"""A hub that is restarted, killed, or replaced: its clients go on with the sessions that they have."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client

from holdfast.testing import StdioServer
from tests.cli.serve_process import Served, config, run, served
from tests.front.conftest import text_of
from tests.front.raw_session import Session

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-14", "FLEET-1")]

KEY = "a session key that is long enough for all"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


async def call(client: Client) -> str:
    """A call by a client that is as patient as an agent: the hub's server may still be starting."""
    with anyio.fail_after(30):
        return text_of(await client.call_tool("one__a", {}))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_clients_of_both_eras_go_on_after_a_restart(how: signal.Signals, tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        file, port = config(tmp_path / "mcp.json", one=one.definition), free_port()
        async with served(home, "--config", str(file), port=port) as hub:
            url = hub.url
            async with Client(url, mode="legacy") as legacy, Client(url) as modern:
                assert [await call(legacy), await call(modern)] == ["one", "one"]
                hub.send(how)
                await hub.ended()
                async with served(home, "--config", str(file), port=port) as again:
                    assert again.url == url
                    assert [await call(legacy), await call(modern)] == ["one", "one"]


async def test_an_ended_session_stays_ended_after_a_kill(tmp_path: Path, home: Path) -> None:
    file, port = config(tmp_path / "mcp.json"), free_port()
    async with httpx2.AsyncClient(trust_env=False) as http:
        async with served(home, "--config", str(file), port=port) as hub:
            ended, open_ = Session(http, hub.url), Session(http, hub.url)
            await ended.begin()
            await open_.begin()
            await ended.end()
            hub.send(signal.SIGKILL)
            await hub.ended()
        async with served(home, "--config", str(file), port=port) as hub:
            pings = [
                await http.post(hub.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=one._headers)
                for one in (ended, open_)
            ]
    assert [answer.status_code for answer in pings] == [404, 200]


async def test_two_hubs_with_one_key_serve_one_session(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with (
            served(tmp_path / "h1", "--config", str(file), "--session-key-file", str(keys)) as first,
            served(tmp_path / "h2", "--config", str(file), HOLDFAST_SESSION_KEY=KEY) as second,
        ):
            await _one_session_at(first, second)


async def _one_session_at(first: Served, second: Served) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        session = Session(http, first.url)
        await session.begin()
        session._url = second.url
        async with session.call("one__a", {}) as events:
            assert "one" in (await anext(events))["data"]


def test_a_key_file_that_cannot_be_used_refuses_the_start(tmp_path: Path, home: Path) -> None:
    file = config(tmp_path / "mcp.json")
    short = tmp_path / "short"
    short.write_text("too short")
    for keys, why in ((tmp_path / "none", "cannot read"), (short, "fewer than 32 bytes")):
        ran = run("serve", "--port", "0", "--config", str(file), "--session-key-file", str(keys), home=home)
        assert ran.returncode != 0
        assert why in ran.stderr
        assert "hint" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert "too short" not in ran.stderr
