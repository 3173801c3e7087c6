"""The hub's tools for LangChain and LangGraph (extra ``langchain``).

    tools = await langchain_tools(hub)                         # the tools of this moment
    agent = create_agent(model, middleware=[HubMiddleware(hub)])  # follows every change of the catalog

A tool whose server is unavailable answers with an error message that says why and when to try again: the run goes on.
``MultiServerMCPClient`` takes the place of the class of that name in ``langchain-mcp-adapters``.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.messages.content import (
    create_file_block,
    create_image_block,
    create_text_block,
)
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from holdfast.config import config_from_mapping
from holdfast.endpoint import finding_tools
from holdfast.errors import HoldfastError, UsageError, explain
from holdfast.hub import Hub
from holdfast.types import CallResult, Tool

__all__ = ["HubMiddleware", "MultiServerMCPClient", "OnToolProgress", "langchain_tools"]

FIRST_LISTING_SECONDS = 10.0
"""How long ``langchain_tools`` waits for servers that start: an agent's tools are fixed after it."""

OnToolProgress = Callable[[str, float, float | None, str | None], Coroutine[Any, Any, None]]
"""Called with the tool's name, the progress, the total and the message of each progress notification."""


async def langchain_tools(
    hub: Hub,
    *,
    server: str | None = None,
    on_progress: OnToolProgress | None = None,
    tools: Literal["all", "find"] = "all",
) -> list[BaseTool]:
    """The tools of all servers, or of one, as LangChain tools; with ``tools="find"`` a few that find the others.

    Servers that start get a few seconds. A tool finds its connection when it is called, so it works again after an
    outage. Tools that appear later are not in the list: ``HubMiddleware`` follows the catalog.
    """
    await hub.ready(timeout=FIRST_LISTING_SECONDS)
    return _tools(hub, server, on_progress, tools)


class HubMiddleware(AgentMiddleware[Any, Any]):
    """Gives an agent the hub's tools of each moment, and tells its model what is unavailable.

    Before each model call the tools are those of the current catalog, and the system message ends with
    ``hub.warnings().for_model``. ``warnings=False`` leaves the system message alone. ``tools="find"`` offers a few
    tools in place of all: the model finds, reads and calls the others with them.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        warnings: bool = True,
        on_progress: OnToolProgress | None = None,
        tools: Literal["all", "find"] = "all",
    ) -> None:
        super().__init__()
        self._mode = tools
        self._hub = hub
        self._warnings = warnings
        self._on_progress = on_progress

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """Wait for servers that start, so that the first turn has their tools."""
        await self._hub.ready(timeout=FIRST_LISTING_SECONDS)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Offer the tools of this moment, and say what is unavailable."""
        taken = {tool.name for tool in request.tools if isinstance(tool, BaseTool)}
        added = [tool for tool in _tools(self._hub, None, self._on_progress, self._mode) if tool.name not in taken]
        request = request.override(tools=[*request.tools, *added])
        told = self._hub.warnings().for_model if self._warnings else ""
        if told:
            before = request.system_message.text if request.system_message is not None else ""
            request = request.override(system_message=SystemMessage("\n\n".join(filter(None, (before, told)))))
        return await handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Run a tool of the hub; a name that left the catalog gets the hub's own explanation."""
        if request.tool is None:
            name = request.tool_call["name"]
            known = {tool.name: tool for tool in _offered(self._hub, None, self._mode)}
            request = request.override(tool=_tool(self._hub, name, known.get(name), self._on_progress))
        return await handler(request)


