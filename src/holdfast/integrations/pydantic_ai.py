"""The hub's tools for Pydantic AI (extra ``pydantic-ai``).

    agent = Agent(model, toolsets=[HubToolset(hub)], instructions=lambda: hub.warnings().for_model)

Tools are listed before each model request, so a changed catalog is followed. A call whose server is unavailable raises
``ToolFailed``: the model reads the reason, and the run spends no retry on it.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import BinaryContent
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from holdfast.endpoint import finding_tools
from holdfast.errors import HoldfastError, explain
from holdfast.hub import Hub
from holdfast.types import CallResult, Tool

__all__ = ["HubToolset", "OnToolProgress"]

FIRST_LISTING_SECONDS = 4.0
"""How long the first listing waits for servers that start."""

OnToolProgress = Callable[[str, float, float | None, str | None], Coroutine[Any, Any, None]]
"""Called with the tool's name, the progress, the total and the message of each progress notification."""

_ANY_OBJECT = SchemaValidator(
    core_schema.dict_schema(keys_schema=core_schema.str_schema(), values_schema=core_schema.any_schema())
)
"""Arguments are checked by the server, which knows its schema."""


class HubToolset(AbstractToolset[Any]):
    """All tools of a hub, which stays open and yours.

    ``tool_error_behavior`` is for errors that a tool itself reports (``isError``): ``retry`` asks the model to try
    again, as Pydantic AI's own MCP toolset does; ``failed`` reports a failure without a retry. An outage is always
    ``failed``. Approval works as on any toolset: ``HubToolset(hub).approval_required(…)``. ``tools="find"`` offers a
    few tools in place of all: the model finds, reads and calls the others with them.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        id: str | None = None,  # noqa: A002 - the framework's name
        max_retries: int | None = None,
        tool_error_behavior: Literal["retry", "failed"] = "retry",
        on_progress: OnToolProgress | None = None,
        tools: Literal["all", "find"] = "all",
    ) -> None:
        self._hub = hub
        self._mode = tools
        self._id = id
        self._max_retries = max_retries
        self._on_error = tool_error_behavior
        self._on_progress = on_progress

    @property
    def id(self) -> str | None:
        """The id in durable executions and error messages."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools of this moment."""
        await self._hub.ready(timeout=FIRST_LISTING_SECONDS)
        retries = self._max_retries if self._max_retries is not None else ctx.max_retries
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name,
                    description=tool.description or None,
                    parameters_json_schema=copy.deepcopy(dict(tool.input_schema)),
                    metadata={
                        "server": tool.server_id,
                        "annotations": dict(tool.annotations) or None,
                        "meta": dict(tool.meta) or None,
                    },
                ),
                max_retries=retries,
                args_validator=_ANY_OBJECT,
            )
            for tool in self._offered()
        }

    def _offered(self) -> tuple[Tool, ...]:
        return finding_tools(self._hub) if self._mode == "find" else self._hub.tools()

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool. An outage is a failed result that says why."""
        progressed = partial(self._on_progress, name) if self._on_progress is not None else None
        own = {one.name: one for one in finding_tools(self._hub)} if self._mode == "find" else {}
        try:
            if name in own:
                result = await own[name].call(tool_args, on_progress=progressed)
            else:
                result = await self._hub.call_tool(name, tool_args, on_progress=progressed)
        except HoldfastError as error:
            raise ToolFailed(explain(error)) from error
        if result.is_error:
            text = result.text or json.dumps(result.structured) if result.structured else result.text
            raise (ModelRetry if self._on_error == "retry" else ToolFailed)(text or f"the tool `{name}` failed")
        return _returned(result)


def _returned(result: CallResult) -> Any:
    """The structured result, or the content in the framework's types."""
    if result.structured is not None and all(block.get("type") == "text" for block in result.content):
        structured = dict(result.structured)
        # The SDK wraps what is no object under this one key.
        return structured["result"] if set(structured) == {"result"} else structured
    parts = [_part(block) for block in result.content]
    return parts[0] if len(parts) == 1 else parts


def _part(block: Mapping[str, Any]) -> Any:
    """An MCP content block as Pydantic AI's."""
    kind = block.get("type")
    if kind == "text":
        return block["text"]
    if kind in ("image", "audio"):
        return BinaryContent(data=base64.b64decode(block["data"]), media_type=block["mimeType"])
    if kind == "resource_link":
        return str(block["uri"])
    if kind == "resource":
        resource = block["resource"]
        if "text" in resource:
            return resource["text"]
        media_type = resource.get("mimeType") or "application/octet-stream"
        return BinaryContent(data=base64.b64decode(resource.get("blob", "")), media_type=media_type)
    return f"[content of the unknown type {kind!r}]"
