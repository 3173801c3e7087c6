"""The hub as one MCP server of the OpenAI Agents SDK (extra ``openai-agents``).

    agent = Agent(name="a", mcp_servers=[HubServer(hub)], instructions=lambda ctx, agent: hub.warnings().for_model)

The SDK lists tools on each turn, so a changed catalog is followed. A call whose server is unavailable gets a result
with ``is_error``: the model reads the reason and the run goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self

from agents import AgentBase, RunContextWrapper
from agents.mcp import MCPServer
from mcp import types

from holdfast.core import HUB_NAME, CatalogEntry
from holdfast.endpoint import finding_tools
from holdfast.errors import HoldfastError, explain
from holdfast.hub import Hub, shown
from holdfast.types import Tool

__all__ = ["HubServer"]

FIRST_LISTING_SECONDS = 4.0
"""How long the first listing waits for servers that start. The SDK's own clients give up after 5 s."""


class HubServer(MCPServer):
    """All servers of a hub. The hub stays open and yours: ``connect``, ``cleanup`` and ``async with`` leave it alone.

    ``tools="find"`` offers a few tools in place of all: the model finds, reads and calls the others with them.

    The options of ``MCPServer`` (``require_approval``, ``use_structured_content``, guardrails) work as on any server.
    """

    def __init__(
        self, hub: Hub, *, name: str = "holdfast", tools: Literal["all", "find"] = "all", **options: Any
    ) -> None:
        super().__init__(**options)
        self._hub = hub
        self._mode = tools
        self._name = name

    @property
    def name(self) -> str:
        """The name in traces."""
        return self._name

    async def connect(self) -> None:
        """Wait for servers that start, so that the first turn has their tools."""
        await self._hub.ready(timeout=FIRST_LISTING_SECONDS)

    async def cleanup(self) -> None:
        """Nothing to do: the hub is closed by its owner."""

    async def __aenter__(self) -> Self:
        """Connect, as the SDK's own servers do; their common base has no ``async with``."""
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.cleanup()

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> list[types.Tool]:
        """The tools of this moment."""
        await self._hub.ready(timeout=FIRST_LISTING_SECONDS)
        listed = [] if self._mode == "find" else _listed(self._hub.catalog.tools)
        return [types.Tool.model_validate(raw) for raw in (*listed, *map(_described, self._own().values()))]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> types.CallToolResult:
        """Call a tool. An outage is a result that says so."""
        own = self._own().get(tool_name)
        try:
            if own is not None:
                result = await own.call(arguments or {})
            else:
                result = await self._hub.call_tool(tool_name, arguments)
        except HoldfastError as error:
            text = types.TextContent(type="text", text=explain(error))
            return types.CallToolResult(content=[text], is_error=True)
        raw = {"content": list(result.content), "structuredContent": result.structured, "isError": result.is_error}
        return types.CallToolResult.model_validate({**raw, "_meta": dict(result.meta) or None})

    def _own(self) -> dict[str, Tool]:
        """The hub's own tools: those of find mode, and the one that reads large results."""
        own = finding_tools(self._hub) if self._mode == "find" else self._hub.tools()
        return {tool.name: tool for tool in own if tool.server_id == HUB_NAME}

    async def list_prompts(self) -> types.ListPromptsResult:
        """The prompts of this moment."""
        return types.ListPromptsResult.model_validate({"prompts": _listed(self._hub.catalog.prompts)})

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> types.GetPromptResult:
        """Get a prompt."""
        return types.GetPromptResult.model_validate(await self._hub.get_prompt(name, arguments))

    async def list_resources(self, cursor: str | None = None) -> types.ListResourcesResult:
        """The resources of this moment, all on one page."""
        return types.ListResourcesResult.model_validate({"resources": _listed(self._hub.catalog.resources)})

    async def list_resource_templates(self, cursor: str | None = None) -> types.ListResourceTemplatesResult:
        """The templates of this moment, all on one page."""
        raw = {"resourceTemplates": _listed(self._hub.catalog.templates)}
        return types.ListResourceTemplatesResult.model_validate(raw)

    async def read_resource(self, uri: str) -> types.ReadResourceResult:
        """Read a resource."""
        return types.ReadResourceResult.model_validate(await self._hub.read_resource(uri))


def _described(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "annotations": dict(tool.annotations),
    }


def _listed(entries: Iterable[CatalogEntry]) -> list[dict[str, Any]]:
    """The items as their servers describe them, under the names that they have in the hub."""
    found = []
    for entry in entries:
        raw = dict(shown(entry))
        if "name" in raw and "uri" not in raw and "uriTemplate" not in raw:
            raw["name"] = entry.name
        found.append(raw)
    return found
