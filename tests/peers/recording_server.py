"""A server with some of everything that records each request that reaches it: what a hub let pass, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from tests.harness.web import serving

Context = ServerRequestContext[Any, Any]

__all__ = ["PROMPTS", "RESOURCES", "TEMPLATES", "TOOLS", "RecordingServer", "recording"]

TOOLS = ("get_issue", "get_secret", "delete_issue")
PROMPTS = ("get_advice", "delete_advice")
RESOURCES = ("note://get_a", "note://secret")
TEMPLATES = ("note://get_{x}", "vault://{x}")

READ_ONLY = {"readOnlyHint": True}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class RecordingServer(Server[Any]):
    """The server, and what reached it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            instructions=f"{name} says: mind the gap.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read,
            on_completion=self._complete,
            on_subscribe_resource=self._subscribe,
        )
        self.url = ""
        self.saw: list[tuple[str, str]] = []
        """The kind and the name of each request but lists."""
        self.suggests = ["x"]
        """The values of every completion."""

    async def _list_tools(self, ctx: Context, params: object) -> types.ListToolsResult:
        made = [
            {"name": name, "description": f"It does {name}.", "inputSchema": SCHEMA, "annotations": READ_ONLY}
            for name in TOOLS
        ]
        return types.ListToolsResult(tools=[types.Tool.model_validate(one) for one in made])

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.saw.append(("tool", params.name))
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"did {params.name}")])

    async def _list_prompts(self, ctx: Context, params: object) -> types.ListPromptsResult:
        arguments = [types.PromptArgument(name="n")]
        return types.ListPromptsResult(prompts=[types.Prompt(name=name, arguments=arguments) for name in PROMPTS])

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        self.saw.append(("prompt", params.name))
        return types.GetPromptResult(messages=[])

    async def _list_resources(self, ctx: Context, params: object) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name=uri, uri=uri) for uri in RESOURCES])

    async def _list_templates(self, ctx: Context, params: object) -> types.ListResourceTemplatesResult:
        made = [types.ResourceTemplate(name=uri, uri_template=uri) for uri in TEMPLATES]
        return types.ListResourceTemplatesResult(resource_templates=made)

    async def _read(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        self.saw.append(("resource", str(params.uri)))
        text = types.TextResourceContents(uri=str(params.uri), text="read")
        return types.ReadResourceResult(contents=[text])

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.saw.append(("subscription", str(params.uri)))
        return types.EmptyResult()

    async def _complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        ref: Mapping[str, Any] = params.ref.model_dump()
        self.saw.append(("completion", str(ref.get("name") or ref.get("uri"))))
        suggested = types.Completion(values=self.suggests, total=len(self.suggests))
        return types.CompleteResult(completion=suggested)


@asynccontextmanager
async def recording(name: str) -> AsyncIterator[RecordingServer]:
    """One that is served at its ``url``."""
    server = RecordingServer(name)
    sessions = StreamableHTTPSessionManager(server)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sessions.handle_request(scope, receive, send)

    async with sessions.run(), serving(app) as base:
        server.url = f"{base}/mcp"
        yield server
