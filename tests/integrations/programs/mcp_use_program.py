"""mcp-use (mcp 1.x) on a running hub: by its address, or as a child over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp_use import MCPClient


async def main(way: list[str]) -> None:
    entry = {"url": way[0]} if way[0].startswith("http") else {"command": way[0], "args": way[1:]}
    client = MCPClient.from_dict({"mcpServers": {"hub": entry}})
    session = await client.create_session("hub")
    tools = sorted(tool.name for tool in await session.list_tools())
    result = await session.call_tool("weather__forecast", {})
    await client.close_all_sessions()
    sys.stdout.write(json.dumps({"tools": tools, "read": result.content[0].text}) + "\n")


asyncio.run(main(sys.argv[1:]))
