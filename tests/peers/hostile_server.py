"""A server over stdio that greets and lists as it should, and answers every call in a way that it should not.

``python -m tests.peers.hostile_server``; the tool ``poke`` is told which way by its argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["WAYS", "main"]

# Well over what one message may have.
_HUGE = 96 << 20
_FLOOD = 3_000


def _result(request: dict[str, Any], **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def _good(request: dict[str, Any]) -> dict[str, Any]:
    return _result(request, content=[{"type": "text", "text": "poked"}])


def _say(message: object) -> None:
    _write(json.dumps(message).encode())


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _flood(method: str, **params: Any) -> Callable[[dict[str, Any]], None]:
    def flood(request: dict[str, Any]) -> None:
        for _ in range(_FLOOD):
            _say({"jsonrpc": "2.0", "method": method, "params": params})
        _say(_good(request))

    return flood


def _first(*lines: bytes) -> Callable[[dict[str, Any]], None]:
    def then_good(request: dict[str, Any]) -> None:
        for line in lines:
            _write(line)
        _say(_good(request))

    return then_good


def _with(**result: Any) -> Callable[[dict[str, Any]], None]:
    return lambda request: _say(_result(request, **result))


def _instead(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda request: _say({"jsonrpc": "2.0", "id": request["id"], **members})


def _twice(request: dict[str, Any]) -> None:
    _say(_good(request))
    _say(_good(request))


def _for_another(request: dict[str, Any]) -> None:
    _say(_good(request | {"id": 987654321}))
    _say(_good(request | {"id": "no such call"}))
    _say(_good(request | {"id": None}))
    _say(_good(request))


def _asking(method: str, **params: Any) -> Callable[[dict[str, Any]], None]:
    def ask(request: dict[str, Any]) -> None:
        _say({"jsonrpc": "2.0", "id": "mine", "method": method, "params": params})
        _say(_good(request))

    return ask


def _huge(request: dict[str, Any]) -> None:
    _write(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * _HUGE + b'"}}')
    _say(_good(request))


def _exit(request: dict[str, Any]) -> None:
    sys.exit(3)


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "properly": lambda request: _say(_good(request)),
    "after-a-broken-line": _first(b"{", b"\xff\xfe", b"", b"not json", b"null", b"[]", b"{}"),
    "after-a-deep-line": _first(b"[" * 50_000, b'{"a":' * 50_000),
    "with-no-content": _with(),
    "with-content-of-no-kind": _with(content=[{"type": "nonsense"}]),
    "with-content-that-is-none": _with(content=5),
    "with-a-number-for-a-result": _instead(result=5),
    "with-neither-result-nor-error": _instead(),
    "with-result-and-error": _instead(result={}, error={"code": 1, "message": "both"}),
    "with-an-error-that-is-none": _instead(error="no"),
    "with-an-odd-error": _instead(error={"code": "x", "message": 5}),
    "with-an-error-full-of-data": _instead(error={"code": -32000, "message": "m" * 100_000, "data": ["d"] * 1000}),
    "twice": _twice,
    "for-another-call": _for_another,
    "asking-for-the-unknown": _asking("foo/bar"),
    "asking-without-leave": _asking("sampling/createMessage", messages=[], maxTokens=1),
    "asking-wrongly": _asking("elicitation/create", message=5),
    "after-a-flood-of-logs": _flood("notifications/message", level="info", data="flood"),
    "after-a-flood-of-changes": _flood("notifications/tools/list_changed"),
    "after-a-flood-of-progress": _flood("notifications/progress", progressToken="nobody's", progress=1),
    "after-a-flood-of-nonsense": _flood("notifications/nonsense", x=1),
    "with-a-huge-line": _huge,
    "never": lambda request: None,
    "by-exiting": _exit,
}


def main() -> None:
    """Serve until the pipe closes."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" in request and "method" in request:
            _answer(request)


def _answer(request: dict[str, Any]) -> None:
    match request["method"]:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}}
            info = {"name": "hostile", "version": "1"}
            _say(_result(request, protocolVersion="2025-11-25", capabilities=capabilities, serverInfo=info))
        case "tools/list":
            schema = {"type": "object", "properties": {"way": {"type": "string"}}}
            _say(_result(request, tools=[{"name": "poke", "description": "Pokes", "inputSchema": schema}]))
        case "tools/call":
            WAYS[request["params"]["arguments"]["way"]](request)
        case "ping" | "logging/setLevel":
            _say(_result(request))
        case _:
            _say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
