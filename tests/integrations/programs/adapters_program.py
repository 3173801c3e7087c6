"""langchain-mcp-adapters (mcp 1.x) on a running hub: by its address, or as a child over stdio."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(way: list[str]) -> None:
    connection: dict[str, Any]
    if way[0].startswith("http"):
        connection = {"transport": "streamable_http", "url": way[0]}
    else:
        connection = {"transport": "stdio", "command": way[0], "args": way[1:]}
    client = MultiServerMCPClient({"hub": connection})
    tools = {tool.name: tool for tool in await client.get_tools()}
    read = await tools["weather__forecast"].ainvoke({"type": "tool_call", "id": "1", "name": "x", "args": {}})
    sys.stdout.write(json.dumps({"tools": sorted(tools), "read": read.text}) + "\n")


asyncio.run(main(sys.argv[1:]))
