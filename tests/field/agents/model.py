"""A model that follows a script, behind the four interfaces that agent programs speak.

OpenAI's chat completions and responses, Anthropic's messages, Google's generateContent; streamed or whole. The turn
is the number of tool results in the conversation: side requests (titles, summaries) and repeated ones change nothing.
A request without tools gets a short text.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["ScriptedModel", "Step"]

DONE = "All steps are done."


@dataclass(frozen=True)
class Step:
    """One call that the model asks for, and what happens just before it asks."""

    name: str
    arguments: dict[str, Any]
    before: Callable[[], None] = lambda: None
    tool: str = ""
    """A part of the name of the tool; that of the model if it is left out."""


@dataclass
class ScriptedModel:
    """Answers each turn with the call of its step; after the last with a text. It keeps what it was told."""

    tool: str
    """A part of the tool's name: programs put prefixes of their own before it, and hashes behind it."""
    steps: list[Step]
    listed: dict[str, list[str]] = field(default_factory=dict)
    """The names of the tools in the request of each step, as the program gave them to the model."""
    results: dict[str, str] = field(default_factory=dict)
    """The text of each step's tool result, as the program gave it to the model."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    _begun: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def decide(self, tools: list[str], results: list[str]) -> tuple[str, dict[str, Any], str] | None:
        """The tool to call, its arguments and an id for the call; None: say that all is done."""
        with self._lock:
            for step, text in zip(self.steps, results, strict=False):
                self.results[step.name] = text
            if len(results) >= len(self.steps) or not tools:
                return None
            step = self.steps[len(results)]
            if step.name not in self._begun:
                self._begun.add(step.name)
                step.before()
            self.listed[step.name] = tools
        wanted = step.tool or self.tool
        name = next((each for each in tools if wanted in each), None)
        # A program that lost its tools is still asked for the last known name: it says to the model what it knows.
        last = next((each for names in self.listed.values() for each in names if wanted in each), None)
        called = name or last
        return None if called is None else (called, step.arguments, f"call_{len(results)}")


def _handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self._whole({"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length) if length else self._chunks()
            try:
                body = json.loads(raw or b"{}")
            except ValueError:
                body = {}
            with model._lock:
                model.requests.append({"path": self.path, "body": body})
            for pattern, answer in _INTERFACES:
                if re.search(pattern, self.path):
                    kind, payload = answer(model, body, self.path)
                    if kind == "stream":
                        self._stream(payload)
                    else:
                        self._whole(payload)
                    return
            self._whole({})

        def _chunks(self) -> bytes:
            parts = []
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            return b"".join(parts)

        def _whole(self, payload: object) -> None:
            text = json.dumps(payload).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, events: Iterable[str]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for event in events:
                self.wfile.write(event.encode())
            self.wfile.flush()
            self.close_connection = True

    return Handler


def _events(*payloads: dict[str, Any], named: bool = False) -> list[str]:
    return [(f"event: {each['type']}\n" if named else "") + f"data: {json.dumps(each)}\n\n" for each in payloads]


def _text_of(content: object) -> str:
    """The text in a tool result, which programs wrap in their own ways."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text_of(each) for each in content)
    if isinstance(content, dict):
        for key in ("text", "output", "content", "result", "error"):
            if key in content:
                return _text_of(content[key])
        return json.dumps(content)
    return "" if content is None else str(content)


# OpenAI's chat completions.


