"""Messages that no client should send: broken, wrong and hostile JSON-RPC, the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

__all__ = ["Garbage", "headers_of"]

_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_METHODS = (
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "tools/call",
    "prompts/get",
    "prompts/list",
    "resources/read",
    "resources/list",
    "resources/subscribe",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "unknown/method",
    "",
)
_PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"name": "test_echo", "arguments": {"words": "x"}},
    {"name": "test_simple_prompt"},
    {"uri": "test://static-text"},
    {"requestId": 1, "reason": "because"},
    {"progressToken": 1, "progress": 1},
    {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}},
    {"level": "info"},
    {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}},
    {"name": "test_input_required_result_elicitation", "inputResponses": {"user_name": {}}, "requestState": "forged"},
    {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["test://static-text"]}},
)
_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 70,
    1e308,
    "",
    "x" * 5000,
    "\x00",
    "\ud800",
    "../../etc/passwd",
    [],
    [[]],
    {},
    {"__proto__": {}},
    {"$ref": "#"},
)
_RAW: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"true",
    b"0",
    b'"text"',
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    b"{}",
    b"NaN",
    b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
    b"[" * 20_000,
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]' * 3,
    b"GET / HTTP/1.1\r\n\r\n",
)


class Garbage:
    """An endless supply; ``next`` gives bytes that are one message, or should have been."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def next(self) -> bytes:
        """One more."""
        kind = self._chance.random()
        if kind < 0.2:
            return self._chance.choice(_RAW)
        message = self._request()
        for _ in range(self._chance.randint(0, 3)):
            self._spoil(message)
        body = json.dumps(message).encode()
        return self._cut(body) if kind < 0.35 else body

    def choice(self, *options: Any) -> Any:
        """One of them."""
        return self._chance.choice(options)

    def _request(self) -> dict[str, Any]:
        params = copy.deepcopy(self._chance.choice(_PARAMS))
        if self._chance.random() < 0.6:
            params["_meta"] = copy.deepcopy(_META)
        return {
            "jsonrpc": "2.0",
            "id": self._chance.randint(1, 1000),
            "method": self._chance.choice(_METHODS),
            "params": params,
        }

    def _spoil(self, message: dict[str, Any]) -> None:
        """Take something away from the message, or put something odd into it, at any depth."""
        place: dict[str, Any] = message
        while nested := [value for value in place.values() if isinstance(value, dict) and value]:
            if self._chance.random() < 0.4:
                break
            place = self._chance.choice(nested)
        key = self._chance.choice([*place, "result", "error", "extra"])
        if self._chance.random() < 0.3:
            place.pop(key, None)
        else:
            place[key] = copy.deepcopy(self._chance.choice(_ODD))

    def _cut(self, body: bytes) -> bytes:
        """End it early, or change a byte of it."""
        place = self._chance.randrange(len(body))
        if self._chance.random() < 0.5:
            return body[:place]
        return body[:place] + bytes([self._chance.randrange(256)]) + body[place + 1 :]


def headers_of(body: bytes) -> tuple[str, str]:
    """The method and the name that a client of the modern era repeats in its headers; empty if there is none."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(message, dict):
        return "", ""
    params = message.get("params")
    given = params if isinstance(params, dict) else {}
    return _header(message.get("method")), _header(given.get("name") or given.get("uri"))


def _header(value: object) -> str:
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else ""
