"""A reason that quotes a secret: a tripped breaker and a lost connection are told everywhere, the secret nowhere."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast import Hub
from holdfast.errors import HoldfastError
from holdfast.files import replace_file
from tests.cli.serve_process import Served, served
from tests.cli.test_canaries import asked, forms, in_thread
from tests.harness import waiting
from tests.harness.open_hubs import defined
from tests.peers.http_fault import Behaviour, Request, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.mcp_sse import SsePeer
from tests.peers.stdio import StdioPeer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requirement("SEC-12", "MSG-6")]

# They look like no secret: only one who knows them can mask them.
KEY = "plain-words-of-the-key"
PASSWORD = "plain-words-of-the-password"
FORMS = forms(KEY) | forms(PASSWORD)
TOKEN = "token-of-the-callers-0123456789"
CONTROL = "token-of-the-operators-0123456789"
FULL, GONE = "the till is full", "the engine fell off"
ODD = "an odd member"


def quoting(peer: McpPeer) -> Callable[[Request], Behaviour]:
    """Every call fails, and its reason quotes the key: plain and encoded in a body, or in a header."""
    encoded = base64.b64encode(f"user:{KEY}".encode()).decode()
    fails = respond(500, f"{FULL} for {KEY} or {encoded}", content_type="text/plain")
    strange = respond(200, "hello", content_type=f"text/{KEY}")

    def answer(request: Request) -> Behaviour:
        if b'"tools/call"' not in request.body:
            return peer.healthy
        return fails if request.headers["x-server"] == "tripped" else strange

    return answer


class OddPeer(SsePeer):
    """It breaks the protocol after a call, when no one waits: the words for it quote the members of what it sent."""

    def _reply(self, outbox: asyncio.Queue[dict[str, Any] | None], message: dict[str, Any]) -> None:
        super()._reply(outbox, message)
        if message.get("method") == "tools/call":
            outbox.put_nowait({ODD: 1, KEY: 1})


def servers(peer: McpPeer, odd: SsePeer, make: Callable[..., StdioPeer]) -> dict[str, Any]:
    """Two whose breakers trip, and two whose connections end in a call; all say why, with their secret."""
    peer.script = quoting(peer)
    dying = make("--die-in-call", "--stderr", f"Error: {GONE} for {PASSWORD}")
    return {
        "tripped": defined(peer, headers={"X-Key": KEY, "X-Server": "tripped"}),
        "strange": defined(peer, headers={"X-Key": KEY, "X-Server": "strange"}),
        "lost": defined(dying, env={"PASSWORD": PASSWORD}),
        "odd": defined(odd, headers={"X-Key": KEY}),
    }


def leaks(outputs: dict[str, str]) -> list[str]:
    return [name for name, text in outputs.items() if any(form in text for form in FORMS)]


async def test_the_library_tells_why_and_not_the_secret(
    stdio_peer: Callable[..., StdioPeer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    records: list[Any] = []
    errors: list[HoldfastError] = []
    async with (
        McpPeer() as peer,
        OddPeer() as odd,
        Hub.from_config({"mcpServers": servers(peer, odd, stdio_peer), "holdfast": {"approvals": "off"}}) as hub,
    ):
        assert await hub.ready(waiting.PATIENCE)
        hub.listen(records.append)
        for tool in (*("tripped__echo",) * 4, *("strange__echo",) * 4, "lost__echo"):
            with pytest.raises(HoldfastError) as failed:
                await hub.call_tool(tool)
            errors.append(failed.value)
        await waiting.came_true(lambda: any("lost" in repr(one) and GONE in repr(one) for one in records))
        assert (await hub.call_tool("odd__echo", {"text": "hi"})).text == "hi"
        await waiting.came_true(lambda: any("odd" in repr(one) and ODD in repr(one) for one in records))
        outputs = {
            "health": repr(dict(hub.servers)),
            "warnings": repr(hub.warnings),
            "errors": "".join(f"{one!r} {one} {one.message} {one.hint} {vars(one)}" for one in errors),
            "tracebacks": "".join("".join(traceback.format_exception(one)) for one in errors),
            "journal": repr(records),
            "log": caplog.text + repr([vars(one) for one in caplog.records]),
            "hub": repr(hub),
        }
    assert leaks(outputs) == []
    assert FULL in outputs["errors"]
    assert FULL in outputs["journal"]
    assert GONE in outputs["journal"]
    assert FULL in outputs["log"]
    assert outputs["journal"].count("Tripped") == 2


@asynccontextmanager
async def followed(hub: Served, path: str, outputs: dict[str, str]) -> AsyncIterator[None]:
    """Read a stream of the hub meanwhile."""
    outputs[path], begun = "", anyio.Event()

    async def read() -> None:
        headers = {"authorization": f"Bearer {CONTROL}", "accept": "text/event-stream"}
        url = hub.url.removesuffix("/mcp") + path
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=None) as http,
            http.stream("GET", url, headers=headers) as answer,
        ):
            assert answer.status_code == 200
            begun.set()
            async for text in answer.aiter_text():
                outputs[path] += text

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        with anyio.fail_after(waiting.PATIENCE):
            await begun.wait()
        yield
        tasks.cancel_scope.cancel()


async def test_a_served_hub_tells_why_in_every_view_and_the_secret_in_none(
    tmp_path: Path, stdio_peer: Callable[..., StdioPeer]
) -> None:
    home, token, control = tmp_path / "home", tmp_path / "token", tmp_path / "control"
    replace_file(token, TOKEN)
    replace_file(control, CONTROL)
    outputs: dict[str, str] = {}
    async with McpPeer() as peer, OddPeer() as odd:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers(peer, odd, stdio_peer)}))
        options = ("--config", str(file), "--log-format", "json", "--log-level", "debug")
        given = ("--token-file", str(token), "--control-token-file", str(control))
        async with served(home, *options, *given) as hub:
            await waiting.ready(hub.url.replace("/mcp", "/readyz"))
            client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
            _, _, headers = await asked(hub, "/mcp", TOKEN, hello)
            session = {"mcp-session-id": {name.lower(): value for name, value in headers.items()}["mcp-session-id"]}

            async def ask(view: str, method: str, /, **params: Any) -> None:
                body = {"jsonrpc": "2.0", "id": 2, "method": method, "params": params}
                _, outputs[view], _ = await asked(hub, "/mcp", TOKEN, body, **session)

            async with followed(hub, "/api/events", outputs):
                for number in range(3):
                    await ask(f"failed {number}", "tools/call", name="tripped__echo", arguments={})
                    await ask(f"strange {number}", "tools/call", name="strange__echo", arguments={})
                await ask("refused", "tools/call", name="tripped__echo", arguments={})
                await ask("strange", "tools/call", name="strange__echo", arguments={})
                await ask("lost", "tools/call", name="lost__echo", arguments={})
                await ask("odd", "tools/call", name="odd__echo", arguments={"text": "hi"})
                await ask("status tool", "tools/call", name="holdfast_status", arguments={})

                async def told() -> bool:  # a server that is connected again has no reason to tell, so it dies again
                    await ask("lost again", "tools/call", name="lost__echo", arguments={})
                    await ask("status resource", "resources/read", uri="holdfast://status")
                    return GONE in outputs["status resource"] and FULL in outputs["status resource"]

                await waiting.asked(told)
                await ask("tools", "tools/list")
                await waiting.came_true(lambda: all(one in outputs["/api/events"] for one in (FULL, GONE, ODD)))
            paths = ["hub", "servers", "servers/tripped", "servers/lost", "catalog", "servers/lost/logs"]
            for path in (*(f"/api/{one}" for one in [*paths, "servers/tripped/logs"]), "/", "/metrics", "/readyz"):
                status, outputs[path], _ = await asked(hub, path, CONTROL)
                assert status == 200, path
            for command in (["status", "--all"], ["status", "--json"], ["logs", "lost"], ["logs", "tripped", "--json"]):
                ran = await in_thread(*command, home=home)
                outputs[" ".join(command)] = ran.stdout + ran.stderr
            with anyio.fail_after(waiting.PATIENCE):
                hub.process.terminate()
                await hub.ended()
        outputs["log"] = hub.out + hub.err
    assert leaks(outputs) == []
    views = {"/api/servers", "status --json", "status tool", "status resource", "/api/events", "log"}
    trips = {"failed 0", "refused", "/api/servers/tripped", "/api/servers/tripped/logs", "logs tripped --json"}
    losses = {"lost", "/api/servers/lost", "/api/servers/lost/logs", "logs lost"}
    assert {name for name, text in outputs.items() if FULL in text} >= views | trips
    assert {name for name, text in outputs.items() if GONE in text} >= views | losses
    assert {name for name, text in outputs.items() if ODD in text} >= {"/api/events", "log"}
