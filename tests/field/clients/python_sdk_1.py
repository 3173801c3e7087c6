"""The MCP Python SDK 1.x, as its README shows."""

import asyncio

from driver import follow, target, texts
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


def streams():
    where = target()
    return streamablehttp_client(where["url"]) if "url" in where else stdio_client(StdioServerParameters(**where))


async def main():
    async with streams() as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()

        async def listed():
            return [tool.name for tool in (await session.list_tools()).tools]

        async def called(name, arguments):
            result = await session.call_tool(name, arguments)
            return texts(result.content), result.isError

        await follow(listed, called)


asyncio.run(main())
