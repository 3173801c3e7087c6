"""A legacy stdio server by hand that times its messages: ``python -m tests.front.late_server``.

The tool ``remember`` keeps a text. The tool ``speak``, called by any client, logs the kept text, reports progress of
the earlier call and sends a sampling request with the text, all after the answer to ``speak`` is out; ``heard`` returns
what the sampling request was answered.
The tool ``narrate`` writes its logs and its answer in one piece.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = ("remember", "speak", "heard", "narrate")
NARRATED = 20


def _send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _result(request: Any, text: str) -> None:
    _send(id=request, result={"content": [{"type": "text", "text": text}]})


def _narrate(request: Any) -> None:
    logs = [{"method": "notifications/message", "params": {"level": "error", "data": n}} for n in range(NARRATED)]
    answer = {"id": request, "result": {"content": [{"type": "text", "text": "narrated"}]}}
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in (*logs, answer)))
    sys.stdout.flush()


class Server:
    """One connection."""

    def __init__(self) -> None:
        self.kept = ""
        self.token: Any = None
        self.answer = "nothing"

    def take(self, message: dict[str, Any]) -> None:
        if message.get("id") == "late":
            self.answer = json.dumps(message.get("result") or message.get("error"))
        match message.get("method"):
            case "initialize":
                info = {"name": "late", "version": "1"}
                capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
                version = message["params"]["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
                _send(id=message["id"], result=result)
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
                _send(id=message["id"], result={"tools": tools})
            case "tools/call":
                self._call(message["id"], message["params"])
            case "ping" | "logging/setLevel":
                _send(id=message["id"], result={})
            case str() if "id" in message:
                _send(id=message["id"], error={"code": -32601, "message": "unknown"})

    def _call(self, request: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments") or {}
        if params["name"] == "remember":
            self.kept = arguments["text"]
            self.token = params.get("_meta", {}).get("progressToken")
            _result(request, "kept")
        elif params["name"] == "heard":
            _result(request, self.answer)
        elif params["name"] == "narrate":
            _narrate(request)
        else:
            _result(request, "spoken")
            _send(method="notifications/message", params={"level": "error", "data": self.kept})
            if self.token is not None:
                late = {"progressToken": self.token, "progress": 1, "message": self.kept}
                _send(method="notifications/progress", params=late)
            content = {"type": "text", "text": self.kept}
            messages = [{"role": "user", "content": content}]
            _send(id="late", method="sampling/createMessage", params={"messages": messages, "maxTokens": 9})


def main() -> None:
    server = Server()
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
