"""An MCP server for proofs, as a process of its own: everything the conformance suite asks for, over HTTP or stdio.

``python -m tests.conformance.fixture_server http --announce FILE`` writes its URL to the file once it listens;
``… stdio`` serves its own pipes. ``--era`` makes it a server that knows one era of the protocol and no other.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import mcp_types as types
import uvicorn
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from tests.conformance.eras import Era, era_gate, gated_streams
from tests.conformance.events import MemoryEventStore
from tests.conformance.input_requests import Call, InputNeeded, elicit
from tests.conformance.inventory import (
    DYNAMIC_PROMPT,
    DYNAMIC_TOOL,
    PNG,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    WATCHED,
    embedded,
    text,
)
from tests.conformance.subscribers import Audience
from tests.conformance.tools import Tools

__all__ = ["FixtureServer", "main"]

_TEMPLATE = re.compile(r"test://template/(?P<id>[^/]+)/data")
# How long a client waits before it comes back to a stream that the server closed, in milliseconds.
_RETRY = 500
_CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "server/discover",
)
_LISTS_CHANGE = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
# The handshake era has a code of its own for a resource that is not there.
_RESOURCE_NOT_FOUND = -32002

Context = ServerRequestContext[Any]
R = TypeVar("R")


class FixtureServer:
    """The SDK's server with our inventory."""

    def __init__(self) -> None:
        self._audience = Audience()
        self._tools = Tools(self._audience)
        self.server: Server[Any] = Server(
            "holdfast-fixture",
            version="1.0.0",
            instructions="A server for proofs.",
            cache_hints={method: CacheHint(ttl_ms=0, scope="private") for method in _CACHEABLE},
            get_tool_input_schema=self._schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=ListenHandler(self._audience.bus),
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            on_set_logging_level=self._set_level,
        )
        boundary = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="holdfast-fixture")
        self.server.middleware.append(boundary)

    async def serve_stdio(self, era: Era) -> None:
        """Serve this process's pipes until they close."""
        options = self.server.create_initialization_options(_LISTS_CHANGE)
        async with stdio_server() as streams, gated_streams(*streams, era=era) as (read, write):
            await self.server.run(read, write, options)

    def serve_http(self, era: Era, *, announce: Path) -> None:
        """Listen on a free port of the loopback interface, and write the URL to the file."""
        # The SDK asks the server for its options without saying that the lists change.
        self.server.create_initialization_options = _announcing(self.server.create_initialization_options)  # type: ignore[method-assign]
        app = self.server.streamable_http_app(event_store=MemoryEventStore(), retry_interval=_RETRY)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            config = uvicorn.Config(era_gate(app, era), log_level="warning", timeout_graceful_shutdown=1)
            announce.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
            uvicorn.Server(config).run(sockets=[listening])

    def _schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in TOOLS if tool.name == name), None)

    async def _list_tools(self, context: Context, _: object) -> types.ListToolsResult:
        self._audience.notice(context)
        return types.ListToolsResult(tools=[*TOOLS, *([DYNAMIC_TOOL] if self._tools.extra_tool else [])])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        self._audience.notice(context)
        return await _round(self._tools.call, _call(context, params))

    async def _list_resources(self, context: Context, _: object) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=list(RESOURCES))

    async def _list_templates(self, context: Context, _: object) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        contents = _contents(params.uri)
        if contents is None:
            modern = _call(context, params).modern
            code = types.INVALID_PARAMS if modern else _RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": params.uri})
        return types.ReadResourceResult(contents=[contents])

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._audience.subscribe(context, params.uri)
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._audience.unsubscribe(context, params.uri)
        return types.EmptyResult()

    async def _list_prompts(self, context: Context, _: object) -> types.ListPromptsResult:
        self._audience.notice(context)
        return types.ListPromptsResult(prompts=[*PROMPTS, *([DYNAMIC_PROMPT] if self._tools.extra_prompt else [])])

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        return await _round(_prompt, _call(context, params))

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        values = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
        return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["http", "stdio"])
    parser.add_argument("--era", choices=["both", "legacy", "modern"], default="both")
    parser.add_argument("--announce", type=Path, default=Path("fixture.url"))
    asked = parser.parse_args()
    # The suite of 2025-11-25 asks for logging, which later versions discourage.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    fixture = FixtureServer()
    if asked.transport == "stdio":
        anyio.run(fixture.serve_stdio, asked.era)
    else:
        fixture.serve_http(asked.era, announce=asked.announce)


def _announcing(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: make(_LISTS_CHANGE)


def _call(context: Context, params: Any) -> Call:
    return Call(
        context=context,
        name=getattr(params, "name", ""),
        arguments=getattr(params, "arguments", None) or {},
        given=params.input_responses or {},
        state=params.request_state,
    )


async def _round(handle: Callable[[Call], Awaitable[R]], call: Call) -> R | types.InputRequiredResult:
    try:
        return await handle(call)
    except InputNeeded as needed:
        return needed.result


def _contents(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    if uri == "test://static-text":
        words = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=words)
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    if uri == WATCHED:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text="Watch me.")
    if (match := _TEMPLATE.fullmatch(uri)) is None:
        return None
    record = {"id": match["id"], "templateTest": True, "data": f"Data for ID: {match['id']}"}
    return types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(record))


async def _prompt(call: Call) -> types.GetPromptResult:
    arguments = call.arguments
    match call.name:
        case "test_simple_prompt":
            return _messages(text("This is a simple prompt for testing."))
        case "test_prompt_with_arguments":
            words = f"Prompt with arguments: arg1='{arguments.get('arg1')}', arg2='{arguments.get('arg2')}'"
            return _messages(text(words))
        case "test_prompt_with_embedded_resource":
            resource = embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
            return _messages(resource, text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            image = types.ImageContent(type="image", data=PNG, mime_type="image/png")
            return _messages(image, text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            request = elicit("What context should the prompt use?", "context")
            answer = (await call.ask({"user_context": request}))["user_context"]
            return _messages(text(f"Use this context: {(answer.content or {}).get('context')}"))
    raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {call.name}")


def _messages(*content: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in content])


if __name__ == "__main__":
    main()
