"""What a small MCP server says, without any transport: a message goes in, the answer comes out.

The peers over HTTP, SSE and stdio all speak through this, so that a tool behaves alike on each.
Standard library only, and little of it: the stdio peer imports this and must start in a moment.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing's own would import typing: a quarter of the stdio peer's starting time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    Message: TypeAlias = dict[str, Any]
    Era: TypeAlias = Literal["legacy", "modern", "both"]
    ListFault: TypeAlias = Literal["error", "misfit", "repeating_cursor", "endless_cursors"]
    Offered: TypeAlias = "dict[str, Callable[[Mind, Message], Message]]"
    HandshakeFault: TypeAlias = Literal["error", "misfit", "version"]

__all__ = [
    "BUILT_IN",
    "HANDSHAKE_VERSIONS",
    "MODERN_VERSION",
    "Mind",
    "encode",
    "failure",
    "success",
]

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
BUILT_IN = ("echo", "add", "fail", "slow", "progress")

_META = "io.modelcontextprotocol/"
_METHOD_NOT_FOUND = -32601
_INVALID_PARAMS = -32602
_INTERNAL = -32603
_UNSUPPORTED_VERSION = -32022


class Mind:
    """The knowledge and manners of one server; holds no connection and no session."""

    def __init__(
        self,
        *,
        era: Era = "legacy",
        tools: int = len(BUILT_IN),
        extra_tools: tuple[str, ...] = (),
        page_size: int | None = None,
        instructions: str | None = None,
        version: str = HANDSHAKE_VERSIONS[-1],
        initialize_code: int = _UNSUPPORTED_VERSION,
        list_fault: ListFault | None = None,
        handshake_fault: HandshakeFault | None = None,
        oversized: int = 0,
        offers: bool = False,
        hints: Message | None = None,
    ) -> None:
        self.era = era
        self.names = [*BUILT_IN[:tools], *(f"tool_{n:05}" for n in range(len(BUILT_IN), tools)), *extra_tools]
        self.page_size = page_size
        self.instructions = instructions
        self.version = version
        self.initialize_code = initialize_code
        self.list_fault = list_fault
        self.handshake_fault = handshake_fault
        self.oversized = oversized
        self.offers = offers
        self.hints = hints or {}
        self.prompts = ["greet"]
        self.resources = ["note://1"]
        self.templates = ["note://{id}"]

    def answer(self, message: Message) -> Message | None:
        """The answer to a request; None for a notification, or for a tool call that takes its time.

        Calls of ``slow`` and ``progress`` are the transport's to answer: it alone can wait and
        send things in between (:meth:`progress` makes the notices, :meth:`called` the result).
        """
        if "id" not in message:
            return None
        method = message["method"]
        if method == "initialize":
            return self._initialize(message)
        if method == "server/discover":
            return self._discover(message)
        if (refusal := self._envelope_fault(message)) is not None:
            return refusal
        if method == "ping" and not self.is_modern(message):
            return success(message, {})
        if method == "tools/list":
            return self._list(message)
        if method == "tools/call":
            return None if _tool(message) in ("slow", "progress") else self.called(message)
        if self.offers and method in _OFFERED:
            return self._complete(message, _OFFERED[method](self, message), cacheable=True)
        return failure(message, _METHOD_NOT_FOUND, "Method not found")

    def called(self, message: Message) -> Message:
        """The result of a call to any tool."""
        name = _tool(message)
        if name not in self.names:
            return failure(message, _INVALID_PARAMS, f"Unknown tool: {name}")
        arguments = message["params"].get("arguments") or {}
        text = _result_text(name, arguments)
        result: Message = {"content": [{"type": "text", "text": text}], "isError": name == "fail"}
        return self._complete(message, result)

    def text_result(self, message: Message, text: str) -> Message:
        """A successful tool result with a text of the transport's own making."""
        return self._complete(message, {"content": [{"type": "text", "text": text}], "isError": False})

    def progress(self, message: Message) -> list[Message]:
        """The notifications that a call of ``progress`` sends before its result; none without a token."""
        total = int((message["params"].get("arguments") or {}).get("count", 3))
        return [notice for n in range(1, total + 1) for notice in self.step(message, n, total=total)]

    def step(self, message: Message, number: int, **more: int) -> list[Message]:
        """One notification of progress in a call; none without a token."""
        token = (message["params"].get("_meta") or {}).get("progressToken")
        if token is None:
            return []
        return [_notice("notifications/progress", {"progressToken": token, "progress": number, **more})]

    def is_modern(self, message: Message) -> bool:
        """Whether a request is of the modern era, which every one of its requests says for itself."""
        if self.era == "legacy":
            return False
        return self.era == "modern" or _META + "protocolVersion" in _meta(message)

    def _initialize(self, message: Message) -> Message:
        if self.era == "modern":
            return self._refuse_version(message, code=self.initialize_code)
        if self.handshake_fault == "error":
            return failure(message, _INTERNAL, "The database is on fire")
        if self.handshake_fault == "misfit":
            return success(message, {"protocolVersion": self.version})
        asked = message["params"].get("protocolVersion")
        older = asked in HANDSHAKE_VERSIONS and asked < self.version
        result = {
            "protocolVersion": asked if older else self.version,
            "capabilities": self._capabilities(),
            "serverInfo": {"name": "peer", "version": "1"},
        }
        if self.handshake_fault == "version":
            result["protocolVersion"] = "1999-01-01"
        return success(message, self._instructed(result))

    def _discover(self, message: Message) -> Message:
        if self.era == "legacy":
            return failure(message, _METHOD_NOT_FOUND, "Method not found")
        if (refusal := self._envelope_fault(message)) is not None:
            return refusal
        if self.handshake_fault == "error":
            return failure(message, _INTERNAL, "The database is on fire")
        if self.handshake_fault == "misfit":
            return self._complete(message, {"supportedVersions": "all of them"})
        versions = [MODERN_VERSION] if self.era == "modern" else [*HANDSHAKE_VERSIONS, MODERN_VERSION]
        result = {
            "supportedVersions": versions,
            "capabilities": self._capabilities(),
            "_meta": {_META + "serverInfo": {"name": "peer", "version": "1"}},
        }
        return self._complete(message, self._instructed(result), cacheable=True)

    def _capabilities(self) -> Message:
        kinds = ("tools", "prompts", "resources") if self.offers else ("tools",)
        return {kind: {"listChanged": True} for kind in kinds} | ({"completions": {}} if self.offers else {})

    def _envelope_fault(self, message: Message) -> Message | None:
        """The refusal of a modern request that does not say what each of them has to say."""
        if not self.is_modern(message):
            return None
        meta = _meta(message)
        missing = [key for key in ("protocolVersion", "clientCapabilities") if _META + key not in meta]
        if missing:
            return failure(message, _INVALID_PARAMS, f"_meta lacks {', '.join(missing)}")
        if self.handshake_fault == "version" or meta[_META + "protocolVersion"] != MODERN_VERSION:
            return self._refuse_version(message)
        return None

    def _refuse_version(self, message: Message, *, code: int = _UNSUPPORTED_VERSION) -> Message:
        if code == _METHOD_NOT_FOUND:
            return failure(message, code, "Method not found")
        asked = _meta(message).get(_META + "protocolVersion") or message["params"].get("protocolVersion", "")
        supported = ["2099-01-01"] if self.handshake_fault == "version" else [MODERN_VERSION]
        data = {"supported": supported, "requested": asked}
        return failure(message, code, "Unsupported protocol version", data)

    def _list(self, message: Message) -> Message:
        if self.list_fault == "error":
            return failure(message, _INTERNAL, "The catalog is on fire")
        if self.list_fault == "misfit":
            return self._complete(message, {"tools": "a great many"}, cacheable=True)
        cursor = (message.get("params") or {}).get("cursor")
        start = int(cursor) if cursor else 0
        size = self.page_size or max(len(self.names), 1)
        if self.list_fault == "endless_cursors":
            page: list[str] = [f"endless_{n}" for n in range(start, start + size)]
            return self._page(message, page, next_cursor=str(start + size))
        if self.list_fault == "repeating_cursor":
            return self._page(message, self.names[:size], next_cursor="1")
        end = start + size
        following = str(end) if end < len(self.names) else None
        return self._page(message, self.names[start:end], next_cursor=following)

    def _page(self, message: Message, names: list[str], *, next_cursor: str | None) -> Message:
        result: Message = {"tools": [self._described(name) for name in names]}
        if next_cursor is not None:
            result["nextCursor"] = next_cursor
        return self._complete(message, result, cacheable=True)

    def _described(self, name: str) -> Message:
        tool = _described(name, padding=self.oversized)
        return {**tool, "annotations": self.hints[name]} if name in self.hints else tool

    def _instructed(self, result: Message) -> Message:
        return result if self.instructions is None else {**result, "instructions": self.instructions}

    def _complete(self, message: Message, result: Message, *, cacheable: bool = False) -> Message:
        """A successful answer, with what the modern era asks of each result."""
        if self.is_modern(message) or message["method"] == "server/discover":
            result = {"resultType": "complete", **result}
            if cacheable:
                result |= {"ttlMs": 0, "cacheScope": "private"}
        return success(message, result)


