"""No input holds up the event loop at the other entries: servers over HTTP, heads of requests, a client on a pipe."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import pytest

from holdfast.access.jwt import JwtVerifier
from holdfast.access.principals import TokenPolicy
from holdfast.endpoint.broker import Broker
from holdfast.endpoint.server import McpServer
from holdfast.endpoint.view import View
from holdfast.errors import LoadFailed
from holdfast.front.stdio import CHUNK, MessageLines, PipeServer, StdoutWriter
from holdfast.hub.hub import Hub
from holdfast.serve.run import keep_collections_short
from tests.front.heavy_inputs import ENTRIES, QUICK_SIZE, SHAPES, Target, call_message, modern_call
from tests.front.loop_steps import LONGEST_STEP, TRIES, LoopSteps, measured_loop, too_long
from tests.harness.served_hub import front
from tests.peers.heavy_http import HeavyHttp, answer, heavy_http
from tests.peers.heavy_server import ANSWERS as HEAVY_ANSWERS

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]

SETTINGS: dict[str, Any] = {"call": {"timeout": "3s"}, "breaker": {"threshold": 1000}}
HEAD = 90 << 10
"""Just less than the largest head of an answer."""


LARGE_HEAD = 1 << 20
"""For the mutants: enough to exceed the bound of a step several times over."""


# Servers over HTTP.

_SMALL = b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}'


def _result(shape: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"x":' + SHAPES[shape](QUICK_SIZE) + b"}}"


def _events(body: bytes) -> bytes:
    return answer(body, kind=b"text/event-stream")


def _refused(status: bytes, body: bytes, *headers: bytes) -> bytes:
    return answer(body, *headers, status=status)


def _challenge(value: bytes) -> bytes:
    return _refused(b"401 Unauthorized", b"", b"www-authenticate: " + value[:HEAD])


_PROGRESS = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}\n\n'

ANSWERS: dict[str, Callable[[], bytes]] = {
    "a body of small objects": lambda: answer(_result("small objects")),
    "a body of text": lambda: answer(_result("surrogates")),
    "a body that is no JSON": lambda: answer(b"<" * QUICK_SIZE),
    "an event of small lists": lambda: _events(b"data: " + _result("small lists") + b"\n\n"),
    "an event of short lines": lambda: _events(b"data: \n" * (QUICK_SIZE // 7) + b"data: " + _SMALL + b"\n\n"),
    "line ends in a stream": lambda: _events(b"\n" * QUICK_SIZE + b"data: " + _SMALL + b"\n\n"),
    "comments in a stream": lambda: _events(b":\r\n" * (QUICK_SIZE // 3) + b"data: " + _SMALL + b"\n\n"),
    "ids in a stream": lambda: _events(b"id: 1\n" * (QUICK_SIZE // 6) + b"data: " + _SMALL + b"\n\n"),
    "a long id in a stream": lambda: _events(b"id: " + b"1" * QUICK_SIZE + b"\ndata: " + _SMALL + b"\n\n"),
    "notices in a stream": lambda: _events(_PROGRESS * 5_000 + b"data: " + _SMALL + b"\n\n"),
    "a refusal with a text": lambda: _refused(b"403 Forbidden", SHAPES["words like secrets"](15 << 20)),
    "a failure with a text": lambda: _refused(b"500 Error", SHAPES["text"](15 << 20)),
    "a failure with line ends": lambda: _refused(b"500 Error", b"\n" * (15 << 20)),
    "a failure with tags": lambda: _refused(b"502 Error", b"<" * (15 << 20)),
    "a failure with an error": lambda: _refused(
        b"500 Error", b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":1,"message":' + SHAPES["quotes"](60 << 10) + b"}}"
    ),
    "a failure with depth": lambda: _refused(b"500 Error", SHAPES["depth"](60 << 10)),
    "one header many times": lambda: answer(_SMALL, *[b"a:"] * (HEAD // 4)),
    "one header too many times": lambda: answer(_SMALL, *[b"a:"] * 60_000),
    "many headers": lambda: answer(_SMALL, *[b"%d:" % number for number in range(HEAD // 8)]),
    "a long header": lambda: answer(_SMALL, b"x: " + b"a" * HEAD),
    "a header that is too long": lambda: answer(_SMALL, b"x: " + b"a" * (15 << 20)),
    "many cookies": lambda: answer(_SMALL, *[b"set-cookie: a%d=b" % number for number in range(HEAD // 19)]),
    "a long cookie": lambda: answer(_SMALL, b"set-cookie: a=" + b"; " * (HEAD // 2)),
    "a long session id": lambda: answer(_SMALL, b"mcp-session-id: " + b"a" * HEAD),
    "a long content type": lambda: answer(_SMALL, kind=b"text/event-stream;" + b" ;" * (HEAD // 2)),
    "a long time to wait": lambda: _refused(b"429 Slow", b"", b"retry-after: " + b"9" * HEAD),
    "a long redirect": lambda: _refused(b"307 There", b"", b"location: /" + b"../" * (HEAD // 3)),
    "a challenge of words": lambda: _challenge(b"Bearer " * (HEAD // 7)),
    "a challenge of parameters": lambda: _challenge(b"Bearer " + b'a="b", ' * (HEAD // 7)),
    "a challenge of quotes": lambda: _challenge(b"Bearer " + b'"' * HEAD),
    "a challenge of escapes": lambda: _challenge(b'Bearer a="' + b"\\" * HEAD),
    "a challenge of scopes": lambda: _challenge(
        b'Bearer error="insufficient_scope", scope="' + b"a " * (HEAD // 2) + b'"'
    ),
    "a challenge of spaces": lambda: _challenge(b"Bearer a" + b" " * HEAD + b"="),
    "a challenge of commas": lambda: _challenge(b"," * HEAD),
}


@asynccontextmanager
async def _before_http() -> AsyncIterator[tuple[LoopSteps, HeavyHttp, Target, Hub]]:
    with heavy_http() as server, measured_loop() as steps:
        async with front({"heavy": {"url": server.url}}, **SETTINGS) as served:
            target = Target(served.base, Path())
            keep_collections_short(served.hub)
            await anyio.to_thread.run_sync(target.greet)
            yield steps, server, target, served.hub


def _greeted(header: bytes) -> bytes:
    result = json.dumps(HEAVY_ANSWERS["initialize"]).encode()
    return answer(b'{"jsonrpc":"2.0","id":@ID@,"result":' + result + b"}", header)


async def _answered(steps: LoopSteps, server: HeavyHttp, target: Target, what: str, tries: int = TRIES) -> float:
    server.stored["tools/call"] = await anyio.to_thread.run_sync(ANSWERS[what])

    async def act() -> None:
        await anyio.to_thread.run_sync(target.post, call_message(b"{}"))

    return await steps.longest_in(act, tries)


async def test_no_answer_over_http_holds_up_the_event_loop_and_a_header_of_any_length_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _before_http() as (steps, server, target, _):
        took = {what: await _answered(steps, server, target, what) for what in ANSWERS}
        monkeypatch.setattr("holdfast.wire.http.client.LONGEST_TELLING", 1 << 30)
        monkeypatch.setattr("holdfast.wire.http.answer_parser.HEAD_BYTES", 1 << 30)
        parameters = b"Bearer " + b'a="b", ' * (LARGE_HEAD // 7)
        ANSWERS["a challenge without a bound"] = lambda: _refused(b"401 No", b"", b"www-authenticate: " + parameters)
        noticed = await _answered(steps, server, target, "a challenge without a bound", tries=1)
        del ANSWERS["a challenge without a bound"]
    assert too_long(took) == {}
    assert noticed > LONGEST_STEP


async def test_no_greeting_over_http_holds_up_the_event_loop_and_a_session_id_of_any_length_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: dict[str, float] = {}
    async with _before_http() as (steps, server, _, hub):

        async def dial() -> None:
            with suppress(LoadFailed):
                await hub.reconnect("heavy")

        for what in ("a refusal with a text", "a long session id", "many cookies", "a challenge of parameters"):
            server.stored["initialize"] = await anyio.to_thread.run_sync(ANSWERS[what])
            took[what] = await steps.longest_in(dial)
        monkeypatch.setattr("holdfast.wire.http.transport.LONGEST_SESSION_ID", 1 << 30)
        monkeypatch.setattr("holdfast.wire.http.answer_parser.HEAD_BYTES", 1 << 30)
        server.stored["initialize"] = _greeted(b"mcp-session-id: " + b"a" * LARGE_HEAD)
        noticed = await steps.longest_in(dial, tries=1)
    assert too_long(took) == {}
    assert noticed > LONGEST_STEP


# Heads of requests.

_JWT = b"eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ."
LINE = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n"

HEADS: dict[str, Callable[[], bytes]] = {
    "one header many times": lambda: LINE + b"a:\r\n" * 15_000,
    "one header too many times": lambda: LINE + b"a:\r\n" * 60_000,
    "many headers": lambda: LINE + b"".join(b"%d:\r\n" % number for number in range(7_500)),
    "too many headers": lambda: LINE + b"".join(b"%d:\r\n" % number for number in range(25_000)),
    "a long header": lambda: LINE + b"x: " + b"a" * (60 << 10) + b"\r\n",
    "a header that is too long": lambda: LINE + b"x: " + b"a" * (15 << 20) + b"\r\n",
    "a long path": lambda: b"GET /" + b"%2F" * 20_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n",
    "a long path of a server": lambda: b"GET /servers/" + b"a" * (60 << 10) + b"/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n",
    "a long query": lambda: b"GET /healthz?" + b"a=b&" * 15_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n",
    "a long host": lambda: b"POST /mcp HTTP/1.1\r\nhost: " + b"a." * 30_000 + b"\r\n",
    "a long origin": lambda: LINE + b"origin: http://" + b"[:" * 30_000 + b"\r\n",
    "a long token": lambda: LINE + b"authorization: Bearer " + b"a" * (60 << 10) + b"\r\n",
    "a token of dots": lambda: LINE + b"authorization: Bearer " + b"." * (60 << 10) + b"\r\n",
    "a token like a JWT": lambda: LINE + b"authorization: Bearer " + _JWT + b"W1tb" * 15_000 + b".aaaa\r\n",
    "a JWT with a deep head": lambda: LINE + b"authorization: Bearer " + b"W1tb" * 15_000 + b".e30.aaaa\r\n",
    "a long session id": lambda: LINE + b"authorization: Bearer good\r\nmcp-session-id: " + b"A" * (60 << 10) + b"\r\n",
    "a long event id": lambda: (
        b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer good\r\nlast-event-id: "
        + b"1" * (60 << 10)
        + b"\r\n"
    ),
    "a long accept": lambda: LINE + b"authorization: Bearer good\r\naccept: " + b"a/b;q=1," * 7_500 + b"\r\n",
    "a long version": lambda: LINE + b"authorization: Bearer good\r\nmcp-protocol-version: " + b"2" * 60_000 + b"\r\n",
    "a long trace": lambda: LINE + b"authorization: Bearer good\r\ntracestate: " + b"a=b," * 15_000 + b"\r\n",
}


def _send(base: str, head: bytes) -> None:
    host, port = base.removeprefix("http://").split(":")
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    end = b"connection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection((host, int(port)), timeout=30) as connection, suppress(OSError):
        connection.sendall(head + end + body)
        while connection.recv(1 << 16):
            pass


async def _sent(steps: LoopSteps, base: str, what: str, tries: int = TRIES) -> float:
    async def act() -> None:
        await anyio.to_thread.run_sync(lambda: _send(base, HEADS[what]()))

    return await steps.longest_in(act, tries)


@asynccontextmanager
async def _with_tokens(folder: Path) -> AsyncIterator[tuple[LoopSteps, str]]:
    key = folder / "key.pem"
    pem = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="
    key.write_text(f"-----BEGIN PUBLIC KEY-----\n{pem}\n-----END PUBLIC KEY-----\n")
    verify = JwtVerifier(issuer="https://issuer.example", audience="hub", keys=str(key))
    with measured_loop() as steps:
        async with front({}, tokens=TokenPolicy(tokens={"good": "good"}, verify=verify), wait=False) as served:
            yield steps, served.base


async def test_no_head_of_a_request_holds_up_the_event_loop(tmp_path: Path) -> None:
    took: dict[str, float] = {}
    async with _with_tokens(tmp_path) as (steps, base):
        for what in HEADS:
            took[what] = await _sent(steps, base, what)
    assert too_long(took) == {}


async def test_a_head_with_any_number_of_headers_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.front.request_parser.MOST_HEADERS", 1 << 30)
    monkeypatch.setattr("holdfast.front.request_parser.HEAD_BYTES", 1 << 30)
    async with _with_tokens(tmp_path) as (steps, base):
        assert await _sent(steps, base, "one header too many times", tries=1) > LONGEST_STEP


# A client on a pipe.


@dataclass
class Piped(Target):
    """The same hub, for a client that writes lines."""

    to_hub: BinaryIO = field(kw_only=True)
    from_hub: FileIO = field(kw_only=True)

    def post(self, body: bytes, **headers: str) -> bytes:
        """Send a line and a ping after it; wait for the answers to both."""
        silent = b'"method":"notifications' in body[:60] or body[:40].startswith(
            (b'{"jsonrpc":"2.0","id":1,"result"', b'{"jsonrpc":"2.0","id":1,"error"')
        )
        self.to_hub.write(body + b'\n{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
        self.to_hub.flush()
        return b"".join(self._line() for _ in range(1 if silent else 2))

    def until_answered(self, data: bytes) -> bytes:
        """Send bytes and a ping after them; the answer to the ping."""
        self.to_hub.write(data + b'{"jsonrpc":"2.0","id":"last","method":"ping"}\n')
        self.to_hub.flush()
        while b'"last"' not in (line := self._line()):
            pass
        return line

    def _line(self) -> bytes:
        readable, _, _ = select.select([self.from_hub], [], [], 20)
        assert readable, "the hub gave no answer"
        return self.from_hub.readline()


@asynccontextmanager
async def _piped(folder: Path) -> AsyncIterator[tuple[LoopSteps, Piped]]:
    (hub_reads, client_writes), (client_reads, hub_writes) = os.pipe(), os.pipe()
    with heavy_http() as server, measured_loop() as steps:
        hub = Hub.from_config({"mcpServers": {"heavy": {"url": server.url}}, "holdfast": SETTINGS})
        broker = Broker(hub)
        with os.fdopen(hub_reads, "rb") as lines, os.fdopen(client_reads, "rb", buffering=0) as from_hub:
            async with hub, anyio.create_task_group() as tasks:
                assert await hub.ready(10)
                longest = hub.config.settings.limits.message_bytes
                writer = StdoutWriter(hub_writes)
                pipe = PipeServer.of(McpServer(broker, View(hub)), tasks, writer, longest)
                await tasks.start(broker.run)
                read = partial(anyio.to_thread.run_sync, lines.read1, CHUNK)
                tasks.start_soon(pipe.serve, MessageLines(read, longest, pipe.refuse_long))
                with os.fdopen(client_writes, "wb") as to_hub:
                    yield steps, Piped("", folder, to_hub=to_hub, from_hub=from_hub)
                assert await writer.close()
                tasks.cancel_scope.cancel()
        os.close(hub_writes)


GREETING = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"a","version":"1"}}}'
)


async def test_no_line_of_a_client_holds_up_the_event_loop(tmp_path: Path) -> None:
    entries = [*ENTRIES][: [*ENTRIES].index("the text of a result")]
    shapes = [shape for shape in SHAPES if shape != "line ends"]  # the test of raw line ends has them
    took: dict[str, float] = {}
    async with _piped(tmp_path) as (steps, target):
        await anyio.to_thread.run_sync(target.post, GREETING)
        for number, entry in enumerate(entries):
            shape = shapes[number * 3 % len(shapes)]
            if "modern call" in entry:
                continue  # a connection is of one era

            async def act(entry: str = entry, shape: str = shape) -> None:
                await anyio.to_thread.run_sync(lambda: ENTRIES[entry](target, SHAPES[shape](QUICK_SIZE)))

            took[f"{shape} in {entry}"] = await steps.longest_in(act)
        took["a line that is too long"] = await steps.longest_in(
            lambda: anyio.to_thread.run_sync(target.post, b'{"id":1,"x":"' + b"[" * (17 << 20) + b'"}')
        )
    assert too_long(took) == {}


async def test_no_modern_line_of_a_client_holds_up_the_event_loop(tmp_path: Path) -> None:
    took: dict[str, float] = {}
    parts = (b"arguments", b"name", b"_meta", b"x", b"requestState", b"inputResponses")
    shapes = ("small objects", "other letters", "members", "depth", "words like secrets", "halves of surrogates")
    async with _piped(tmp_path) as (steps, target):
        for part, shape in zip(parts, shapes, strict=True):

            async def act(part: bytes = part, shape: str = shape) -> None:
                line = await anyio.to_thread.run_sync(SHAPES[shape], QUICK_SIZE)
                await anyio.to_thread.run_sync(target.post, modern_call(line, of=part))

            took[f"{shape} in {part.decode()}"] = await steps.longest_in(act)
    assert too_long(took) == {}


RAW_LINES: dict[str, bytes] = {
    "line ends": b"\n" * (6 << 20),
    "other line ends": b"\r\n" * (3 << 20),
    "carriage returns": b"\r" * (6 << 20) + b"\n",
    "blanks": b" \n" * (2 << 20),
    "zeros": b"\0" * (6 << 20) + b"\n",
}


async def test_no_raw_line_ends_of_a_client_hold_up_the_event_loop(tmp_path: Path) -> None:
    took: dict[str, float] = {}
    async with _piped(tmp_path) as (steps, target):
        await anyio.to_thread.run_sync(target.post, GREETING)
        for what, data in RAW_LINES.items():

            async def act(data: bytes = data) -> None:
                assert b'"last"' in await anyio.to_thread.run_sync(target.until_answered, data)

            took[what] = await steps.longest_in(act)
    assert too_long(took) == {}
