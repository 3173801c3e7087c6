"""Inputs at the limits, for every way into the hub: what a client may send, and what a server may answer.

Everything here blocks: it runs in a thread, so that the event loop under test does the hub's work alone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENTRIES", "QUICK_SIZE", "SHAPES", "SIZE", "Attack", "Target", "attacks", "call_message", "modern_call"]

SIZE = 15 << 20
"""A little less than the largest message."""

QUICK_SIZE = 6 << 20
"""Enough to see what grows with the size; the long search uses the limit itself."""


def _times(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


SHAPES: dict[str, Callable[[int], bytes]] = {
    "text": lambda size: b'"' + b"x" * size + b'"',
    "other letters": lambda size: b'"' + _times("é😀".encode(), size) + b'"',
    "line ends in a text": lambda size: b'"' + _times(b"\\n", size) + b'"',
    "escapes": lambda size: b'"' + _times(b"\\u0041", size) + b'"',
    "surrogates": lambda size: b'"' + _times(b"\\ud83d\\ude00", size) + b'"',
    "halves of surrogates": lambda size: b'"' + _times(b"\\ud83d", size) + b'"',
    "quotes": lambda size: b'"' + _times(b'\\"', size) + b'"',
    "words like secrets": lambda size: b'"' + _times(b"token=a Bearer abcdefgh ://u:p@h eyJ ", size) + b'"',
    "small lists": lambda size: b"[" + _times(b"[],", size) + b"1]",
    "numbers": lambda size: b"[" + _times(b"1,", size) + b"1]",
    "small objects": lambda size: b"[" + _times(b'{"a":1},', size) + b"1]",
    "members": lambda size: b"{" + b",".join(b'"%d":1' % number for number in range(size // 11)) + b"}",
    "digits": lambda size: b"1" * size,
    "depth": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "line ends": lambda size: b"[" + b"\n" * size + b"]",
    "links": lambda size: b"[" + _times(b'{"type":"resource_link","uri":"x:a","name":"n"},', size) + b"1]",
}


@dataclass
class Target:
    """A served hub with the server ``heavy``, and the folder with that server's answers."""

    base: str
    folder: Path
    session: str = ""

    def post(self, body: bytes, **headers: str) -> bytes:
        """Send a message; the whole answer."""
        host, port = self.base.removeprefix("http://").split(":")
        given = {
            "host": "127.0.0.1",
            "connection": "close",
            "content-length": str(len(body)),
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if self.session and "mcp-protocol-version" not in given:
            given["mcp-session-id"] = self.session
        head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items()) + "\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode() + body)
            answer = b""
            while piece := connection.recv(1 << 20):
                answer = answer[:4096] + piece
        return answer

    def greet(self) -> None:
        """Open a session."""
        head = self.post(_GREETING).partition(b"\r\n\r\n")[0].decode()
        lines = [line.partition(": ") for line in head.split("\r\n")]
        self.session = next(value for name, _, value in lines if name.lower() == "mcp-session-id")
        assert b"poked" in self.post(call_message(b"{}"))

    def answered(self, method: str, data: bytes, *, stderr: bytes = b"") -> bytes:
        """Call the server's tool while it has this answer in store."""
        stored = self.folder / method.replace("/", ".")
        stored.write_bytes(data)
        errors = self.folder / f"{stored.name}.stderr"
        if stderr:
            errors.write_bytes(stderr)
        try:
            return self.post(call_message(b"{}"))
        finally:
            stored.unlink()
            errors.unlink(missing_ok=True)


_GREETING = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{"sampling":{},"elicitation":{},"roots":{}},"clientInfo":{"name":"a","version":"1"}}}'
)
_ENVELOPE = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientInfo":{"name":"a","version":"1"},'
    b'"io.modelcontextprotocol/clientCapabilities":{}}'
)


def call_message(arguments: bytes, *, name: bytes = b'"heavy__poke"', more: bytes = b"") -> bytes:
    """A call of a tool."""
    params = b'{"name":' + name + b',"arguments":' + arguments + more + b"}"
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}"


def _modern(target: Target, body: bytes) -> bytes:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "heavy__poke"}
    return target.post(body, **headers)


def _asks(method: bytes, name: bytes) -> Callable[[Target, bytes], bytes]:
    """A request of the client with one parameter of foreign size."""
    head = b'{"jsonrpc":"2.0","id":1,"method":"' + method + b'","params":{"' + name + b'":'
    return lambda target, data: target.post(head + data + b"}}")


def modern_call(data: bytes, *, of: bytes = b"arguments") -> bytes:
    """A call of the modern era with one member of foreign size."""
    if of == b"arguments":
        return call_message(b'{"a":' + data + b"}", more=b"," + _ENVELOPE)
    if of == b"name":
        return call_message(b"{}", name=data, more=b"," + _ENVELOPE)
    if of == b"_meta":
        return call_message(b"{}", more=b"," + _ENVELOPE[:-1] + b',"a":' + data + b"}")
    return call_message(b"{}", more=b"," + _ENVELOPE + b',"' + of + b'":' + data)


def _client(make: Callable[[bytes], bytes]) -> Callable[[Target, bytes], bytes]:
    return lambda target, data: target.post(make(data))


def _result(start: bytes, end: bytes) -> Callable[[Target, bytes], bytes]:
    return lambda target, data: target.answered("tools/call", start + data + end)