class MultiServerMCPClient:
    """``langchain_mcp_adapters.client.MultiServerMCPClient`` on a hub: change one import.

    The hub opens on first use and keeps its connections until ``aclose()`` or the end of ``async with``.
    What has no meaning on shared connections is refused with the reason.
    """

    def __init__(
        self,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        callbacks: None = None,
        tool_interceptors: None = None,
        tool_name_prefix: bool = False,
        handle_tool_errors: bool = True,
    ) -> None:
        if callbacks is not None:
            raise UsageError("`callbacks` is not supported here", hint="use `langchain_tools(hub, on_progress=…)`")
        if tool_interceptors is not None:
            raise UsageError(
                "`tool_interceptors` is not supported here", hint="use `wrap_tool_call` of a LangChain middleware"
            )
        self.connections = dict(connections or {})
        self._definitions = {name: _definition(name, dict(given)) for name, given in self.connections.items()}
        self._prefix = tool_name_prefix
        self._handle_errors = handle_tool_errors
        self._hub: Hub | None = None
        self._opening = asyncio.Lock()
        self._end = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def get_tools(self, *, server_name: str | None = None) -> list[BaseTool]:
        """The tools of all servers, or of one."""
        if server_name is not None and server_name not in self.connections:
            raise ValueError(f"there is no server `{server_name}`; configured: {', '.join(self.connections)}")
        hub = await self._opened()
        await hub.ready(timeout=FIRST_LISTING_SECONDS)
        found = []
        for tool in hub.tools():
            if server_name in (None, tool.server_id):
                original = hub.catalog.resolve(tool.name)
                name = getattr(original, "original", tool.name)
                shown = f"{tool.server_id}_{name}" if self._prefix else name
                found.append(_tool(hub, tool.name, tool, None, shown=shown, raising=not self._handle_errors))
        return found

    def session(self, *args: object, **kwargs: object) -> None:
        """Refused: a hub's connections are shared and heal by themselves."""
        raise UsageError(
            "`session` is not supported here: the hub's connections are shared", hint="use `get_tools()` instead"
        )

    async def aclose(self) -> None:
        """End the hub and its connections."""
        self._end.set()
        if self._owner is not None:
            await self._owner

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _opened(self) -> Hub:
        """The hub, opened by a task of its own: the task that asks first may end long before."""
        async with self._opening:
            if self._end.is_set():
                raise UsageError("this client is closed", hint="make a new one")
            if self._hub is None:
                ready: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
                self._owner = asyncio.create_task(self._keep(ready), name="holdfast hub of MultiServerMCPClient")
                self._hub = await ready
            return self._hub

    async def _keep(self, ready: asyncio.Future[Hub]) -> None:
        try:
            async with Hub(config_from_mapping({"mcpServers": self._definitions})) as hub:
                ready.set_result(hub)
                await self._end.wait()
        except HoldfastError as error:
            if ready.done():
                raise
            ready.set_exception(error)


_PASSED = frozenset({"transport", "url", "headers", "command", "args", "env", "cwd"})
_TRANSPORTS = {"stdio": "stdio", "sse": "sse", "http": "http", "streamable_http": "http", "streamable-http": "http"}
_REFUSED = {
    "auth": "the hub has its own OAuth login: run `holdfast login`, or put a token into `headers`",
    "httpx_client_factory": "the hub has its own HTTP client",
    "session_kwargs": "the hub makes its own sessions",
    "encoding": "MCP over stdio is UTF-8",
    "encoding_error_handler": "MCP over stdio is UTF-8",
    "timeout": "the hub's timeouts are in `holdfast.call` of a configuration: use `Hub.from_config`",
    "sse_read_timeout": "the hub's timeouts are in `holdfast.call` of a configuration: use `Hub.from_config`",
    "terminate_on_close": "the hub always ends its sessions",
}


def _definition(server: str, given: dict[str, Any]) -> dict[str, Any]:
    """An entry of ``mcpServers`` from a connection of ``langchain-mcp-adapters``."""
    for key, why in _REFUSED.items():
        if given.get(key) is not None:
            raise UsageError(f"`{key}` of server `{server}` is not supported here", hint=why)
    if unknown := sorted(set(given) - _PASSED - set(_REFUSED)):
        raise UsageError(
            f"server `{server}` has an unknown key `{unknown[0]}`", hint=f"known: {', '.join(sorted(_PASSED))}"
        )
    transport = given.get("transport", "stdio" if "command" in given else "http")
    if transport not in _TRANSPORTS:
        raise UsageError(
            f"transport `{transport}` of server `{server}` is not supported here",
            hint=f"supported: {', '.join(_TRANSPORTS)}",
        )
    definition = {key: given[key] for key in _PASSED - {"transport"} if given.get(key) is not None}
    return {**definition, "type": _TRANSPORTS[transport], "prefix": ""}