def _chat(model: ScriptedModel, body: dict[str, Any], _path: str) -> tuple[str, Any]:
    tools = [each.get("function", {}).get("name", "") for each in body.get("tools") or []]
    results = [_text_of(each.get("content")) for each in body.get("messages", []) if each.get("role") == "tool"]
    call = model.decide(tools, results)
    message: dict[str, Any] = {"role": "assistant", "content": DONE}
    finish = "stop"
    if call is not None:
        name, arguments, call_id = call
        function = {"name": name, "arguments": json.dumps(arguments)}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}],
        }
        finish = "tool_calls"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    base = {"id": "chat-1", "created": 1, "model": body.get("model", "scripted")}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return "whole", {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunk = {**base, "object": "chat.completion.chunk"}
    return "stream", [
        *_events(
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {**chunk, "choices": [], "usage": usage},
        ),
        "data: [DONE]\n\n",
    ]


# OpenAI's responses.


def _responses(model: ScriptedModel, body: dict[str, Any], _path: str) -> tuple[str, Any]:
    tools = _response_tools(body.get("tools") or [])
    given = body.get("input")
    items = given if isinstance(given, list) else []
    results = [_text_of(each.get("output")) for each in items if each.get("type") == "function_call_output"]
    call = model.decide(list(tools), results)
    item: dict[str, Any]
    if call is None:
        content = {"type": "output_text", "text": DONE, "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
    else:
        name, arguments, call_id = call
        item = {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "arguments": json.dumps(arguments),
            "status": "completed",
            **tools.get(name, {"name": name}),
        }
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "scripted", "status": "completed"}
    whole = {**response, "output": [item], "usage": usage}
    if not body.get("stream"):
        return "whole", whole
    begun = {**response, "status": "in_progress", "output": []}
    return "stream", _events(
        {"type": "response.created", "response": begun, "sequence_number": 0},
        {"type": "response.output_item.added", "output_index": 0, "item": item, "sequence_number": 1},
        {"type": "response.output_item.done", "output_index": 0, "item": item, "sequence_number": 2},
        {"type": "response.completed", "response": whole, "sequence_number": 3},
        named=True,
    )


def _response_tools(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The name of each tool, and how a call names it: tools of a namespace are called by both."""
    found: dict[str, dict[str, Any]] = {}
    for each in tools:
        if each.get("type") == "namespace":
            for inner in each.get("tools", []):
                found[each["name"] + inner["name"]] = {"name": inner["name"], "namespace": each["name"]}
        elif "name" in each:
            found[each["name"]] = {"name": each["name"]}
    return found


# Anthropic's messages.


def _messages(model: ScriptedModel, body: dict[str, Any], path: str) -> tuple[str, Any]:
    if "count_tokens" in path:
        return "whole", {"input_tokens": 1}
    tools = [each.get("name", "") for each in body.get("tools") or []]
    blocks = [
        block
        for message in body.get("messages", [])
        if isinstance(message.get("content"), list)
        for block in message["content"]
    ]
    results = [_text_of(each.get("content")) for each in blocks if each.get("type") == "tool_result"]
    call = model.decide(tools, results)
    usage = {"input_tokens": 1, "output_tokens": 1}
    block: dict[str, Any]
    empty: dict[str, Any]
    if call is None:
        block, stop = {"type": "text", "text": DONE}, "end_turn"
        empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": DONE}
    else:
        name, arguments, call_id = call
        block, stop = {"type": "tool_use", "id": f"toolu_{call_id}", "name": name, "input": arguments}, "tool_use"
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "scripted")}
    if not body.get("stream"):
        return "whole", {**base, "content": [block], "stop_reason": stop, "stop_sequence": None, "usage": usage}
    begun = {**base, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return "stream", _events(
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
        named=True,
    )


# Google's generateContent.


def _generate(model: ScriptedModel, body: dict[str, Any], path: str) -> tuple[str, Any]:
    if "countTokens" in path:
        return "whole", {"totalTokens": 1}
    tools = [one.get("name", "") for each in body.get("tools") or [] for one in each.get("functionDeclarations") or []]
    parts = [part for content in body.get("contents", []) for part in content.get("parts", [])]
    results = [_text_of(part["functionResponse"].get("response")) for part in parts if "functionResponse" in part]
    call = model.decide(tools, results)
    part: dict[str, Any] = {"text": DONE}
    if call is not None:
        name, arguments, call_id = call
        part = {"functionCall": {"id": call_id, "name": name, "args": arguments}}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
    if "stream" not in path:
        return "whole", answer
    return "stream", _events(answer)


_INTERFACES: tuple[tuple[str, Callable[[ScriptedModel, dict[str, Any], str], tuple[str, Any]]], ...] = (
    ("/chat/completions", _chat),
    ("/responses", _responses),
    ("/messages", _messages),
    (r"enerateContent|countTokens", _generate),
)
