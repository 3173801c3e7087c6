"""A hub that is restarted, killed, or replaced: its clients go on with the sessions that they have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client

from holdfast.control.hub_finder import running_hubs
from holdfast.files import replace_file
from holdfast.serve.listening import bind
from holdfast.serve.takeover import handing_over
from holdfast.testing import HttpServer, StdioServer
from tests.cli.serve_process import COMMAND, Served, config, run, served, spawned
from tests.cli.test_serve import Gate, ready
from tests.clients.raw import MODERN_META
from tests.harness.raw_session import Session
from tests.harness.served_hub import text_of
from tests.harness.waiting import gone
from tests.peers.peer_server import running
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-14", "FLEET-1")]

KEY = "a session key that is long enough for all"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def call(client: Client) -> str:
    """A call by a client that is as patient as an agent: the hub's server may still be starting."""
    with anyio.fail_after(30):
        return text_of(await client.call_tool("one__a", {}))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_clients_of_both_eras_go_on_after_a_restart(how: signal.Signals, tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        file, port = config(tmp_path / "mcp.json", one=one.definition), str(free_port())
        async with served(home, "--config", str(file), port=port) as hub:
            url = hub.url
            async with Client(url, mode="legacy") as legacy, Client(url) as modern:
                assert [await call(legacy), await call(modern)] == ["one", "one"]
                hub.send(how)
                await hub.ended()
                async with served(home, "--config", str(file), port=port) as again:
                    assert again.url == url
                    assert [await call(legacy), await call(modern)] == ["one", "one"]


@pytest.mark.requirement("LIFE-18", "LIFE-21", "HUB-2", "HUB-11")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_tells_no_client_of_a_list_that_did_not_change(
    how: signal.Signals, tmp_path: Path, home: Path
) -> None:
    """Copilot drops the call under way when it is told: a notice without a change costs its user a call."""
    port = str(free_port())
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            async with served(home, "--config", str(file), port=port) as hub:
                await ready(hub)
                everything, alone = (
                    Session(http, hub.url),
                    Session(http, hub.url.replace("/mcp", "/servers/one/mcp")),
                )
                for session in (everything, alone):
                    await session.begin()
                    async with session.notices():
                        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
                            async with session.request(method) as answer:
                                assert "result" in json.loads((await anext(answer))["data"])
                async with everything.request("resources/subscribe", {"uri": "holdfast://status"}) as answer:
                    await anext(answer)
                hub.send(how)
                await hub.ended()
            async with (
                served(home, "--config", str(file), port=port) as hub,
                everything.notices() as first,
                alone.notices() as second,
            ):
                await ready(hub)
                one.kill()  # the status changes, and no list does
                await hub.said("one: lost")
                await hub.said("one: connected", times=2)
                for session in (everything, alone):
                    async with session.request("tools/list") as answer:
                        assert "holdfast/unverified" not in (await anext(answer))["data"]
                one.set_tools({"a": "one", "b": "two"})
                told = await _methods(first, until="notifications/tools/list_changed")
                assert len(told) >= 2, (
                    "the status changed at the loss and after it; the hub was back before or after this"
                )
                assert set(told) == {"notifications/resources/updated"}
                assert await _methods(second, until="notifications/tools/list_changed") == []
                async with everything.request("tools/list") as answer:
                    assert "one__b" in (await anext(answer))["data"], "the notice was about the change"


async def _methods(events: AsyncIterator[dict[str, str]], *, until: str) -> list[str]:
    """The notices of a stream before the first one of a method."""
    seen: list[str] = []
    with anyio.fail_after(30):
        async for event in events:
            if event.get("data", "").startswith("{"):
                method = json.loads(event["data"])["method"]
                if method == until:
                    break
                seen.append(method)
    return seen


async def test_calls_under_way_at_a_kill_are_told_as_uncertain_and_their_clients_go_on(
    tmp_path: Path, home: Path
) -> None:
    port = str(free_port())
    async with running("legacy") as origin, httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        file = config(tmp_path / "mcp.json", o={"url": origin.url})
        async with served(home, "--config", str(file), port=port) as hub, anyio.create_task_group() as tasks:
            await ready(hub)
            tasks.start_soon(_is_cut_off, http, hub.url)
            with anyio.fail_after(30):
                await origin.waiting.wait()
            legacy = Session(http, hub.url)
            await legacy.begin()
            async with legacy.call("o__wait", {}, progressToken="p") as events:
                seen = await anext(events)
                while "notifications/progress" not in seen.get("data", ""):
                    seen = await anext(events)
                hub.send(signal.SIGKILL)
                with pytest.raises(httpx2.RemoteProtocolError):
                    await anext(events)
            await hub.ended()
        origin.go.set()
        async with served(home, "--config", str(file), port=port) as hub:
            await ready(hub)
            (told,) = await legacy.come_back(after=seen["id"])
            async with legacy.call("o__echo", {"text": "legacy"}) as events:  # with the id of the lost one
                again = json.loads((await anext(events))["data"])
            modern = await _modern_call(http, hub.url, "o__echo", text="modern")
    lost = json.loads(told["data"])
    assert lost["id"] == again["id"] == 7
    assert "Whether the server carried the request out is not known" in lost["error"]["message"]
    assert again["result"]["content"][0]["text"] == "legacy"
    assert modern.json()["result"]["content"][0]["text"] == "modern"


async def _is_cut_off(http: httpx2.AsyncClient, url: str) -> None:
    """A modern call, which cannot be resumed: its client sees that the connection closed."""
    with pytest.raises(httpx2.RemoteProtocolError):
        await _modern_call(http, url, "o__wait")


async def _modern_call(http: httpx2.AsyncClient, url: str, tool: str, **arguments: str) -> httpx2.Response:
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN_META["io.modelcontextprotocol/protocolVersion"],
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    params = {"name": tool, "arguments": arguments, "_meta": MODERN_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await http.post(url, json=body, headers=headers)


async def test_an_ended_session_stays_ended_after_a_kill(tmp_path: Path, home: Path) -> None:
    file, port = config(tmp_path / "mcp.json"), str(free_port())
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
                await http.post(hub.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=one.headers)
                for one in (ended, open_)
            ]
    assert [answer.status_code for answer in pings] == [404, 200]


async def test_two_hubs_with_one_key_serve_one_session(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    replace_file(keys, KEY)
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
        session.url = second.url
        async with session.call("one__a", {}) as events:
            assert "one" in (await anext(events))["data"]


def test_a_key_file_that_cannot_be_used_refuses_the_start(tmp_path: Path, home: Path) -> None:
    file = config(tmp_path / "mcp.json")
    short = tmp_path / "short"
    replace_file(short, "too short")
    for keys, why in ((tmp_path / "none", "cannot read"), (short, "fewer than 32 bytes")):
        ran = run("serve", "--port", "0", "--config", str(file), "--session-key-file", str(keys), home=home)
        assert ran.returncode != 0
        assert why in ran.stderr
        assert "hint" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert "too short" not in ran.stderr


# Takeover.


@pytest.mark.requirement("FLEET-7")
async def test_a_successor_takes_over_and_clients_of_both_eras_go_on(tmp_path: Path, home: Path) -> None:
    slow = Gate(2)
    async with HttpServer({"a": "one", "slow": slow}) as server:
        file = config(tmp_path / "mcp.json", one=server.definition)
        async with served(home, "--config", str(file), "--drain", "6") as old:
            url = old.url
            await ready(old)
            async with Client(url, mode="legacy") as legacy, Client(url) as modern, anyio.create_task_group() as tasks:
                answers: list[str] = []

                async def under_way(client: Client) -> None:
                    answers.append(text_of(await client.call_tool("one__slow", {})))

                tasks.start_soon(under_way, legacy)
                tasks.start_soon(under_way, modern)
                with anyio.fail_after(30):
                    await slow.asked.wait()
                async with served(home, "--config", str(file), "--takeover") as new:
                    assert new.url == url
                    await old.said("a successor took over")
                    assert [await call(legacy), await call(modern)] == ["one", "one"]
                    slow.may_answer.set()
                    assert await old.ended() == 0
                    assert [await call(legacy), await call(modern)] == ["one", "one"]
                    assert [hub.pid for hub in running_hubs({"XDG_STATE_HOME": str(home / "state")})] == [
                        new.process.pid
                    ]
    assert answers == ["done all the same"] * 2


@pytest.mark.requirement("FLEET-7")
async def test_a_successor_that_fails_to_start_leaves_the_hub_as_it_was(tmp_path: Path, home: Path) -> None:
    async with HttpServer({"a": "one"}) as server:
        file = config(tmp_path / "mcp.json", one=server.definition)
        async with served(home, "--config", str(file), "--drain", "1") as old:
            short = tmp_path / "short"
            replace_file(short, "too short")
            failed = await anyio.to_thread.run_sync(
                lambda: run("serve", "--config", str(file), "--takeover", "--session-key-file", str(short), home=home)
            )
            assert failed.returncode != 0
            await old.said("the successor ended before it was ready: this hub goes on")
            assert (await old.call("one__a")).text == "one"
            async with served(home, "--config", str(file), "--takeover") as new:
                assert await old.ended() == 0
                assert (await new.call("one__a")).text == "one"


@pytest.mark.requirement("FLEET-7")
async def test_without_a_hub_to_take_over_from_it_starts_as_usual(tmp_path: Path, home: Path) -> None:
    file = config(tmp_path / "mcp.json")
    async with served(home, "--config", str(file), "--takeover") as hub:
        await hub.said("starts without a takeover")


FOREIGN = """
import os, socket, sys
os.setuid(65534)
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
try:
    one.sendall(b'{"takeover": 1}\\n')
    data, descriptors, _, _ = socket.recv_fds(one, 4096, 1)
except OSError:
    data, descriptors = b"", []
print(len(data), len(descriptors))
"""


@pytest.mark.requirement("FLEET-7")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_a_process_of_another_user_gets_no_socket(caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> None:
        raise AssertionError("no successor is there")

    with tempfile.TemporaryDirectory() as folder, bind("127.0.0.1", 0) as listener:
        async with handing_over(listener, {"XDG_STATE_HOME": folder}, never) as path:
            assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600  # noqa: ASYNC240 - nothing else runs
            Path(path).chmod(0o666)  # noqa: ASYNC240 - as above; its mode and those of its folders must not be what stops it
            for above in Path(path).parents[:4]:
                above.chmod(0o755)
            with anyio.fail_after(30):
                ran = await anyio.run_process([sys.executable, "-c", FOREIGN, path])
    assert ran.stdout == b"0 0\n"
    assert "another user" in caplog.text


AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
"""


@pytest.mark.requirement("FLEET-7")
async def test_a_connection_that_comes_between_two_hubs_waits_in_the_inherited_socket(
    tmp_path: Path, home: Path
) -> None:
    """As systemd does it: the socket stays open while the hub is restarted."""
    home.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    file = config(tmp_path / "mcp.json")
    with bind("127.0.0.1", 0) as listener:
        hand_on = [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno())]
        command = [*hand_on, *COMMAND, "serve", "--config", str(file)]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            session = Session(http, url)
            async with spawned(command, tmp_path, home, stdin=subprocess.DEVNULL, inherit=listener.fileno()) as hub:
                await session.begin()
                hub.send(signal.SIGTERM)
                assert await hub.ended() == 0
            statuses: list[int] = []
            answered = anyio.Event()

            async def ask() -> None:
                body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                statuses.append((await http.post(url, json=body, headers=session.headers)).status_code)
                answered.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                async with spawned(command, tmp_path, home, stdin=subprocess.DEVNULL, inherit=listener.fileno()) as hub:
                    await hub.said("ready when:")
                    with anyio.fail_after(30):
                        await answered.wait()
    assert statuses == [200]


@pytest.mark.requirement("FLEET-7")
@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="it is not installed")
async def test_it_listens_on_the_socket_that_systemd_passes(tmp_path: Path, home: Path) -> None:
    home.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    address = f"127.0.0.1:{free_port()!s}"
    file = config(tmp_path / "mcp.json")
    command = ["systemd-socket-activate", "--listen", address, *COMMAND, "serve", "--config", str(file)]
    async with spawned(command, tmp_path, home, stdin=subprocess.DEVNULL) as hub:
        await hub.said("Listening on")
        async with Client(f"http://{address}/mcp", mode="legacy") as client:
            assert "holdfast_status" in [tool.name for tool in (await client.list_tools()).tools]
        assert hub.url == f"http://{address}/mcp"
        hub.send(signal.SIGTERM)
        assert await hub.ended() == 0


@pytest.mark.requirement("FLEET-7")
async def test_a_hub_starts_its_successor_at_a_signal_and_names_it_to_systemd(tmp_path: Path, home: Path) -> None:
    file = config(tmp_path / "mcp.json")
    state = {"XDG_STATE_HOME": str(home / "state")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        address = str(tmp_path / "notify")
        notify.bind(address)
        notify.settimeout(30)
        async with served(home, "--config", str(file), "--drain", "1", NOTIFY_SOCKET=address) as old:
            assert await anyio.to_thread.run_sync(notify.recv, 100) == b"READY=1"
            async with Client(old.url, mode="legacy") as client:
                old.send(signal.SIGUSR2)
                heard = sorted([await anyio.to_thread.run_sync(notify.recv, 100) for _ in range(2)])
                named, listens = heard
                try:
                    assert listens == b"READY=1"
                    assert await old.ended() == 0
                    (new,) = running_hubs(state)
                    assert named == f"MAINPID={new.pid}".encode()
                    assert new.pid != old.process.pid
                    assert "holdfast_status" in [tool.name for tool in (await client.list_tools()).tools]
                finally:
                    os.kill(int(named.partition(b"=")[2]), signal.SIGTERM)
            await gone(new.pid)
            assert not running_hubs(state)
