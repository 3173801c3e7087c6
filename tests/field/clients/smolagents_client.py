"""smolagents: a thread of its own holds one session; a failed call is an answer like any other."""

import asyncio
import os

from driver import follow, target
from mcp import StdioServerParameters
from smolagents import MCPClient


def parameters():
    where = target()
    if "url" in where:
        return {"url": where["url"], "transport": "streamable-http"}
    return StdioServerParameters(command=where["command"], args=where["args"], env={**os.environ, **where["env"]})


async def main():
    with MCPClient(parameters(), structured_output=False) as found:
        tools = {tool.name: tool for tool in found}

        async def listed():
            return sorted(tools)

        async def called(name, arguments):
            if name not in tools:
                return f"smolagents offers no tool {name}", True
            text = await asyncio.to_thread(tools[name], **arguments)
            # It drops `isError`: the model reads the text.
            return text, "MCP server '" in text

        await follow(listed, called)


asyncio.run(main())
