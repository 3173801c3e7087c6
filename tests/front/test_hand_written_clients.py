"""Clients that write requests by hand: what HTTP lets them leave out or add, and what is refused with a reason."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.raw import MODERN_META, Answer, initialize, send
from tests.harness.served_hub import front
from tests.wire.raw_answers import raw_server

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-1")]

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fine", "_meta": MODERN_META}}
MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "fine"}


async def test_a_client_that_names_no_form_gets_json_and_a_compressed_body_is_refused_with_the_reason() -> None:
    async with raw_server("json") as server, front({"s": server}) as hub:
        url = hub.one("s")

        async def ask(body: bytes, **headers: str) -> Answer:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            usual = {"Host": urlsplit(url).netloc, "Content-Type": "application/json"}
            return await send(url, "POST", {**usual, **named, "Content-Length": str(len(body))}, body)

        for message, era in ((CALL, MODERN), (initialize(), {})):
            body = json.dumps(message).encode()
            plain = await ask(body, **era)
            assert (plain.status, "result" in json.loads(plain.body)) == (200, True), plain
            zipped = await ask(gzip.compress(body), Content_Encoding="gzip", Accept="*/*", **era)
            assert (zipped.status, "accept-encoding: identity" in zipped.head) == (415, True), zipped
            assert "Content-Encoding" in json.loads(zipped.body)["error"]["message"]
            other = await ask(body, Accept="text/html", **era)
            assert (other.status, "must accept" in json.loads(other.body)["error"]["message"]) == (406, True)


async def test_every_answer_of_a_session_names_it_once() -> None:
    async with raw_server("json") as server, front({"s": server}) as hub:
        usual = {"Host": urlsplit(hub.all).netloc, "Accept": "*/*", "Content-Type": "application/json"}
        body = json.dumps(initialize()).encode()
        begun = await send(hub.all, "POST", {**usual, "Content-Length": str(len(body))}, body)
        named = begun.head.partition("mcp-session-id: ")[2].partition("\r\n")[0]
        port = urlsplit(hub.all).port
        listening, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\nMcp-Session-Id: {named}\r\n\r\n"
        writer.write(head.encode())
        assert (await listening.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        second = await send(hub.all, "GET", {**usual, "Mcp-Session-Id": named})
        writer.close()
    assert (second.status, second.head.lower().count("mcp-session-id")) == (409, 1), second


def call(number: Any, tool: str = "s__fine", method: str = "tools/call") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"name": tool}}


NOTICE = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}


async def test_a_client_of_the_version_with_batches_gets_the_answers_to_a_batch_together() -> None:
    async with raw_server("json") as server, front({"s": server}) as hub:
        usual = {"Host": urlsplit(hub.all).netloc, "Accept": "*/*", "Content-Type": "application/json"}

        async def ask(message: Any, **headers: str) -> Answer:
            body = json.dumps(message).encode()
            return await send(hub.all, "POST", {**usual, **headers, "Content-Length": str(len(body))}, body)

        async def begin(version: str) -> dict[str, str]:
            first = initialize()
            first["params"]["protocolVersion"] = version
            begun = await ask(first)
            assert json.loads(begun.body)["result"]["protocolVersion"] == version
            return {"Mcp-Session-Id": begun.head.partition("mcp-session-id: ")[2].partition("\r\n")[0]}

        session = await begin("2025-03-26")
        whole = await ask([call(1), NOTICE, call("2"), 5, call(3, "none"), call(4, method="initialize")], **session)
        answers = json.loads(whole.body)
        assert (whole.status, whole.head.lower().count("mcp-session-id")) == (200, 1)
        assert [one["id"] for one in answers] == [1, "2", None, 3, 4]
        assert [one.get("result", {}).get("content") for one in answers[:2]] == [[{"type": "text", "text": "fine"}]] * 2
        assert [one.get("error", {}).get("code") for one in answers[2:]] == [-32600, -32602, -32600]
        assert [(await ask(batch, **session)).status for batch in ([NOTICE, NOTICE], [], [NOTICE] * 101)] == [
            202,
            400,
            400,
        ]
        assert (await ask([call(1)], **await begin("2025-06-18"))).status == 400
        assert (await ask([initialize()])).status == 400
        assert (await ask(call(9), **session)).status == 200


async def test_a_client_of_that_version_over_stdio_gets_an_answer_to_each_message_of_a_batch() -> None:
    first = initialize()
    first["params"]["protocolVersion"] = "2025-03-26"
    batch = [call(1, method="ping"), NOTICE, 5, call(2, method="ping"), call(3, method="initialize")]
    hub = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.harness.stdio_hub", '{"mcpServers": {}}'),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    sent = "".join(json.dumps(one) + "\n" for one in (first, batch, [], call(4, method="ping")))
    assert hub.stdin is not None
    assert hub.stdout is not None
    hub.stdin.write(sent.encode())
    async with asyncio.timeout(30):
        said = [json.loads(await hub.stdout.readline()) for _ in range(7)]
        await hub.communicate(b"")
    answers = {str(one["id"]): one for one in said}
    assert {name for name in answers if "result" in answers[name]} == {"1", "2", "4"}
    assert {name: answers[name]["error"]["code"] for name in ("None", "3")} == {"None": -32600, "3": -32600}
