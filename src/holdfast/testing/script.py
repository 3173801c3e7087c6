"""The messages of a scripted server, in either protocol era; as a program it serves them over stdio.

It uses the standard library alone and does not import Holdfast: the program is started by its path, without site
packages, so that a test's child starts fast. It reads its script from a file at each message, so that a test can
change the script while it runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from enum import Enum

TYPE_CHECKING = False  # importing typing takes a large part of the child's start time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal, TypeAlias

    Message: TypeAlias = dict[str, Any]
    Era: TypeAlias = Literal["legacy", "modern"]

__all__ = ["LIST_CHANGED", "Fault", "encoded", "failure", "filled", "initialized", "listed", "said", "success"]

LEGACY_VERSION = "2025-11-25"
MODERN_VERSION = "2026-07-28"
LIST_CHANGED = "notifications/tools/list_changed"

LARGEST_LOG = 16 << 20
"""Bytes after which messages are not noted any more: the servers of the demo may run for weeks."""

_INFO = {"name": "scripted", "version": "1"}
_CAN = {"tools": {"listChanged": True}}


class Fault(Enum):
    """How a scripted server fails."""

    REFUSE = "refuse"
    """Nothing listens; a process exits as soon as it is started. Open connections are cut."""
    HANG = "hang"
    """Requests are read and not answered, until the server is healed."""
    DIE = "die"
    """The connection ends, or the process exits, instead of an answer."""
    DENY = "deny"
    """Every request is refused with 403; for HTTP only."""
    BUSY = "busy"
    """Every request is answered with 503, as by a server that warms up; for HTTP only."""


def said(message: Message, *, era: Era, tools: Mapping[str, Any]) -> Message | None:
    """The answer to a message; None for a notification."""
    method = message.get("method")
    if "id" not in message:
        return None
    if method == "initialize" and era == "legacy":
        return initialized(message)
    if method == "server/discover" and era == "modern":
        return success(message, {"supportedVersions": [MODERN_VERSION], "capabilities": _CAN, **_of(era, cached=True)})
    if method == "tools/list":
        return listed(message, era=era, tools=tools)
    if method == "tools/call":
        return called(message, era=era, tools=tools)
    if method == "ping" and era == "legacy":
        return success(message, {})
    return failure(message, -32601, "Method not found")


def initialized(message: Message) -> Message:
    """The answer to ``initialize``."""
    return success(message, {"protocolVersion": LEGACY_VERSION, "capabilities": _CAN, "serverInfo": _INFO})


def listed(message: Message, *, era: Era, tools: Mapping[str, object]) -> Message:
    """The answer to ``tools/list``."""
    return success(message, {"tools": [_shown(*one) for one in tools.items()], **_of(era, cached=True)})


def _shown(name: str, tool: object) -> Message:
    """How a tool is listed. One that is an object says its ``description`` and its ``inputs``, texts by their names."""
    given = tool if isinstance(tool, dict) else {}
    inputs = {one: {"type": "string", "description": words} for one, words in given.get("inputs", {}).items()}
    schema = {"type": "object", "properties": inputs, **({"required": list(inputs)} if inputs else {})}
    return {"name": name, "description": given.get("description", f"The scripted tool {name}."), "inputSchema": schema}


def filled(tool: str | Message, arguments: Message) -> str:
    """The result of a tool: its text. In that of an object ``{name}`` stands for an argument.

    Raises ValueError for an argument that is required and missing.
    """
    if isinstance(tool, str):
        return tool
    text = str(tool["text"])
    for name in tool.get("inputs", {}):
        if name not in arguments:
            raise ValueError(f"the argument `{name}` is missing")
    for name, value in arguments.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def called(message: Message, *, era: Era, tools: Mapping[str, Any]) -> Message:
    """The answer to ``tools/call``."""
    params = message["params"]
    if params["name"] not in tools:
        return failure(message, -32602, f"Unknown tool: {params['name']}")
    try:
        return answered(message, filled(tools[params["name"]], params.get("arguments") or {}), era=era)
    except ValueError as exc:
        return answered(message, f"ValueError: {exc}", era=era, is_error=True)


def answered(message: Message, text: str, *, era: Era, is_error: bool = False) -> Message:
    """The result of a tool."""
    return success(message, {"content": [{"type": "text", "text": text}], "isError": is_error, **_of(era)})


def success(message: Message, result: Message) -> Message:
    """An answer with a result."""
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def failure(message: Message, code: int, text: str) -> Message:
    """An answer with a JSON-RPC error."""
    return {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": text}}


def encoded(message: Message) -> bytes:
    """A message in one line."""
    return json.dumps(message, separators=(",", ":")).encode()


def notice(method: str) -> Message:
    """A notification."""
    return {"jsonrpc": "2.0", "method": method, "params": {}}


def _of(era: Era, *, cached: bool = False) -> Message:
    """The fields that the modern era requires in each result."""
    if era == "legacy":
        return {}
    return {"resultType": "complete", **({"ttlMs": 0, "cacheScope": "private"} if cached else {})}


class _Child:
    """The scripted server in a process of its own."""

    def __init__(self, script: str, log: str) -> None:
        self._script = script
        self._log = log

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: _write(notice(LIST_CHANGED)))
        self._note(f"start {os.getpid()}")
        if self._read()["fault"] == Fault.REFUSE.value:
            sys.exit("this scripted server refuses to start")
        for line in sys.stdin.buffer:
            self._take(json.loads(line))

    def _take(self, message: Message) -> None:
        script = self._read()
        self._note(f"asked {message.get('method')}")
        if script["fault"] == Fault.DIE.value:
            sys.exit("this scripted server exits on command")
        if script["fault"] != Fault.HANG.value:
            answer = said(message, era=script["era"], tools=script["tools"])
            if answer is not None:
                _write(answer)

    def _read(self) -> Message:
        with open(self._script, encoding="utf-8") as script:  # noqa: PTH123 - pathlib doubles the starting time
            read: Message = json.load(script)
        return read

    def _note(self, line: str) -> None:
        target = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if line.startswith("start") or os.fstat(target).st_size < LARGEST_LOG:
            os.write(target, f"{line}\n".encode())
        os.close(target)


def _write(message: Message) -> None:
    """Without Python's buffers, which are not reentrant for a signal handler."""
    left = encoded(message) + b"\n"
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    _Child(sys.argv[1], sys.argv[2]).run()