def _before_result(method: bytes, params: bytes, *, request: bool = False) -> Callable[[Target, bytes], bytes]:
    """A message of the server's own, and then its answer."""
    asked = b'"id":"q",' if request else b""

    def send(target: Target, data: bytes) -> bytes:
        message = b'!{"jsonrpc":"2.0",' + asked + b'"method":"' + method + b'","params":' + params + data + b"}}"
        return target.answered("tools/call", message + b'\n{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}')

    return send


ENTRIES: dict[str, Callable[[Target, bytes], bytes]] = {
    "the arguments of a call": _client(lambda data: call_message(b'{"a":' + data + b"}")),
    "the arguments of a modern call": lambda target, data: _modern(target, modern_call(data)),
    "the state of a modern call": lambda target, data: _modern(target, modern_call(data, of=b"requestState")),
    "the answers in a modern call": lambda target, data: _modern(target, modern_call(data, of=b"inputResponses")),
    "the name of a tool": _client(lambda data: call_message(b"{}", name=data)),
    "a parameter of a call": _client(lambda data: call_message(b"{}", more=b',"x":' + data)),
    "the _meta of a call": _client(lambda data: call_message(b"{}", more=b',"_meta":{"a":' + data + b"}")),
    "the envelope of a request": _client(lambda data: b'{"jsonrpc":"2.0","id":1,"method":"ping","x":' + data + b"}"),
    "the id of a request": _client(lambda data: b'{"jsonrpc":"2.0","method":"ping","id":' + data + b"}"),
    "the method of a request": _client(lambda data: b'{"jsonrpc":"2.0","id":1,"method":' + data + b"}"),
    "a greeting": _client(
        lambda data: _GREETING.replace(b'"sampling":{}', b'"sampling":{},"experimental":{"a":' + data + b"}")
    ),
    "an answer of a client": _client(lambda data: b'{"jsonrpc":"2.0","id":1,"result":' + data + b"}"),
    "a refusal of a client": _client(lambda data: b'{"jsonrpc":"2.0","id":1,"error":' + data + b"}"),
    "the arguments of a prompt": _client(
        lambda data: (
            b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"heavy__ask","arguments":{"a":'
            + data
            + b"}}}"
        )
    ),
    "the address of a resource": _client(
        lambda data: b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":' + data + b"}}"
    ),
    "the level of logs": _asks(b"logging/setLevel", b"level"),
    "a completion": _asks(b"completion/complete", b"argument"),
    "a subscription": _asks(b"resources/subscribe", b"uri"),
    "the id of a task": _asks(b"tasks/get", b"taskId"),
    "the arguments of the status tool": _client(
        lambda data: call_message(b'{"server":' + data + b"}", name=b'"holdfast_status"')
    ),
    "a change of roots": _client(
        lambda data: b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"a":' + data + b"}}"
    ),
    "a notification of a client": _client(
        lambda data: b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":' + data + b"}}"
    ),
    "a message that is no JSON": _client(lambda data: b"{" + data),
    "the text of a result": _result(b'{"content":[{"type":"text","text":', b"}]}"),
    "the blocks of a result": _result(b'{"content":', b"}"),
    "the values of a result": _result(b'{"content":[],"structuredContent":', b"}"),
    "the _meta of a result": _result(b'{"content":[],"_meta":{"a":', b"}}"),
    "a member of a result": _result(b'{"content":[],"x":', b"}"),
    "a result itself": _result(b"", b""),
    "the message of an error": _result(b'!{"jsonrpc":"2.0","id":@ID@,"error":{"code":-1,"message":', b"}}"),
    "the data of an error": _result(b'!{"jsonrpc":"2.0","id":@ID@,"error":{"code":-1,"message":"m","data":', b"}}"),
    "the envelope of an answer": _result(b'!{"jsonrpc":"2.0","id":@ID@,"x":', b',"result":{"content":[]}}'),
    "a log message": _before_result(b"notifications/message", b'{"level":"info","data":'),
    "progress": _before_result(b"notifications/progress", b'{"progressToken":@ID@,"progress":1,"message":'),
    "a change": _before_result(b"notifications/tools/list_changed", b'{"a":'),
    "an update": _before_result(b"notifications/resources/updated", b'{"uri":'),
    "a question for a model": _before_result(b"sampling/createMessage", b'{"maxTokens":1,"messages":', request=True),
    "a question for a person": _before_result(b"elicitation/create", b'{"message":', request=True),
    "a question that is unknown": _before_result(b"foo/bar", b'{"a":', request=True),
    "short lines of noise": lambda target, data: target.answered(
        "tools/call",
        b"!" + b"x\n" * min(len(data) // 2, 20_000) + b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}',
    ),
    "noise": _result(b"!", b'\n{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}'),
}
"""By what an input is a part of: how it is sent."""


@dataclass(frozen=True)
class Attack:
    """One input at one entry."""

    entry: str
    shape: str
    size: int = SIZE

    def __str__(self) -> str:
        return f"{self.size >> 10} KiB of {self.shape} in {self.entry}"

    def run(self, target: Target) -> bytes:
        """Send it; returns what came back."""
        return ENTRIES[self.entry](target, SHAPES[self.shape](self.size))


def attacks(*, every: bool) -> Iterator[Attack]:
    """Every shape at every entry, or each entry with one shape and each shape at one entry at least."""
    shapes = [*SHAPES]
    for number, entry in enumerate(ENTRIES):
        for shape in shapes if every else (shapes[number % len(shapes)],):
            yield Attack(entry, shape, SIZE if every else QUICK_SIZE)