def success(message: Message, result: Message) -> Message:
    """The answer that carries a result."""
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def failure(message: Message, code: int, text: str, data: object = None) -> Message:
    """The answer that carries a JSON-RPC error."""
    error: Message = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}


def encode(message: Message) -> bytes:
    """A message as it goes over the wire, in one line."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def _argument(message: Message, name: str) -> str:
    return str((message["params"].get("arguments") or {}).get(name, ""))


_OFFERED: Offered = {
    "prompts/list": lambda mind, _: {"prompts": [{"name": name} for name in mind.prompts]},
    "prompts/get": lambda _, message: {
        "messages": [{"role": "user", "content": {"type": "text", "text": f"Greet {_argument(message, 'who')}!"}}]
    },
    "resources/list": lambda mind, _: {"resources": [{"uri": uri, "name": uri} for uri in mind.resources]},
    "resources/templates/list": lambda mind, _: {
        "resourceTemplates": [{"uriTemplate": template, "name": template} for template in mind.templates]
    },
    "resources/read": lambda _, message: {
        "contents": [{"uri": message["params"]["uri"], "text": f"the text of {message['params']['uri']}"}]
    },
    "completion/complete": lambda _, message: {
        "completion": {"values": [message["params"]["argument"]["value"] + "ice"]}
    },
}
"""What a server with offers answers beside its tools: prompts, resources, templates and completions."""


def _notice(method: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _tool(message: Message) -> str:
    return str((message.get("params") or {}).get("name"))


def _meta(message: Message) -> Message:
    meta = (message.get("params") or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def _result_text(name: str, arguments: Message) -> str:
    if name == "add":
        return str(arguments.get("a", 0) + arguments.get("b", 0))
    if name == "fail":
        return "this tool always fails"
    return str(arguments.get("text", ""))


def _described(name: str, *, padding: int) -> Message:
    """A tool as a listing shows it; padding makes its description as long as asked."""
    types = {"add": {"a": "number", "b": "number"}, "progress": {"count": "integer"}}
    properties = {key: {"type": kind} for key, kind in types.get(name, {"text": "string"}).items()}
    return {
        "name": name,
        "description": f"The peer's tool {name}." + "x" * padding,
        "inputSchema": {"type": "object", "properties": properties},
    }
