"""Only the commands of its user can find and control a hub that serves."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import aclosing, closing
from pathlib import Path

import anyio
import httpx2
import pytest

from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub, find_hub, running_hubs
from holdfast.errors import UsageError
from holdfast.files import replace_file
from holdfast.serve.hub_secrets import control_token
from holdfast.serve.listening import bind
from holdfast.testing import StdioServer
from tests.cli.command import Cli, cli
from tests.cli.serve_process import PACKAGE, config, environment, run, served

__all__ = ["cli"]

pytestmark = pytest.mark.anyio

TOKEN = "a-control-token-that-is-long-enough"


@pytest.mark.requirement("HUB-5", "SEC-2")
async def test_a_hub_that_serves_is_found_steered_and_forgotten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    where = environment(home)
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with served(home, "--config", str(file)) as hub:
            base = hub.url.removesuffix("/mcp")
            assert f"status page:  {base}/\n" in hub.out
            found = find_hub(environ=where)
            assert (found.url, found.config, found.pid) == (base, str(file), hub.process.pid)
            assert found.token not in hub.out + hub.err
            async with ControlClient(found) as control:
                view = await control.hub()
                assert (view.endpoint, view.config, view.demo) == (hub.url, str(file), False)
                assert (await control.act("one", "disable")).state == "disabled"
                with anyio.fail_after(30):
                    await _a_broken_edit_is_told(control, file)
                    await _a_new_session_key_is_told(control, home, hub.url)
                names = []
                with anyio.fail_after(30):
                    async for event in control.events():
                        names.append(event.name)
                        if event.name == "hello":
                            hub.send(signal.SIGTERM)
            assert names == ["hello", "hub"]
            assert await hub.ended() == 0
    assert running_hubs(where) == []
    assert not list((home / "state" / "holdfast" / "hubs").iterdir())


async def _a_broken_edit_is_told(control: ControlClient, file: Path) -> None:
    good = await anyio.Path(file).read_text()
    async with aclosing(control.events()) as events:
        async for event in events:
            if event.name == "hello":
                _replaced(file, good[:-5])
            elif event.name == "hub" and json.loads(event.data)["config_problem"]:
                assert "mcp.json:1:" in json.loads(event.data)["config_problem"]
                _replaced(file, good)
            elif event.name == "hub":
                break
    assert (await control.hub()).config_problem == ""


async def _a_new_session_key_is_told(control: ControlClient, home: Path, url: str) -> None:
    (key,) = home.rglob("session.key")  # noqa: ASYNC240 - nothing else runs
    async with aclosing(control.events()) as events:
        assert json.loads((await anext(events)).data)["notice"] == ""
        replace_file(key, "another session key that is long enough")
        async with httpx2.AsyncClient(trust_env=False) as http:  # an id that does not open has the file read again
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            headers = {"accept": "application/json, text/event-stream", "mcp-session-id": "of-another-key"}
            assert (await http.post(url, json=ping, headers=headers)).status_code == 404
        event = await anext(events)
    assert event.name == "hub"
    assert "sessions from before must reconnect" in json.loads(event.data)["notice"]


def _replaced(file: Path, text: str) -> None:
    """In one step, as an editor does: a hub that reads in between must not find half of it."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.mark.requirement("SEC-2")
async def test_an_operators_own_token_is_taken_and_never_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with served(home, "--demo", HOLDFAST_CONTROL_TOKEN=TOKEN) as hub:
        async with ControlClient(RunningHub(url=hub.url.removesuffix("/mcp"), token=TOKEN)) as control:
            assert (await control.hub()).demo
        hub.send(signal.SIGTERM)
        assert await hub.ended() == 0
        assert TOKEN not in hub.out + hub.err


@pytest.mark.requirement("HUB-5")
async def test_a_hub_that_can_leave_no_word_serves_all_the_same(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = config(tmp_path / "mcp.json", one={"command": "no-such-command"})
    blocked = tmp_path / "no-folder"
    blocked.write_text("")
    async with served(home, "--config", str(file), XDG_STATE_HOME=str(blocked)) as hub:
        await hub.said("commands cannot find this hub")
        assert "HOLDFAST_CONTROL_TOKEN" in hub.err


@pytest.mark.requirement("SEC-2")
def test_a_control_token_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    ran = run("serve", "--demo", "--port", "0", home=tmp_path / "home", HOLDFAST_CONTROL_TOKEN="short")
    assert ran.returncode == 2
    assert "fewer than 16 characters" in ran.stderr
    with pytest.raises(UsageError):
        control_token({"HOLDFAST_CONTROL_TOKEN": TOKEN}, callers=TOKEN)
    assert control_token({}, callers=None) != control_token({}, callers=None)


def test_an_answer_in_two_parts_is_sent_without_waiting_in_between() -> None:
    with closing(bind("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP, "asyncio sets TCP_NODELAY for these alone"


@pytest.mark.requirement("HUB-5", "SEC-2")
def test_a_person_at_a_terminal_gets_a_code_with_the_address(cli: Cli, tmp_path: Path) -> None:
    cli.configure({"x": {"command": "no-such-command"}})
    with cli.on_terminal("serve", "--port", "0", PYTHONPATH=PACKAGE) as terminal:
        terminal.until("answers 200")
        assert "/#code=" in terminal.text
        os.kill(terminal._process.pid, signal.SIGTERM)
        assert terminal.code() == 0
