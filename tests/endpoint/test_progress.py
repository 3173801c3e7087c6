"""A progress notice is written piece by piece, and says the same as one that an encoder wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from holdfast.access import LOCAL
from holdfast.endpoint.clients import Call
from holdfast.endpoint.message import notice_message, read_message
from tests.harness.raw_session import Session
from tests.harness.served_hub import front

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]


class Notices:
    """A channel that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Mapping[str, Any] | None]] = []

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        self.told.append((method, params))


@pytest.mark.parametrize("token", [7, -1, 10**30, "t", 'a "quoted"\n\u00e4 \ud83d', ""])
@pytest.mark.parametrize(
    ("progress", "total", "message"),
    [(1, None, None), (0.1, 1e300, ""), (True, 10**300, 'say "x"\n\u2028\U0001f600'), (-0.0, 5e-324, "cut \ud83d")],
)
async def test_a_notice_says_the_same_as_one_that_an_encoder_wrote(
    token: str | int, progress: float, total: float | None, message: str | None
) -> None:
    reply: Any = Notices()
    nobody: Any = SimpleNamespace(modern=False)
    raw = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"_meta": {"progressToken": token}}})
    view: Any = None
    call = Call(await read_message(raw.encode()), nobody, reply, view, "2025-11-25", {}, None, LOCAL)
    call.progress(progress, total, message)
    ((method, params),) = reply.told
    assert params is not None
    written = json.dumps({"jsonrpc": "2.0", "method": method, "params": dict(params)}, separators=(",", ":"))
    assert notice_message(method, params) == written.encode()
    assert params == {
        "progressToken": token,
        "progress": progress,
        **({"total": total} if total is not None else {}),
        **({"message": message} if message is not None else {}),
    }


def _event(message: dict[str, Any], **more: Any) -> bytes:
    lead = "".join(f"{key}: {value}\n" for key, value in more.items())
    return f"{lead}data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()


def _step(token: object, number: int) -> dict[str, Any]:
    return {"method": "notifications/progress", "params": {"progressToken": token, "progress": number}}


def _log(text: str) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": "info", "data": text}}


class Streaming:
    """A server whose answer to a call is an event stream of progress and log messages, cut as the test says."""

    def __init__(self) -> None:
        self.cuts: list[int] = []

    def stream(self, number: object, token: object) -> list[bytes]:
        """Progress, a log message in between, and the result."""
        return [
            _event(_step(token, 1), id="a"),
            _event(_step(token, 2), event="message"),
            _event(_log("between")),
            _event(_step(token, 3), id="b"),
            _event(_step(token, 4)),
            _event({"id": number, "result": {"content": []}}),
        ]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                await self._answer(head, await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        said = json.loads(body) if body else {}
        results: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "steps", "inputSchema": {"type": "object"}}]},
            "ping": {},
        }
        if said.get("method") == "tools/call":
            await self._send(said["id"], said["params"]["_meta"]["progressToken"], writer)
        elif said.get("method") in results:
            answer = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": results[said["method"]]}).encode()
            lead = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(lead % len(answer) + answer)
        else:
            status = b"202 Accepted" if "method" in said and "id" not in said else b"404 Not Found"
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)

    async def _send(self, number: object, token: object, writer: asyncio.StreamWriter) -> None:
        whole = b"".join(self.stream(number, token))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(whole))
        for start, end in pairwise([0, *self.cuts, len(whole)]):
            writer.write(whole[start:end])
            await writer.drain()
            for _ in range(20):  # the hub reads each piece by itself
                await asyncio.sleep(0)


async def test_progress_and_logs_come_in_their_order_however_their_stream_is_cut() -> None:
    server = Streaming()
    sizes = list(accumulate(map(len, server.stream(1, 1))))
    cuts: list[list[int]] = [
        [],
        sizes[:-1],
        [1, sizes[0] - 1, sizes[1] + 5, sizes[3] - 1],
        list(range(7, sizes[-1], 7)),
    ]
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    async with listener, httpx2.AsyncClient() as http, asyncio.timeout(60):
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        async with front({"s": {"url": url, "era": "legacy"}}) as served:
            session = Session(http, served.all)
            await session.begin()
            for server.cuts in cuts:
                async with session.call("s__steps", {}, progressToken="mine") as events:
                    came = [json.loads(event["data"]) async for event in events if event.get("data", "").strip()]
                assert [_told(message) for message in came] == [1, 2, "between", 3, 4, "result"], server.cuts


def _told(message: dict[str, Any]) -> object:
    params = message.get("params", {})
    return "result" if "result" in message else params.get("progress", params.get("data"))
