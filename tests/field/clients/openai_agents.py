"""OpenAI Agents: its MCP servers, with the timeouts that they have by default."""

import asyncio

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from driver import follow, target, texts


def server():
    where = target()
    if "url" in where:
        return MCPServerStreamableHttp(params={"url": where["url"]}, name="hub")
    return MCPServerStdio(params=where, name="hub")


async def main():
    async with server() as hub:

        async def listed():
            return [tool.name for tool in await hub.list_tools()]

        async def called(name, arguments):
            result = await hub.call_tool(name, arguments)
            error = getattr(result, "is_error", None)
            return texts(result.content), result.isError if error is None else error

        await follow(listed, called)


asyncio.run(main())
