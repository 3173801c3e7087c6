"""A legacy stdio server by hand that times its messages: ``python -m tests.peers.late_server``.

The tool ``remember`` keeps a text. The tool ``speak``, called by any client, logs the kept text, reports progress of
the earlier call and sends a sampling request with the text, all after the answer to ``speak`` is out; ``heard`` returns
what the sampling request was answered.
With ``at_ping``, the name of a request, ``remember`` has the same happen after the next ping, with no call in flight.
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
        self.at_ping = ""

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
                if message["method"] == "ping" and self.at_ping:
                    self._speak_late(self.at_ping)
            case str() if "id" in message:
                _send(id=message["id"], error={"code": -32601, "message": "unknown"})

    def _call(self, request: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments") or {}
        if params["name"] == "remember":
            self.kept = arguments["text"]
            self.token = params.get("_meta", {}).get("progressToken")
            self.at_ping = arguments.get("at_ping", "")
            _result(request, "kept")
        elif params["name"] == "heard":
            _result(request, self.answer)
        elif params["name"] == "narrate":
            _narrate(request)
        else:
            _result(request, "spoken")
            self._speak_late("sampling/createMessage")

    def _speak_late(self, question: str) -> None:
        """What belongs to the earlier call: a log, progress, and a question."""
        _send(method="notifications/message", params={"level": "error", "data": self.kept})
        if self.token is not None:
            late = {"progressToken": self.token, "progress": 1, "message": self.kept}
            _send(method="notifications/progress", params=late)
        messages = [{"role": "user", "content": {"type": "text", "text": self.kept}}]
        params: dict[str, dict[str, Any]] = {
            "sampling/createMessage": {"messages": messages, "maxTokens": 9},
            "elicitation/create": {"message": self.kept, "requestedSchema": {"type": "object", "properties": {}}},
            "roots/list": {},
        }
        _send(id="late", method=question, params=params[question])


def main() -> None:
    server = Server()
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
