"""A modern server that runs tools as tasks, as the extension ``io.modelcontextprotocol/tasks`` says."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = ["EXTENSION", "ModernTasks"]

EXTENSION = "io.modelcontextprotocol/tasks"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_OWN_ID = "task 1/ä"
_LINK = {"type": "resource_link", "name": "it", "uri": "note://one"}


class ModernTasks:
    """Answers a call with a task if the client declares the extension, else at once. Records what came."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any], str | None]] = []
        self.app = Starlette(routes=[Route("/mcp", self._post, methods=["POST"])])

    def methods(self) -> list[str]:
        return [method for method, _, _ in self.seen if method.startswith("t") and method != "tools/list"]

    async def _post(self, request: Request) -> Response:
        message = await request.json()
        method, params = message["method"], message.get("params") or {}
        self.seen.append((method, params, request.headers.get("mcp-name")))
        answer = self._answer(method, params)
        body = {"jsonrpc": "2.0", "id": message.get("id")}
        if answer is None:
            return JSONResponse({**body, "error": {"code": -32601, "message": "Method not found"}}, status_code=404)
        return JSONResponse({**body, "result": {"resultType": "complete", **answer}})

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        cached = {"ttlMs": 0, "cacheScope": "private"}
        task = {"taskId": _OWN_ID, "createdAt": "2026-08-01T00:00:00Z", "lastUpdatedAt": "2026-08-01T00:00:00Z"}
        match method:
            case "server/discover":
                can: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
                return {"supportedVersions": ["2026-07-28"], "capabilities": can, **cached}
            case "tools/list":
                return {"tools": [{"name": "long", "inputSchema": {"type": "object"}}], **cached}
            case "tools/call":
                if EXTENSION in (params["_meta"][_CAPABILITIES].get("extensions") or {}):
                    return {"resultType": "task", "status": "working", "ttlMs": None, **task}
                return {"content": [{"type": "text", "text": "at once"}]}
            case "tasks/get" if params.get("taskId") == _OWN_ID:
                result = {"content": [{"type": "text", "text": "in the end"}, _LINK]}
                return {"status": "completed", "ttlMs": None, **task, "result": result}
            case "tasks/cancel" | "tasks/update" if params.get("taskId") == _OWN_ID:
                return {}
        return None
