"""An MCP server with one of everything, of either era: what a front must pass on, and a record of what arrived.

In a test it runs over HTTP in the same process; run as a program, it speaks over stdio.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.runner import serve_dual_era_loop, serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.harness.web import serving

Era = Literal["modern", "legacy"]
Context = ServerRequestContext[Any, Any]

OBJECT: dict[str, Any] = {"type": "object"}
TOOLS = ("echo", "count", "ask", "log", "hang", "touch", "grow", "fail", "pid", "bump", "wait", "link")
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}


class Origin(Server[Any]):
    """The server, and what it saw."""

    def __init__(self, era: Era = "modern") -> None:
        with warnings.catch_warnings(
            action="ignore"
        ):  # logging is deprecated in the modern era, and served all the same
            super().__init__(
                "origin",
                instructions="Origin says: be kind.",
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_prompts=self._list_prompts,
                on_get_prompt=self._get_prompt,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read,
                on_subscribe_resource=self._subscribe,
                on_unsubscribe_resource=self._unsubscribe,
                on_completion=self._complete,
                on_set_logging_level=self._set_level,
                on_roots_list_changed=self._roots_changed,
                on_subscriptions_listen=self._listen,
            )
        self.era = era
        self.bus = InMemorySubscriptionBus()
        self.listening = ListenHandler(self.bus)
        self.extra_tools: list[str] = []
        self.hanging = anyio.Event()
        self.cancelled = anyio.Event()
        self.waiting = anyio.Event()
        self.go = anyio.Event()
        self.subscribed: list[str] = []
        self.changed = anyio.Event()
        self.levels: list[str] = []
        self.roots_changed = anyio.Event()
        self.curious = False
        self.roots: list[str] = []
        self.connections = 0
        self.url = ""
        self.words = ""
        self.calls: list[str] = []
        """The tools that were called, in order."""
        self.described: dict[str, dict[str, Any]] = {}
        """What else is said of some tools."""

    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        self.connections += 1
        changed = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(changed)

    async def _list_tools(self, ctx: Context, params: object) -> types.ListToolsResult:
        names = [*TOOLS, *self.extra_tools]
        return types.ListToolsResult(
            tools=[
                types.Tool.model_validate(
                    {
                        "name": name,
                        "description": self.words or f"It can {name}.",
                        "inputSchema": OBJECT,
                        **self.described.get(name, {}),
                    }
                )
                for name in names
            ]
        )

    async def _call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        args = params.arguments or {}
        self.calls.append(params.name)
        match params.name:
            case "echo":
                meta = {
                    key: value
                    for key, value in (ctx.meta or {}).items()
                    if key.startswith(("test/", "holdfast/", "trace"))
                }
                return _text(str(args.get("text")), structured={"text": args.get("text")}, meta=meta)
            case "count":
                await self._count(ctx, int(args["n"]))
            case "ask":
                return await self._ask(ctx, params, str(args["kind"]))
            case "log":
                await self._log(ctx, args["level"], args["text"])
            case "hang":
                await self._hang()
            case "wait":
                await self._count(ctx, 1)
                self.waiting.set()
                await self.go.wait()
                return _text("waited")
            case "touch":
                await self._touch(ctx, args["uri"])
            case "grow":
                await self._grow(ctx)
            case "fail":
                raise MCPError(-32123, "it failed", {"why": "asked to"})
            case "bump" | "link" | "pid":
                return _said(ctx, params.name, args)
            case _ if params.name not in self.extra_tools:
                raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")
        return _text("done")

    async def _count(self, ctx: Context, n: int) -> None:
        token = (ctx.meta or {}).get("progress_token")
        for step in range(1, n + 1):
            if token is not None:
                await ctx.session.send_progress_notification(
                    token, step, n, f"step {step}", related_request_id=str(ctx.request_id)
                )

    async def _ask(
        self, ctx: Context, params: types.CallToolRequestParams, kind: str
    ) -> types.CallToolResult | types.InputRequiredResult:
        request = _question(kind)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            answer = (params.input_responses or {}).get("it")
            if answer is None:
                return types.InputRequiredResult(input_requests={"it": request}, request_state="state-1")
            said = answer if isinstance(answer, Mapping) else answer.model_dump(by_alias=True, exclude_none=True)
            return _text(f"{_essence(said)} ({params.request_state})")
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        try:
            result = await ctx.session.send_request(request, _RESULTS[kind], metadata=related)
        except MCPError as exc:
            return _text(f"refused: {exc.message}")
        return _text(_essence(result.model_dump(by_alias=True, exclude_none=True)))

    async def _log(self, ctx: Context, level: types.LoggingLevel, text: str) -> None:
        with warnings.catch_warnings(action="ignore"):
            await ctx.session.send_log_message(level, text, related_request_id=ctx.request_id)

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()

    async def _touch(self, ctx: Context, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri))
        await ctx.session.send_resource_updated(uri)

    async def _grow(self, ctx: Context) -> None:
        self.extra_tools.append(f"grown{len(self.extra_tools)}")
        await self.bus.publish(ToolsListChanged())
        await ctx.session.send_tool_list_changed()

    async def _list_prompts(self, ctx: Context, params: object) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[types.Prompt(name="greet", arguments=[types.PromptArgument(name="who", required=True)])]
        )

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        text = f"Greet {(params.arguments or {}).get('who')}."
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))]
        )

    async def _list_resources(self, ctx: Context, params: object) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri="note://one", name="one")])

    async def _list_templates(self, ctx: Context, params: object) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[types.ResourceTemplate(uri_template="note://of/{who}", name="notes")]
        )

    async def _read(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) == "note://cancelled":
            text = str(self.cancelled.is_set())
            return types.ReadResourceResult(contents=[types.TextResourceContents(uri=str(params.uri), text=text)])
        if "missing" in str(params.uri):
            raise MCPError(-32002, "Resource not found", {"uri": str(params.uri)})
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=str(params.uri), text=f"the text of {params.uri}")]
        )

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.subscribed.append(str(params.uri))
        self._note()
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.subscribed.remove(str(params.uri))
        self._note()
        return types.EmptyResult()

    async def _complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=[f"{params.argument.value}!"]))

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self.levels.append(params.level)
        return types.EmptyResult()

    async def _roots_changed(self, ctx: Context, params: object) -> None:
        self.roots_changed.set()
        if self.curious:
            found = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
            self.roots += [str(root.uri) for root in found.roots]
            self._note()

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        self.subscribed += uris
        self._note()
        try:
            return await self.listening(ctx, params)
        finally:
            for uri in uris:
                self.subscribed.remove(uri)
            self._note()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await self.changed.wait()

    def _note(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


@asynccontextmanager
async def running(era: Era = "modern", *, port: int = 0) -> AsyncIterator[Origin]:
    """The server at ``origin.url``."""
    origin = Origin(era)
    sessions = StreamableHTTPSessionManager(origin)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode()
        if era == "legacy" and version in MODERN_PROTOCOL_VERSIONS:
            await Response(status_code=400)(scope, receive, send)
        else:
            await sessions.handle_request(scope, receive, send)

    async with sessions.run(), serving(app, port=port) as base:
        origin.url = f"{base}/mcp"
        yield origin


def _text(text: str, *, structured: dict[str, Any] | None = None, meta: Any = None) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=structured, _meta=meta or None
    )


def _said(ctx: Context, tool: str, args: Mapping[str, Any]) -> types.CallToolResult:
    if tool == "link":
        return _links(*args["uris"])
    return _text(str(_bumped(ctx) if tool == "bump" else os.getpid()))


def _links(*uris: str) -> types.CallToolResult:
    """A link to each, and each as it is."""
    links = [types.ResourceLink(type="resource_link", name="it", uri=uri) for uri in uris]
    inside = [types.TextResourceContents(uri=uri, text=uri) for uri in uris]
    embedded = [types.EmbeddedResource(type="resource", resource=one) for one in inside]
    return types.CallToolResult(content=[*links, *embedded])


def _bumped(ctx: Context) -> int:
    """Counts for each connection: what a server does that keeps state for its client."""
    state = ctx.session._connection.state
    state["bumps"] = state.get("bumps", 0) + 1
    return int(state["bumps"])


def _question(kind: str) -> Any:
    if kind == "elicit":
        return types.ElicitRequest(params=types.ElicitRequestFormParams(message="Which?", requested_schema=FORM))
    if kind == "sample":
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Say something."))
        return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=9))
    return types.ListRootsRequest()


_RESULTS: Mapping[str, Any] = {
    "elicit": types.ElicitResult,
    "sample": types.CreateMessageResult,
    "roots": types.ListRootsResult,
}


def _essence(answer: Mapping[str, Any]) -> str:
    if "roots" in answer:
        return str(answer["roots"][0]["uri"])
    if "model" in answer:
        return str(answer["content"]["text"])
    return str((answer.get("content") or {}).get("colour", answer.get("action")))


async def _over_stdio(era: Era) -> None:
    origin = Origin(era)
    async with stdio_server() as (read, write):
        serve = serve_loop if era == "legacy" else serve_dual_era_loop
        await serve(origin, read, write, lifespan_state=None)


if __name__ == "__main__":
    anyio.run(_over_stdio, "legacy" if "legacy" in sys.argv else "modern")
