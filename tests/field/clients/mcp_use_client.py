"""mcp-use: one session for each server of its configuration."""

import asyncio
import logging

from driver import follow, target, texts
from mcp_use import MCPClient


async def main():
    # It logs to stdout, where the driver answers.
    logging.getLogger("mcp_use").handlers.clear()
    where = target()
    client = MCPClient.from_dict({"mcpServers": {"hub": where}})
    session = await client.create_session("hub")

    async def listed():
        return [tool.name for tool in await session.list_tools()]

    async def called(name, arguments):
        result = await session.call_tool(name=name, arguments=arguments)
        return texts(result.content), result.isError

    await follow(listed, called)
    await client.close_all_sessions()


asyncio.run(main())
