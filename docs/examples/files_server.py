"""A small MCP server that needs nothing but Python: it reads files and counts words, over stdio."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOOLS = [
    {
        "name": "read_file",
        "description": "Give back the text of a file",
        "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "word_count",
        "description": "Count the words of a text",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": {"readOnlyHint": True},
    },
]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a tool; a failure of its own is a result that says so."""
    try:
        text = Path(arguments["path"]).read_text() if name == "read_file" else str(len(str(arguments["text"]).split()))
    except (OSError, KeyError, UnicodeDecodeError) as exc:
        return {"content": [{"type": "text", "text": f"{type(exc).__name__}: {exc}"}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request, or None if there is no such method."""
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "files", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call" if params.get("name") in {tool["name"] for tool in TOOLS}:
            return call(params["name"], params.get("arguments") or {})
        case _:
            return None


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": f"no such method: {message['method']}"}
        else:
            reply["result"] = result
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
