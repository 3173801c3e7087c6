"""Requests without access are refused: another Host, another Origin, no token, a wrong token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.clients.raw import discover, initialize, post, send
from tests.clients.recording_client import companion
from tests.conformance.fixture_hub import PYTHON_ENV, ServedHub, fixture_over_stdio, hub_command, hub_over_http
from tests.peers.process import foreign_process

pytestmark = pytest.mark.anyio

TOKEN = "not-a-secret-of-anyone-0123456789"
PATHS = ("/mcp", "/servers/child/mcp")


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    async with hub_over_http({"child": fixture_over_stdio()}, folder=tmp_path_factory.mktemp("open")) as served:
        yield served


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedHub]:
    folder = tmp_path_factory.mktemp("guarded")
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    options = ("--token-file", str(token))
    async with hub_over_http({"child": fixture_over_stdio()}, *options, folder=folder) as served:
        # A credential that was valid before still works when strangers are made to wait.
        assert (await post(served.all, initialize(), Authorization=f"Bearer {TOKEN}")).status == 200
        yield served


ADDRESSES = ("0.0.0.0", "[::]", "169.254.169.254")


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/readyz"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:80",
        "127.0.0.1.evil.example.com",
        "localhost.evil.example.com",
        "evil-localhost",
        "127.0.0.1@evil.example.com",
        "evil.example.com#127.0.0.1",
        *ADDRESSES,
        "",
        "\u00a0localhost",
    ],
)
async def test_request_for_another_host_is_refused(host: str, path: str, hub: ServedHub) -> None:
    if path in PATHS:
        answer = await post(hub.base + path, initialize(), Host=host)
    else:
        answer = await send(hub.base + path, "GET", {"Host": host})
    # Programs that look after the hub use addresses, and no page can send one in place of its own name.
    served = (200,) if path not in PATHS and host in ADDRESSES else (400, 421)
    assert answer.status in served, answer


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.com",
        "https://evil.example.com",
        "http://127.0.0.1.evil.example.com",
        "http://localhost@evil.example.com",
        "http://evil.example.com/http://localhost",
        "null",
        "file://",
        "chrome-extension://abcdefgh",
        "",
    ],
)
async def test_page_of_another_origin_is_refused(origin: str, path: str, hub: ServedHub) -> None:
    for first in (initialize(), discover()):
        answer = await post(hub.base + path, first, Origin=origin, **_headers(first))
        assert answer.status == 403, answer


@pytest.mark.requirement("SEC-2")
async def test_browsers_question_for_permission_from_another_origin_is_not_granted(hub: ServedHub) -> None:
    asked = {
        "Host": hub.base.removeprefix("http://"),
        "Origin": "http://evil.example.com",
        "Access-Control-Request-Method": "POST",
    }
    answer = await send(hub.all, "OPTIONS", asked)
    assert answer.status >= 400
    assert "access-control-allow-origin" not in answer.head.lower()


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_our_own_names_are_served(name: str, path: str, hub: ServedHub) -> None:
    port = hub.base.rpartition(":")[2]
    for first in (initialize(), discover()):
        headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
        answer = await post(hub.base + path, first, **headers, **_headers(first))
        assert answer.status == 200, answer


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        TOKEN,
        "Bearer null",
        "Bearer \xff\xfe",
    ],
)
async def test_caller_without_the_token_is_refused(shown: str | None, guarded: ServedHub) -> None:
    headers = {} if shown is None else {"Authorization": shown}

    async def refused(path: str, first: dict[str, Any]) -> None:
        answer = await post(guarded.base + path, first, **headers, **_headers(first))
        assert answer.status == 401, answer
        assert "www-authenticate" in answer.head.lower()
        assert TOKEN.encode() not in answer.body

    async with anyio.create_task_group() as tasks:
        for path in PATHS:
            for first in (initialize(), discover()):
                tasks.start_soon(refused, path, first)


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_caller_without_the_token_gets_at_no_session(method: str, guarded: ServedHub) -> None:
    first = await post(guarded.all, initialize(), Authorization=f"Bearer {TOKEN}")
    session = next(line for line in first.head.split("\r\n") if line.lower().startswith("mcp-session-id:"))
    headers = {
        "Host": guarded.base.removeprefix("http://"),
        "Mcp-Session-Id": session.partition(":")[2].strip(),
        "Accept": "text/event-stream",
    }
    assert (await send(guarded.all, method, headers)).status == 401


@pytest.mark.requirement("SEC-2")
async def test_token_in_the_address_is_no_token(guarded: ServedHub) -> None:
    answer = await post(f"{guarded.all}?token={TOKEN}&access_token={TOKEN}", initialize())
    assert answer.status == 401


@pytest.mark.requirement("SEC-2", "MSG-6")
async def test_holder_of_the_token_is_served_and_the_log_does_not_show_it(guarded: ServedHub) -> None:
    async with companion(guarded.one("child"), "modern", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert await client.call("test_echo", words="let me in") == "let me in"
    assert TOKEN not in await anyio.Path(guarded.process.log).read_text()


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_hub_does_not_listen_beyond_this_machine_without_a_token(host: str, tmp_path: Path) -> None:
    command = (*hub_command({}, folder=tmp_path), "--host", host, "--port", "0")
    async with foreign_process(command, log=tmp_path / "log", env=PYTHON_ENV) as process:
        with anyio.fail_after(30):
            assert await process.ended() == 2
    assert "--token-file" in await anyio.Path(tmp_path / "log").read_text()


def _headers(first: dict[str, object]) -> dict[str, str]:
    """What a client of the era sends besides."""
    if first["method"] == "initialize":
        return {}
    return {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "server/discover"}
