"""The HTTP endpoint answers every input, reveals no internals, and keeps serving other clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from tests.clients.raw import Answer, initialize, post, send
from tests.clients.recording_client import companion
from tests.conformance.fixture_hub import ServedHub, fixture_over_stdio, hub_over_http
from tests.front.malformed import Garbage, headers_of

pytestmark = pytest.mark.anyio

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 10)))
REQUESTS = 600
SIDE_BY_SIDE = 4
# The time for all requests of a seed; the rest is not sent.
_SECONDS = 20.0
# Streams that are opened stay open; a moment is enough to see that they did.
_GLANCE = 3.0

_USUAL = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data", "", "\x00")
_ACCEPTS = ("application/json, text/event-stream", "application/json", "text/html", "*/*", "", "q=;;,")
_VERSIONS = ("2026-07-28", "2026-07-28", "2025-11-25", "2024-11-05", "1999-01-01", "", "\xff")
_SESSIONS = ("", "x", "0" * 5000, "../..", "\x7f")
_PATHS = (
    "/mcp",
    "/mcp",
    "/servers/child/mcp",
    "/servers/child/mcp",
    "/servers/unknown/mcp",
    "/servers/%2e%2e/mcp",
    "/servers/%00/mcp",
    "/servers//mcp",
    "/" + "x" * 5000,
)


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_request_brings_the_hub_down_or_its_insides_out(seed: int, tmp_path: Path) -> None:
    async with hub_over_http({"child": fixture_over_stdio()}, folder=tmp_path) as hub:
        answers = await _bombard(hub, seed)
        assert [answer for answer in answers if answer.status >= 500] == []
        assert [answer for answer in answers if b"Traceback" in answer.body or b"site-packages" in answer.body] == []
        await _serves(hub)
    assert "Traceback" not in await anyio.Path(hub.process.log).read_text()


@pytest.mark.requirement("SEC-4")
async def test_body_over_the_bound_is_refused_and_no_other_client_notices(tmp_path: Path) -> None:
    async with hub_over_http({"child": fixture_over_stdio()}, folder=tmp_path) as hub:
        huge = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":"' + b"x" * (64 << 20) + b'"}}'
        answer = await post(hub.all, huge, MCP_Protocol_Version="2025-11-25")
        assert answer.status in (0, 400, 413), answer.head
        await _serves(hub)


@pytest.mark.requirement("SEC-4")
async def test_body_that_never_comes_delays_no_other_client(tmp_path: Path) -> None:
    async with (
        hub_over_http({"child": fixture_over_stdio()}, folder=tmp_path) as hub,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(50):
            stream = await anyio.connect_tcp("127.0.0.1", int(hub.base.rpartition(":")[2]))
            await stream.send(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
            tasks.start_soon(_keep, stream)
        await _serves(hub)
        tasks.cancel_scope.cancel()


async def _bombard(hub: ServedHub, seed: int) -> list[Answer]:
    garbage = Garbage(seed)
    answers: list[Answer] = []
    session = await _session(hub)
    left = [REQUESTS]

    async def throw() -> None:
        while left[0] > 0:
            left[0] -= 1
            answers.append(await _one(hub, garbage, session))

    with anyio.move_on_after(_SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(SIDE_BY_SIDE):
                tasks.start_soon(throw)
    # Some of it is no garbage after all, and was taken for what it is.
    assert {200, 400, 404} <= {answer.status for answer in answers}
    return answers


async def _session(hub: ServedHub) -> str:
    """The id of a session of the handshake era."""
    head = (await post(hub.one("child"), initialize())).head
    return next(line for line in head.split("\r\n") if line.lower().startswith("mcp-session-id:"))[15:].strip()


async def _one(hub: ServedHub, garbage: Garbage, session: str) -> Answer:
    body = garbage.next()
    manners = garbage.choice(_modern, _modern, _legacy, _wild)
    headers = {"Host": hub.base.removeprefix("http://"), "Content-Length": str(len(body))}
    headers |= manners(garbage, body, session)
    method = "POST" if manners is not _wild else garbage.choice(*["POST"] * 8, "GET", "DELETE", "PUT", "HEAD", "PATCH")
    path = garbage.choice(*_PATHS) if manners is _wild else "/servers/child/mcp"
    return await send(hub.base + path, method, headers, body, patience=_GLANCE)


def _modern(garbage: Garbage, body: bytes, session: str) -> dict[str, str]:
    """The headers that belong to the message, as far as it can be read: it comes as far as it can."""
    method, name = headers_of(body)
    return _USUAL | {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}


def _legacy(garbage: Garbage, body: bytes, session: str) -> dict[str, str]:
    """The headers of a session that stands."""
    return _USUAL | {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session}


def _wild(garbage: Garbage, body: bytes, session: str) -> dict[str, str]:
    headers: dict[str, str] = {"Content-Type": garbage.choice(*_TYPES), "Accept": garbage.choice(*_ACCEPTS)}
    _maybe(garbage, headers, "MCP-Protocol-Version", _VERSIONS, among=2)
    _maybe(garbage, headers, "Mcp-Session-Id", (*_SESSIONS, session), among=4)
    _maybe(garbage, headers, "Mcp-Method", ("tools/call", "ping", ""), among=5)
    _maybe(garbage, headers, "Last-Event-ID", ("1", "x", "-1"), among=20)
    return headers


def _maybe(garbage: Garbage, headers: dict[str, str], name: str, values: tuple[Any, ...], *, among: int) -> None:
    if garbage.choice(*range(among)) == 0:
        headers[name] = garbage.choice(*values)


async def _serves(hub: ServedHub) -> None:
    """A client that behaves gets its answer, in either era."""
    with anyio.fail_after(20):
        async with companion(hub.one("child"), "modern") as client:
            assert await client.call("test_echo", words="hello") == "hello"
        async with companion(hub.one("child"), "legacy") as client:
            assert await client.call("test_echo", words="hello") == "hello"


async def _keep(stream: anyio.abc.SocketStream) -> None:
    async with stream:
        await anyio.sleep_forever()
