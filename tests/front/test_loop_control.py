"""The operator's side holds up the event loop for no input and no size: the control API, metrics, and a reload."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from holdfast.core import ChangedTool, Redactor, State, Transition, said
from holdfast.hub import CallEnded
from holdfast.hub.hub import Hub
from holdfast.hub.reload import Reloader
from holdfast.serve.run import keep_collections_short
from tests.control.server.controlled_hub import TOKEN, Steered, steered
from tests.front.loop_steps import LONGEST_STEP, TRIES, LoopSteps, measured_loop, too_long
from tests.peers.heavy_http import answer, heavy_http

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]

SERVERS = 500
TOOLS = 10_000
RELOADED = 500
"""Servers of one edit."""
OFF = {"url": "http://127.0.0.1:9/mcp", "enabled": False}


def _ask(base: str, line: str, body: bytes = b"", *headers: str) -> bytes:
    """One request by hand; the beginning of the answer."""
    host, port = base.removeprefix("http://").split(":")
    lines = (
        f"{line} HTTP/1.1",
        "host: 127.0.0.1",
        "connection: close",
        f"authorization: Bearer {TOKEN}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    )
    first = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection, suppress(ConnectionError):
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        while piece := connection.recv(1 << 20):
            first = first or piece
    return first


def _listing() -> bytes:
    tools = [
        {"name": f"tool_{number}", "description": "It does this. " * 9, "inputSchema": {"type": "object"}}
        for number in range(TOOLS)
    ]
    return answer(b'{"jsonrpc":"2.0","id":@ID@,"result":' + json.dumps({"tools": tools}).encode() + b"}")


def _lived(hub: Hub) -> None:
    """Each server has as long a history as is kept."""
    at = hub.registry.clock.now()
    for server in hub.config.servers:
        if server == "heavy":
            continue
        for number in range(100):
            states = (State.CONNECTED, State.RECONNECTING)
            old, new = states[number % 2], states[1 - number % 2]
            cause = "the connection was lost: " + "x" * 80
            hub.registry.journal.write(
                Transition(server=server, old=old, new=new, cause=cause, at=at, generation=number, reason=cause)
            )
        for method in ("tools/call", "prompts/get"):
            hub.registry.journal.write_call(
                CallEnded(server=server, method=method, outcome="completed", waited=0.1, seconds=0.2, at=at)
            )


@asynccontextmanager
async def _large() -> AsyncIterator[tuple[LoopSteps, Steered]]:
    with heavy_http() as server, measured_loop() as steps:
        server.stored["tools/list"] = await anyio.to_thread.run_sync(_listing)
        servers: dict[str, Any] = {f"server-{number}": OFF for number in range(SERVERS)}
        async with steered({"heavy": {"url": server.url}, **servers}) as hub:
            keep_collections_short(hub.hub)
            _lived(hub.hub)
            with anyio.fail_after(20):
                while len(hub.hub.catalog.tools) < TOOLS:  # a large catalog is made in a thread
                    await anyio.lowlevel.checkpoint()
            yield steps, hub


VIEWS = (
    "/api/hub",
    "/api/servers",
    "/api/servers/server-7",
    "/api/catalog",
    "/api/approvals",
    "/api/targets",
    "/api/openapi.json",
    "/metrics",
)


async def test_no_view_of_a_large_hub_holds_up_the_event_loop_and_one_made_at_once_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: dict[str, float] = {}
    noticed: dict[str, float] = {}
    async with _large() as (steps, hub):

        async def look(path: str) -> None:
            first = await anyio.to_thread.run_sync(_ask, hub.base, f"GET {path}")
            assert first.startswith(b"HTTP/1.1 200"), (path, first[:200])

        for path in VIEWS:
            took[path] = await steps.longest_in(partial(look, path))
        for path, bound in (("/api/servers", "AT_ONCE"), ("/api/catalog", "ITEMS_AT_ONCE")):
            monkeypatch.setattr(f"holdfast.control.server.views.{bound}", 1 << 30)
            noticed[path] = await steps.longest_in(partial(look, path), tries=1)
    assert too_long(took) == {}
    for path, at_once in noticed.items():
        assert at_once > 1.3 * took[path], "the measure sees what is not done in turns"


INPUTS: dict[str, Callable[[str], bytes]] = {
    "a large body": lambda base: _ask(base, "POST /api/session", b'{"code":"' + b"a" * (15 << 20) + b'"}'),
    "a body of lists": lambda base: _ask(base, "POST /api/session", b'{"code":' + b"[" * 8_000 + b"]" * 8_000 + b"}"),
    "a body of members": lambda base: _ask(
        base, "POST /api/session", b"{" + b",".join(b'"%d":1' % number for number in range(1_700)) + b"}"
    ),
    "a body that is not wanted": lambda base: _ask(base, "GET /api/hub", b"a" * (15 << 20)),
    "a long path": lambda base: _ask(base, "GET /api/servers/" + "a%2F" * 15_000),
    "a path of segments": lambda base: _ask(base, "GET /api/" + "a/" * 30_000),
    "a long query": lambda base: _ask(base, "GET /api/servers/server-1/logs?" + "lines=1&" * 7_500),
    "a long number": lambda base: _ask(base, "GET /api/servers/server-1/logs?lines=" + "9" * 60_000),
    "a long token": lambda base: _ask(base, "GET /api/hub", b"", "authorization: Bearer " + "a" * 60_000),
    "a long origin": lambda base: _ask(base, "GET /api/hub", b"", "origin: http://" + "a:" * 30_000),
    "many headers": lambda base: _ask(base, "GET /api/hub", b"", *[f"a{number}: b" for number in range(6_000)]),
}


async def test_no_request_to_the_control_api_holds_up_the_event_loop() -> None:
    took: dict[str, float] = {}
    with measured_loop() as steps:
        async with steered({"server-1": OFF}) as hub:
            for what, send in INPUTS.items():

                async def act(send: Callable[[str], bytes] = send) -> None:
                    await anyio.to_thread.run_sync(send, hub.base)

                took[what] = await steps.longest_in(act)
    assert too_long(took) == {}


async def test_no_reload_of_a_large_file_holds_up_the_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"

    def write(servers: dict[str, Any], settings: dict[str, Any]) -> None:
        file.write_text(json.dumps({"mcpServers": servers, "holdfast": settings}))

    off = {f"server-{number}": OFF for number in range(RELOADED)}
    edits: dict[str, dict[str, Any]] = {
        "added": off,
        "the same": off,
        "changed": {name: {**OFF, "url": "http://127.0.0.1:10/mcp"} for name in off},
        "other settings": {name: {**OFF, "url": "http://127.0.0.1:10/mcp"} for name in off},
        "broken": {name: {"url": 7} for name in off},
        "removed": {},
        "added, and all dead": {name: {"url": "http://127.0.0.1:9/mcp"} for name in off},
        "removed again": {},
        "a long command": {"a": {"command": "true", "args": ["x" * 50] * 50_000, "enabled": False}},
        "a large environment": {
            "a": {
                "command": "true",
                "enabled": False,
                "env": {f"NAME_{n}": "a value that is long" for n in range(20_000)},
            }
        },
        "none": {},
    }
    took = dict.fromkeys(edits, inf)

    async def reload_all() -> None:
        with measured_loop() as steps:
            async with Hub.from_config(file) as hub:
                keep_collections_short(hub)
                reloader = Reloader(hub, file)
                for what, servers in edits.items():

                    async def act(what: str = what, servers: dict[str, Any] = servers) -> None:
                        settings = {"call": {"queue": 7}} if what == "other settings" else {}
                        await anyio.to_thread.run_sync(write, servers, settings)
                        await reloader.reload()
                        await hub.ready()

                    took[what] = min(took[what], await steps.longest_in(act, tries=1))

    for _ in range(TRIES):  # one edit cannot be tried again: the second time it changes nothing
        write({}, {})
        await reload_all()
        if not too_long(took):
            break
    assert too_long(took) == {}


# What a server fills: its approvals, its logs, and the stream of the status page.

FLOOD = 160
"""Lines that come in a moment; a thousand may wait."""

_WORDS = b"token=abcdefgh Bearer abcdefghijk ://u:p@h key-0123456789abcdef "


def _changed(number: int) -> bytes:
    """Tools whose texts have as many lines as are compared, and differ in every other one."""
    lines = "\n".join("a" if (line + number) % 2 else "b\u202e" for line in range(9_000))
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "default": number} for n in range(400)}}
    tools = [
        {"name": f"tool_{tool}", "description": lines, "title": lines[:6_000], "inputSchema": schema}
        for tool in range(10)
    ]
    return answer(b'{"jsonrpc":"2.0","id":@ID@,"result":' + json.dumps({"tools": tools}).encode() + b"}")


async def test_no_change_that_waits_for_approval_holds_up_the_event_loop() -> None:
    with heavy_http() as server, measured_loop() as steps:
        server.stored["tools/list"] = await anyio.to_thread.run_sync(_changed, 0)
        async with steered({"heavy": {"url": server.url}}, approvals="hold") as hub:
            keep_collections_short(hub.hub)
            server.stored["tools/list"] = await anyio.to_thread.run_sync(_changed, 1)

            async def act() -> None:
                await hub.hub.reconnect("heavy")
                first = await anyio.to_thread.run_sync(_ask, hub.base, "GET /api/approvals")
                assert first.startswith(b"HTTP/1.1 200"), first[:200]

            took = await steps.longest_in(act)
            assert len(hub.hub.approvals.pending()) == 10
    assert took <= LONGEST_STEP, steps.what


async def test_no_log_of_a_server_holds_up_the_event_loop_and_one_masked_at_once_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redactor = Redactor(["a-secret-of-this-server", "another-secret-value"])
    lines = {
        "many short lines": (_WORDS,) * 160,
        "a few long lines": ((_WORDS * 200)[:8_000],) * 16,
        "other letters": ("é\u202e😀".encode() * 800,) * 16,
    }
    took: dict[str, float] = {}
    with measured_loop() as steps:
        async with steered({"server-1": OFF}) as hub:
            for what, some in lines.items():
                hub.admin.logs.forget("server-1")
                for line in some:
                    hub.admin.logs.add_stderr("server-1", line, redactor)

                async def read() -> None:
                    await anyio.to_thread.run_sync(_ask, hub.base, "GET /api/servers/server-1/logs?lines=1000")

                took[f"reading {what}"] = await steps.longest_in(read)
                took[f"following {what}"] = await steps.longest_in(partial(_followed, hub, some, redactor))
            monkeypatch.setattr("holdfast.control.server.log_buffer.IN_A_ROW", 1 << 30)
            act = partial(_followed, hub, lines["a few long lines"], redactor)
            at_once = await steps.longest_in(act, tries=1)
    assert too_long(took) == {}
    assert at_once > 2 * took["following a few long lines"], "the measure sees what is not done in turns"


async def _followed(hub: Steered, some: tuple[bytes, ...], redactor: Redactor) -> None:
    """A follower that a flood of lines overtakes: as many wait as are kept."""
    logs = hub.admin.logs
    async with aclosing(logs.follow("server-1", silence=1.0)) as news:
        await anext(news)
        for _ in range(FLOOD // len(some)):
            for line in some:
                logs.add_stderr("server-1", line, redactor)
            await anyio.lowlevel.checkpoint()
        logs.add_stderr("server-1", b"the last one", redactor)
        while "the last one" not in [line.text for line in await anext(news)]:
            pass


async def test_no_stream_of_the_status_page_holds_up_the_event_loop() -> None:
    async with _large() as (steps, hub):
        names = [name for name in hub.hub.config.servers if name != "heavy"]

        async def act() -> None:
            seen: set[str] = set()
            active = False
            async with aclosing(hub.admin.events.follow()) as frames:
                await anext(frames)
                for name in names:
                    hub.hub.registry.journal.write_call(
                        CallEnded(server=name, method="tools/call", outcome="completed", waited=0.1, seconds=0.2, at=0)
                    )
                    hub.admin.events.touched(name)
                async for frame in frames:
                    text = frame.decode()
                    active = active or "event: activity" in text
                    shown = (json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {"))
                    seen |= {one["id"] for one in shown if "id" in one}
                    if active and len(seen) >= len(names):
                        return

        took = await steps.longest_in(act)
    assert took <= LONGEST_STEP, steps.what


# Each old freeze, put back, is noticed.


async def test_a_diff_of_any_length_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.changes.MOST_LINES", 1 << 30)
    one = json.loads(_changed(0).partition(b"\r\n\r\n")[2].replace(b"@ID@", b"1"))["result"]["tools"][0]
    other = json.loads(_changed(1).partition(b"\r\n\r\n")[2].replace(b"@ID@", b"1"))["result"]["tools"][0]
    change = ChangedTool(server="heavy", tool="tool_0", held=True, was=said(one), now=said(other))
    with measured_loop() as steps:

        async def act() -> None:
            await anyio.lowlevel.checkpoint()  # what follows is a step of its own
            assert change.diff

        assert await steps.longest_in(act, tries=1) > LONGEST_STEP


async def test_servers_that_are_told_at_once_of_a_change_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.turns.STEP_SECONDS", 3600.0)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {f"server-{number}": OFF for number in range(12 * SERVERS)}}))
    with measured_loop() as steps:
        async with Hub.from_config(file) as hub:
            keep_collections_short(hub)
            reloader = Reloader(hub, file)
            file.write_text(json.dumps({"mcpServers": {}}))
            assert await steps.longest_in(reloader.reload, tries=1) > LONGEST_STEP
