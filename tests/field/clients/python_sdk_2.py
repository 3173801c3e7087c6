"""The MCP Python SDK 2.x, as its README shows."""

import asyncio

from driver import follow, target, texts
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    where = target()
    mode = where.pop("mode", "auto")
    server = where["url"] if "url" in where else stdio_client(StdioServerParameters(**where))
    async with Client(server, mode=mode) as client:

        async def listed():
            return [tool.name for tool in (await client.list_tools()).tools]

        async def called(name, arguments):
            result = await client.call_tool(name, arguments)
            return texts(result.content), result.is_error

        await follow(listed, called)


asyncio.run(main())
