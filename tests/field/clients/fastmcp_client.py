"""FastMCP's client, as its documentation shows."""

import asyncio

from driver import follow, target, texts
from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main():
    where = target()
    server = where["url"] if "url" in where else StdioTransport(**where)
    async with Client(server) as client:

        async def listed():
            return [tool.name for tool in await client.list_tools()]

        async def called(name, arguments):
            result = await client.call_tool(name, arguments, raise_on_error=False)
            return texts(result.content), result.is_error

        await follow(listed, called)


asyncio.run(main())
