"""Strands Agents: a thread of its own holds one session."""

import asyncio

from driver import follow, target
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from strands.tools.mcp import MCPClient


def transport():
    where = target()
    if "url" in where:
        return streamable_http_client(where["url"])
    return stdio_client(StdioServerParameters(command=where["command"], args=where["args"], env=where["env"]))


async def main():
    with MCPClient(transport) as client:

        async def listed():
            return [tool.tool_name for tool in await asyncio.to_thread(client.list_tools_sync)]

        async def called(name, arguments):
            result = await asyncio.to_thread(client.call_tool_sync, "1", name, arguments)
            return "\n".join(part["text"] for part in result["content"]), result["status"] == "error"

        await follow(listed, called)


asyncio.run(main())
