"""How often the event loop turns for one call, counted: each turn is a wait of the system, each step a callback.

The client and the server run elsewhere, so every turn is the hub's own. What the hub does beside calls comes into some
counts, and the last turn of a call into those of the next one: the batch of calls that took least leaves both out. Two
steps share a turn where an answer comes before the loop waits, so the turns have a bound alone, and only the steps are
compared.
"""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import anyio.to_thread
import pytest

from benchmarks.processes import stdio_server
from benchmarks.upstream import Answers
from tests.clients.raw import MODERN_META, initialize
from tests.harness.served_hub import front
from tests.peers.heavy_http import in_a_thread

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PERF-4")]

Era = Literal["legacy", "modern"]
VERSIONS: dict[Era, str] = {"legacy": "2025-11-25", "modern": "2026-07-28"}
BATCHES, CALLS = 5, 10
MANY = 500


class Turns(NamedTuple):
    """What a call took, of the calls that took least."""

    turns: int
    steps: int


MOST = {"http": Turns(turns=4, steps=4), "stdio": Turns(turns=6, steps=6)}
"""By what is behind: over stdio, the reader of the pipe is a task of its own."""


class Counts:
    """What one loop did so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = self.steps = 0
        loop: Any = asyncio.get_running_loop()
        turn, run, thread = loop._run_once, asyncio.Handle._run, threading.get_ident()

        def counted_turn() -> None:
            self.turns += 1
            turn()

        def counted_step(handle: asyncio.Handle) -> None:
            self.steps += threading.get_ident() == thread
            run(handle)

        monkeypatch.setattr(loop, "_run_once", counted_turn)
        monkeypatch.setattr(asyncio.Handle, "_run", counted_step)

    def of_each(self, call: Callable[[], object]) -> Turns:
        """What each call took, from another thread."""
        seen = [(self.turns, self.steps)]
        for _ in range(BATCHES):
            for _ in range(CALLS):
                call()
            seen.append((self.turns, self.steps))
        turns, steps = zip(*seen, strict=True)
        return Turns(_least(turns), _least(steps))


def _least(counts: tuple[int, ...]) -> int:
    return round(min(after - before for before, after in pairwise(counts)) / CALLS)


class Client:
    """One connection, by hand and blocking. Each request is one write, so that it comes in one piece."""

    def __init__(self, base: str, era: Era, tool: str) -> None:
        host, port = base.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = (
            f"host: {host}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        )
        self._headers += f"mcp-protocol-version: {VERSIONS[era]}\r\n"
        params: dict[str, Any] = {"name": tool, "arguments": {"text": "said"}}
        if era == "modern":
            params["_meta"] = MODERN_META
            self._headers += f"mcp-method: tools/call\r\nmcp-name: {tool}\r\n"
        else:
            head, _ = self._answer(self._request(initialize()))
            self._headers += f"mcp-session-id: {head.partition('mcp-session-id: ')[2].partition(chr(13))[0]}\r\n"
            self._answer(self._request({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        self._call = self._request({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})

    def call(self) -> None:
        """Call the tool."""
        assert b"said" in self._answer(self._call)[1]

    def _request(self, message: dict[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        return f"POST /mcp HTTP/1.1\r\n{self._headers}content-length: {len(body)}\r\n\r\n".encode() + body

    def _answer(self, request: bytes) -> tuple[str, bytes]:
        self._socket.sendall(request)
        came = b""
        while b"\r\n\r\n" not in came:
            came += self._received()
        head, _, body = came.partition(b"\r\n\r\n")
        text = head.decode().lower()
        assert text.startswith(("http/1.1 200", "http/1.1 202")), came
        length = int(text.partition("content-length: ")[2].partition("\r")[0] or 0)
        while len(body) < length:
            body += self._received()
        return head.decode(), body

    def _received(self) -> bytes:
        piece = self._socket.recv(1 << 16)
        assert piece, "the hub closed the connection"
        return piece

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class HttpServer(socketserver.ThreadingTCPServer):
    """A server in threads. Each answer is one write, so that it comes in one piece."""

    daemon_threads = True

    def __init__(self, era: Era) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.answers = Answers(eras=era)


class _Answering(socketserver.StreamRequestHandler):
    server: HttpServer
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while first := self.rfile.readline():
            length = 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            body = self.rfile.read(length)
            found = b"".join(self.server.answers.to(json.loads(body))) if first.startswith(b"POST") else b""
            status = b"200 OK" if found else b"202 Accepted" if body else b"405 Method Not Allowed"
            head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(found))
            self.connection.sendall(head + found)


async def _turns(ports: dict[Era, int], others: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Turns]:
    """What a call takes with each server behind, by a client of the same era."""
    off = {"url": "http://127.0.0.1:9/mcp", "enabled": False}
    servers: dict[str, Any] = {f"off-{number}": off for number in range(others)}
    for era, port in ports.items():
        command, *args = stdio_server("--eras", era)
        servers[f"http-{era}"] = {"url": f"http://127.0.0.1:{port}/mcp"}
        servers[f"stdio-{era}"] = {"command": command, "args": args}

    def work(base: str, server: str, era: Era) -> Turns:
        with closing(Client(base, era, f"{server}__echo")) as client:
            client.call()
            return counts.of_each(client.call)

    async with front(servers) as served:
        with monkeypatch.context() as patched:
            counts = Counts(patched)
            return {
                f"{behind}-{era}": await anyio.to_thread.run_sync(work, served.base, f"{behind}-{era}", era)
                for era in ports
                for behind in MOST
            }


async def test_a_call_takes_few_turns_of_the_event_loop_and_as_many_with_many_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        servers: dict[Era, HttpServer] = {era: stack.enter_context(HttpServer(era)) for era in VERSIONS}
        for server in servers.values():
            stack.enter_context(in_a_thread(server))
        ports = {era: server.server_address[1] for era, server in servers.items()}
        few, many = await _turns(ports, 0, monkeypatch), await _turns(ports, MANY, monkeypatch)
    for name, took in few.items():  # over stdio an answer may come in one piece more: that is one step
        assert abs(took.steps - many[name].steps) <= 1, (name, few, many)
    for name, took in (*few.items(), *many.items()):
        most = MOST[name.partition("-")[0]]
        assert (took.turns <= most.turns, took.steps <= most.steps) == (True, True), (name, took)
