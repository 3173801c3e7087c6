"""A server over stdio whose next answer is in a file: ``python -m tests.peers.heavy_server FOLDER``.

``FOLDER/METHOD`` (with ``.`` for ``/``) holds the bytes of the result, or of whole lines where it begins with ``!``:
``@ID@`` stands for the request's id. Without such a file the answer is an ordinary one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "main"]

ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "resources": {}, "logging": {}},
        "serverInfo": {"name": "heavy", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "poke", "description": "Pokes", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "ask"}]},
    "resources/list": {"resources": [{"uri": "file:///a", "name": "a"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "tools/call": {"content": [{"type": "text", "text": "poked"}]},
    "prompts/get": {"messages": []},
    "resources/read": {"contents": []},
    "ping": {},
    "logging/setLevel": {},
}


def main(folder: Path) -> None:
    """Serve until the pipe closes."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        request_id, method = json.dumps(request["id"]).encode(), request["method"]
        stored = folder / method.replace("/", ".")
        stderr = folder / f"{method.replace('/', '.')}.stderr"
        if stderr.exists():
            sys.stderr.buffer.write(stderr.read_bytes())
            sys.stderr.buffer.flush()
        if stored.exists():
            data = stored.read_bytes()
            if data.startswith(b"!"):
                out.write(data[1:].replace(b"@ID@", request_id) + b"\n")
            else:
                out.write(b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + data + b"}\n")
        elif method in ANSWERS:
            result = json.dumps(ANSWERS[method]).encode()
            out.write(b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + result + b"}\n")
        else:
            error = b'{"code":-32601,"message":"Method not found"}'
            out.write(b'{"jsonrpc":"2.0","id":' + request_id + b',"error":' + error + b"}\n")
        out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
