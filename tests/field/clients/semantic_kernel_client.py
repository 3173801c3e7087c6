"""Semantic Kernel: a plugin holds one session."""

import asyncio

from driver import follow, target
from semantic_kernel.connectors.mcp import MCPStdioPlugin, MCPStreamableHttpPlugin


def plugin():
    where = target()
    if "url" in where:
        return MCPStreamableHttpPlugin(name="hub", url=where["url"])
    return MCPStdioPlugin(name="hub", command=where["command"], args=where["args"], env=where["env"])


async def main():
    async with plugin() as hub:

        async def listed():
            return [tool.name for tool in (await hub.session.list_tools()).tools]

        async def called(name, arguments):
            parts = await hub.call_tool(name, **arguments)
            text = "\n".join(part.text for part in parts)
            # It drops `isError`: the model reads the text.
            return text, "MCP server '" in text

        await follow(listed, called)


asyncio.run(main())
