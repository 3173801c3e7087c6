"""A program for ``langchain-mcp-adapters`` with one import changed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from holdfast.errors import UsageError
from holdfast.integrations.langchain import MultiServerMCPClient
from holdfast.testing import HttpServer

RICH = {"command": sys.executable, "args": [str(Path(__file__).with_name("rich_server.py"))], "transport": "stdio"}


async def ask(tool: BaseTool) -> ToolMessage:
    message: ToolMessage = await tool.ainvoke({"type": "tool_call", "id": "1", "name": tool.name, "args": {}})
    return message


async def main() -> None:
    seen: dict[str, Any] = {}
    async with HttpServer({"forecast": "sunny"}) as weather:
        weather.fail_after(1)
        http = {"url": weather.url, "transport": "streamable_http"}
        client = MultiServerMCPClient({"weather": http, "rich": RICH})
        tools = {tool.name: tool for tool in await client.get_tools()}
        seen["names"] = sorted(tools)
        seen["one"] = sorted(tool.name for tool in await client.get_tools(server_name="weather"))
        seen["before"] = (await ask(tools["forecast"])).text
        down = await ask(tools["forecast"])
        seen["down"] = [down.status, down.text]
        await weather.heal()
        await weather.arrived("tools/list", times=2)
        seen["after"] = (await ask(tools["forecast"])).text
        await client.aclose()
        async with MultiServerMCPClient({"weather": http}, tool_name_prefix=True) as prefixed:
            seen["prefixed"] = [tool.name for tool in await prefixed.get_tools()]
        seen["refused"] = [refusal({"weather": {**http, **odd}}) for odd in ODD]
        try:
            client.session("weather")
        except UsageError as error:
            seen["session"] = error.message
    sys.stdout.write(json.dumps(seen) + "\n")


ODD: tuple[dict[str, Any], ...] = ({"auth": object()}, {"transport": "websocket"}, {"tranport": "http"})


def refusal(connections: dict[str, dict[str, Any]]) -> str:
    try:
        MultiServerMCPClient(connections)
    except UsageError as error:
        return f"{error.message} ({error.hint})"
    return ""


asyncio.run(main())
