"""The hub's tools for Google's Agent Development Kit (extra ``google-adk``).

    agent = LlmAgent(name="a", model=model, tools=[HubToolset(hub)], instruction=lambda ctx: hub.warnings().for_model)

Tools are listed for each model request, so a changed catalog is followed. A call whose server is unavailable returns
``{"error": reason}``: the model reads it and the run goes on.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Literal

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset, ToolPredicate
from google.adk.tools.tool_context import ToolContext
from google.genai.types import FunctionDeclaration

from holdfast.endpoint import finding_tools
from holdfast.errors import HoldfastError, explain
from holdfast.hub import Hub
from holdfast.types import CallResult, Tool

__all__ = ["HubTool", "HubToolset", "OnToolProgress", "RequireConfirmation"]

FIRST_LISTING_SECONDS = 4.0
"""How long the first listing waits for servers that start."""

OnToolProgress = Callable[[str, float, float | None, str | None], Coroutine[Any, Any, None]]
"""Called with the tool's name, the progress, the total and the message of each progress notification."""

RequireConfirmation = bool | Callable[[Tool, dict[str, Any]], bool | Awaitable[bool]]
"""Whether a person confirms a call: always, never, or decided from the tool and its arguments."""


class HubToolset(BaseToolset):
    """All tools of a hub, which stays open and yours: ``close`` leaves it alone.

    ``tools="find"`` offers a few tools in place of all: the model finds, reads and calls the others with them.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        tool_filter: ToolPredicate | list[str] | None = None,
        tool_name_prefix: str | None = None,
        require_confirmation: RequireConfirmation = False,
        on_progress: OnToolProgress | None = None,
        tools: Literal["all", "find"] = "all",
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        self._mode = tools
        self._use_invocation_cache = False  # a tool that appears during a run is there on the next turn
        self._hub = hub
        self._require_confirmation = require_confirmation
        self._on_progress = on_progress

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """The tools of this moment."""
        await self._hub.ready(timeout=FIRST_LISTING_SECONDS)
        offered = finding_tools(self._hub) if self._mode == "find" else self._hub.tools()
        tools = [HubTool(self._hub, tool, self._require_confirmation, self._on_progress) for tool in offered]
        return [tool for tool in tools if self._is_tool_selected(tool, readonly_context)]

    async def close(self) -> None:
        """Nothing to do: the hub is closed by its owner."""


class HubTool(BaseTool):
    """One tool of the hub."""

    def __init__(
        self,
        hub: Hub,
        tool: Tool,
        require_confirmation: RequireConfirmation = False,
        on_progress: OnToolProgress | None = None,
    ) -> None:
        super().__init__(name=tool.name, description=tool.description, custom_metadata={"server": tool.server_id})
        self._hub = hub
        self._tool = tool
        self._require_confirmation = require_confirmation
        self._on_progress = on_progress

    def _get_declaration(self) -> FunctionDeclaration:
        schema = copy.deepcopy(dict(self._tool.input_schema)) or {"type": "object", "properties": {}}
        return FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        """Whether a person must confirm this call."""
        if callable(self._require_confirmation):
            decided = self._require_confirmation(self._tool, args)
            return bool(await decided if inspect.isawaitable(decided) else decided)
        return self._require_confirmation

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Call the tool. An outage is a result that says so."""
        if await self.check_require_confirmation(args, tool_context):
            if not tool_context.tool_confirmation:
                tool_context.request_confirmation(hint=f"Approve or reject the call of `{self.name}`.")
                tool_context.actions.skip_summarization = True
                return {"error": "This call waits for a person's confirmation."}
            if not tool_context.tool_confirmation.confirmed:
                return {"error": "A person rejected this call."}
        progressed = partial(self._on_progress, self._tool.name) if self._on_progress is not None else None
        try:
            result = await self._tool.call(args, on_progress=progressed)
        except HoldfastError as error:
            return {"error": explain(error)}
        return _answered(result)


def _answered(result: CallResult) -> dict[str, Any]:
    """The result in the form that ADK's own MCP tools return."""
    if result.is_error:
        return {"error": result.text or "the tool failed and says no more", "content": list(result.content)}
    answer: dict[str, Any] = {"content": list(result.content)}
    if result.structured is not None:
        answer["structuredContent"] = dict(result.structured)
    return answer
