"""Pydantic AI's MCP toolset, with the timeouts that it has by default."""

import asyncio

from driver import follow, target
from fastmcp.client.transports import StdioTransport
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset


async def main():
    where = target()
    server = where["url"] if "url" in where else StdioTransport(**where)
    async with MCPToolset(server) as toolset:

        async def listed():
            return [tool.name for tool in await toolset.list_tools()]

        async def called(name, arguments):
            try:
                return str(await toolset.direct_call_tool(name, arguments)), False
            except ModelRetry as retry:  # how it tells a model that a tool failed
                return retry.message, True

        await follow(listed, called)


asyncio.run(main())
