"""``serve --only … --listen-hubs`` and ``{"hub": …}``: two real hubs, and what the outer one tells of the inner one."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import ClientRequestContext

from tests.cli.serve_process import Served, config, run, served
from tests.harness.served_hub import Person, text_of
from tests.harness.waiting import asked
from tests.hub.test_both_eras import PROGRAM, http_server
from tests.peers.ports import free_port

pytestmark = pytest.mark.anyio

ORIGIN = {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", "legacy"], "cwd": str(Path.cwd())}


class Named(Person):
    """Gives her name to a server that asks for it."""

    async def elicit(self, ctx: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append("elicit")
        return types.ElicitResult(action="accept", content={"name": self.name})


@asynccontextmanager
async def inner_hub(tmp_path: Path, address: str, server: dict[str, Any] = ORIGIN, *more: str) -> AsyncIterator[Served]:
    """A hub that has ``db`` for other hubs; the file has another server too, which it must not start."""
    file = config(tmp_path / "inner.json", db=server, web={"command": "holdfast-no-such-program"})
    arguments = ("--config", str(file), "--only", "db", "--listen-hubs", address, *more)
    async with served(tmp_path / "home", *arguments) as hub:
        yield hub


@asynccontextmanager
async def outer_hub(tmp_path: Path, address: str, *more: str) -> AsyncIterator[Served]:
    file = config(tmp_path / "outer.json", db={"hub": address})
    async with served(tmp_path / "home", "--config", str(file), *more) as hub:
        yield hub


async def told(hub: Served, text: str) -> str:
    """What the status tool says, once it says this."""
    said = ""

    async def says() -> bool:
        nonlocal said
        said = (await hub.call("holdfast_status")).text
        return text in said

    await asked(says)
    return said


@pytest.fixture(params=["tls", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"127.0.0.1:{free_port()}" if request.param == "tls" else f"unix:{tmp_path}/hub.sock"


@pytest.mark.requirement("FLEET-6", "LIFE-6")
async def test_calls_reach_the_inner_server_and_the_end_of_its_process_is_told_as_its_own(
    tmp_path: Path, address: str
) -> None:
    async with inner_hub(tmp_path, address) as inner, outer_hub(tmp_path, address) as outer:
        await told(outer, "db: connected; 12 tools listed")
        pid = int((await outer.call("db__pid")).text)
        os.kill(pid, signal.SIGKILL)
        await outer.said("db: lost: ")
        lost = next(line for line in inner.err.splitlines() if "db: lost: " in line)
        words = lost.partition(" ")[2].partition(";")[0]  # without the time, and without how far the next process is
        assert words in outer.err
        await told(outer, "db: connected; 12 tools listed")
        assert int((await outer.call("db__pid")).text) != pid
        assert "web" not in inner.err


@pytest.mark.requirement("FLEET-6", "MSG-8")
async def test_a_killed_inner_hub_is_an_outage_that_ends_with_its_restart(tmp_path: Path, address: str) -> None:
    async with inner_hub(tmp_path, address) as inner, outer_hub(tmp_path, address) as outer:
        await told(outer, "db: connected; 12 tools listed")
        inner.send(signal.SIGKILL)
        await inner.ended()
        lost = await told(outer, "lost and being reconnected")
        assert "**MCP servers lost and being reconnected (will retry):** db: " in lost
        assert "starting up" not in lost
        async with inner_hub(tmp_path, address):
            await told(outer, "db: connected; 12 tools listed")
            assert (await outer.call("db__echo", {"text": "hi"})).text == "hi"


@pytest.mark.requirement("FLEET-6", "MSG-1")
async def test_an_inner_server_that_starts_slowly_is_starting_up_outside(tmp_path: Path) -> None:
    slow = {"command": sys.executable, "args": ["-c", "import time; time.sleep(600)"]}
    address = f"unix:{tmp_path}/hub.sock"
    async with inner_hub(tmp_path, address, slow), outer_hub(tmp_path, address) as outer:
        said = await told(outer, "db: connecting")
        assert "**MCP servers still starting up (will retry; tools may appear shortly):** db" in said


@pytest.mark.requirement("FLEET-6", "HUB-18")
@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_legacy_client_is_asked_through_both_hubs_by_a_server_that_asks_such_clients_alone(
    tmp_path: Path, over: str
) -> None:
    address = f"unix:{tmp_path}/hub.sock"
    with http_server() as at_url:
        server = at_url if over == "http" else {"command": sys.executable, "args": [str(PROGRAM), "0"]}
        async with inner_hub(tmp_path, address, server), outer_hub(tmp_path, address) as outer:
            await told(outer, "db: connected; 3 tools listed")
            person = Named("ada")
            with anyio.fail_after(45):
                async with person.client(outer.url, "legacy") as client:
                    answer = await client.call_tool("db__ask", {})
                    assert (answer.is_error, person.asked) == (False, ["elicit"]), text_of(answer)
                    assert text_of(answer) == "hello ada"
                async with person.client(outer.url, "modern") as client:
                    assert text_of(await client.call_tool("db__hello", {})) == "hello"


@pytest.mark.requirement("FLEET-6", "SEC-18")
async def test_the_principal_of_a_call_is_the_same_in_both_hubs(tmp_path: Path, address: str) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-a-caller")
    token.chmod(0o600)
    async with (
        inner_hub(tmp_path, address, ORIGIN, "--log-level", "debug") as inner,
        outer_hub(tmp_path, address, "--token-file", str(token)) as outer,
    ):
        await inner.said("db: connected")
        loader = outer.loader(authorization="Bearer a-token-of-a-caller")

        async def lists() -> bool:
            return "db__echo" in {tool.name for tool in (await loader.load()).tools}

        await asked(lists)
        with anyio.fail_after(45):
            assert (await loader.call("hub", "db__echo", {"text": "hi"})).text == "hi"
        await inner.said("db: tools/call of caller completed")


@pytest.mark.requirement("FLEET-6", "SEC-11")
async def test_a_stranger_at_the_port_for_hubs_gets_no_answer(tmp_path: Path) -> None:
    port = free_port()
    async with inner_hub(tmp_path, f"127.0.0.1:{port}"):
        stranger = ssl.create_default_context()
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await anyio.to_thread.run_sync(_ask, port, stranger)


def _ask(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"GET /servers/db/mcp HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = secure.recv(100)
        if not answer:
            raise ConnectionResetError
        return answer


@pytest.mark.requirement("FLEET-6")
async def test_an_edit_of_the_file_changes_nothing_about_which_servers_are_served(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/hub.sock"
    async with inner_hub(tmp_path, address) as inner:
        await inner.said("db: connected")
        config(tmp_path / "inner.json", db={**ORIGIN, "env": {"X": "1"}}, another={"command": "no"})
        await inner.said("the configuration was changed: changed: db")
        assert "another" not in inner.err


@pytest.mark.requirement("FLEET-6", "DX-4")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "shop"), "no server named `shop` is configured"),
        (("--listen-hubs", "0.0.0.0:0"), "needs the session key that the other hubs have"),
        (("--listen-hubs", "127.0.0.1:0", "--workers", "2"), "--listen-hubs does not go with --workers"),
        (("--listen-hubs", "nowhere"), "is no HOST:PORT"),
    ],
)
def test_what_cannot_be_served_to_hubs_is_refused_with_a_hint(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    file = config(tmp_path / "mcp.json", db=ORIGIN)
    ended = run("serve", "--port", "0", "--config", str(file), *arguments, home=tmp_path / "home")
    assert ended.returncode != 0
    assert words in ended.stderr