def _tools(
    hub: Hub, server: str | None, on_progress: OnToolProgress | None, mode: Literal["all", "find"]
) -> list[BaseTool]:
    return [_tool(hub, tool.name, tool, on_progress) for tool in _offered(hub, server, mode)]


def _offered(hub: Hub, server: str | None, mode: Literal["all", "find"]) -> tuple[Tool, ...]:
    if mode == "find":
        return finding_tools(hub, server)
    return tuple(tool for tool in hub.tools() if server in (None, tool.server_id))


class _Failed(ToolException):
    """A call without a result, or a tool's own error: its content is what the model reads."""

    def __init__(self, blocks: list[Any]) -> None:
        super().__init__("\n".join(block["text"] for block in blocks if block["type"] == "text") or "the tool failed")
        self.blocks = blocks


def _tool(
    hub: Hub,
    name: str,
    tool: Tool | None,
    on_progress: OnToolProgress | None,
    *,
    shown: str | None = None,
    raising: bool = False,
) -> BaseTool:
    """One tool. ``name`` is the hub's; ``shown`` is the model's."""

    async def call(**arguments: Any) -> tuple[list[Any], dict[str, Any] | None]:
        try:
            call_it = tool.call if tool is not None else partial(hub.call_tool, name)
            result = await call_it(arguments, on_progress=partial(on_progress, name) if on_progress else None)
        except HoldfastError as error:
            raise _Failed([create_text_block(explain(error))]) from error
        blocks = [_block(block) for block in result.content]
        if result.is_error:
            raise _Failed(blocks or [create_text_block("the tool failed and says no more")])
        return blocks, _artifact(result)

    return StructuredTool(
        name=shown or name,
        description=tool.description if tool is not None else "",
        args_schema=_schema(tool),
        coroutine=call,
        response_format="content_and_artifact",
        handle_tool_error=False if raising else _content,
        metadata=_metadata(tool),
    )


def _schema(tool: Tool | None) -> dict[str, Any]:
    schema = copy.deepcopy(dict(tool.input_schema)) if tool is not None else {}
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return schema


def _metadata(tool: Tool | None) -> dict[str, Any] | None:
    if tool is None:
        return None
    said = {**tool.annotations, **({"_meta": dict(tool.meta)} if tool.meta else {})}
    return {**said, "server": tool.server_id}


def _content(error: ToolException) -> Any:
    """The content of the tool message with ``status="error"``."""
    return error.blocks if isinstance(error, _Failed) else str(error)


def _artifact(result: CallResult) -> dict[str, Any] | None:
    return {"structured_content": dict(result.structured)} if result.structured is not None else None


def _block(block: Mapping[str, Any]) -> Any:
    """An MCP content block as LangChain's."""
    kind, mime = block.get("type"), block.get("mimeType")
    if kind == "text":
        return create_text_block(block["text"])
    if kind == "image":
        return create_image_block(base64=block["data"], mime_type=mime)
    if kind == "audio":  # LangChain turns an audio block of a tool message into text; a file keeps its data
        return create_file_block(base64=block["data"], mime_type=mime)
    if kind == "resource_link":
        return _linked(mime, url=block["uri"])
    if kind == "resource":
        resource = block["resource"]
        if "text" in resource:
            return create_text_block(resource["text"])
        return _linked(resource.get("mimeType"), base64=resource.get("blob", ""))
    return create_text_block(f"[content of the unknown type {kind!r}]")


def _linked(mime: str | None, **where: str) -> Any:
    make = create_image_block if (mime or "").startswith("image/") else create_file_block
    return make(mime_type=mime, **where)
